"""The order in which the steps of a stretch reach the cap: x_{k:t} ≥ cap_t where X_t / cap_t ≥ X_k.

X_t is the product of all ratios from the first step to t. It only decides on which side of the cap a term lies, where an error of
X costs no more than the error itself. So thresholds are integers: an exponent, and the first bits of a mantissa.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import kernel_part
from offtrace.returns.numpy.scaled_numbers import DOWN, UP, times

DIGIT, DIGITS = 11, 3  # bits in a digit of the radix sort; digits in a word
WORD, PLACE = 32, 31  # bits of a key that are sorted by at once; bits of a place
ORDERED = 44  # bits of a mantissa that decide the order
MANTISSA = 52
COUNTS = DIGITS << DIGIT
INDEX = np.uintp
"""Unsigned indices spare the test for a negative one, which is half of the time in these loops."""


@kernel_part
def sort(ratio, cap, order, starts, rank, room):
    """The steps in the order of X_t / cap_t; rank_k is how many of these are not above X_k. `room` is of 4n + COUNTS integers."""
    n = len(ratio)
    keys, words, count = room[: 2 * n], room[2 * n : 4 * n], room[4 * n :]
    ones, same = True, True
    for t in range(n):
        ones &= cap[t] == 1.0
        same &= cap[t] == cap[0]
    bits = thresholds(ratio, cap, ones, keys, words)
    of_starts, of_steps = keys[:n], keys[:n] if ones else keys[n:]
    sort_places(of_starts, bits, words, count, starts)
    if same:  # X_t / cap_t has the order of X_t
        for i in range(n):
            order[i] = starts[i]
    else:
        sort_places(of_steps, bits, words, count, order)
    p = INDEX(0)
    for i in range(n):
        k = INDEX(starts[i])
        while p < INDEX(n) and of_steps[INDEX(order[p])] <= of_starts[k]:
            p += INDEX(1)
        rank[k] = p


@kernel_part
def thresholds(ratio, cap, ones, keys, exponents):
    """X_k for all starts, and X_t / cap_t for all steps unless all caps are one, as integers of the same order.

    Returns how many bits they have.
    """
    n = len(ratio)
    f, e = 1.0, 0
    lowest, highest = 0, 0
    for t in range(n):
        if t > 0:
            f, e = times(f, e, ratio[t])
        keys[t], exponents[t] = np.float64(f).view(np.int64), 512 * e + exponent(f)
        lowest, highest = min(lowest, exponents[t]), max(highest, exponents[t])
        if ones:
            continue
        c, up = cap[t], 0
        if c < DOWN:
            c, up = c * UP, 1
        elif c > UP:
            c, up = c * DOWN, -1
        never = cap[t] == np.inf
        y = f if never or c == 0.0 else f / c
        keys[n + t], exponents[n + t] = np.float64(y).view(np.int64), 512 * (e + up) + exponent(y)
        if never:
            exponents[n + t] = -(1 << 62)
        elif c == 0.0:
            exponents[n + t] = 1 << 62
        else:
            lowest, highest = min(lowest, exponents[n + t]), max(highest, exponents[n + t])
    span = 2
    while (1 << span) < highest - lowest + 3:
        span += 1
    kept = min(ORDERED, 62 - span)
    mask = (1 << MANTISSA) - 1
    for i in range(n if ones else 2 * n):
        e = min(max(exponents[i], lowest - 1), highest + 1) - (lowest - 1)
        keys[i] = (e << kept) | ((keys[i] & mask) >> (MANTISSA - kept))
    return span + kept


@kernel_part
def exponent(y):
    """The power of two below y, a normal number."""
    return (np.float64(y).view(np.int64) >> MANTISSA) - 1023


@kernel_part
def sort_places(keys, bits, words, count, places):
    """0 … n-1 in the order of their keys, into `places`: by the highest bits, which are all different as a rule."""
    low = max(0, bits - WORD)
    for i in range(len(keys)):
        places[i] = i
    if not sort_by(keys, low, words, count, places):
        for i in range(len(keys)):
            places[i] = i
        sort_by(keys, 0, words, count, places)
        sort_by(keys, low, words, count, places)


@kernel_part
def sort_by(keys, low, words, count, places):
    """Places in the order of WORD bits of their keys from bit `low` on, and as they stood where these are equal.

    Few that stand wrong for the bits below are put right. Returns whether all are in order.
    """
    n = len(keys)
    spread(keys, low, words[:n], count, places)
    side = 0
    for digit in range(DIGITS):
        side = radix(words[side * n : side * n + n], words[n - side * n :], digit, count[digit << DIGIT :], side)
    found = words[side * n : side * n + n]
    for i in range(n):
        places[i] = found[i] & ((1 << PLACE) - 1)
    moved = 0
    for i in range(1, n):
        if found[i] >> PLACE == found[i - 1] >> PLACE:
            place, j = places[i], i
            while j > 0 and keys[INDEX(places[j - 1])] > keys[INDEX(place)]:
                places[j], j, moved = places[j - 1], j - 1, moved + 1
            places[j] = place
            if moved > n:
                return False
    return True


@kernel_part
def spread(keys, low, words, count, places):
    """Words of the bits to sort by and the place, and where the words with each digit begin."""
    mask = (1 << DIGIT) - 1
    for i in range(COUNTS):
        count[i] = 0
    for i in range(len(words)):
        key = (keys[INDEX(places[i])] >> low) & ((1 << WORD) - 1)
        words[i] = (key << PLACE) | places[i]
        for digit in range(DIGITS):
            count[INDEX((digit << DIGIT) + ((key >> (DIGIT * digit)) & mask))] += 1
    for digit in range(DIGITS):
        at = 0
        for d in range(digit << DIGIT, (digit + 1) << DIGIT):
            count[d], at = at, at + count[d]


@kernel_part
def radix(words, into, digit, count, side):
    """One stable pass by a digit; returns the side on which the result is."""
    n = len(words)
    mask, low = (1 << DIGIT) - 1, PLACE + DIGIT * digit
    first = (words[0] >> low) & mask
    if count[first] == 0 and (first == mask or count[first + 1] == n):  # all words have the same
        return side
    for i in range(n):
        w = words[i]
        d = INDEX((w >> low) & mask)
        into[INDEX(count[d])] = w
        count[d] += 1
    return 1 - side
