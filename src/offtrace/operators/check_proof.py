"""`python check_proof.py FILE` checks a proof that `offtrace certify --proof FILE` wrote, by Python's own library alone.

This file shares no code with what it checks. docs/proofs.md has the format and says why each test is enough. C is Σ_t γ^t K_t,
K_t(z, y) = E_μ[β_t 1{(s_t, a_t) = y} | z], and Z = I − C (I − γ P_π): M is Q ↦ Q^π + Z (Q − Q^π).
"""

import json
import sys
from bisect import bisect_right
from fractions import Fraction
from hashlib import sha256
from typing import Any

ZERO, ONE = Fraction(0), Fraction(1)

RULES = {  # decay, ratio, cap, whether it is recursive; cap None is ∞
    "OneStep": lambda pi, rho, n: (ZERO, ONE, None, False),
    "ImportanceSampling": lambda pi, rho, n: (n["lam"], rho, None, False),
    "QLambda": lambda pi, rho, n: (n["lam"], ONE, None, False),
    "TreeBackup": lambda pi, rho, n: (n["lam"], pi, None, False),
    "Retrace": lambda pi, rho, n: (n["lam"], min(ONE, rho), None, False),
    "NonMarkovRetrace": lambda pi, rho, n: (ONE, n["lam"] * rho, n["lam"], True),
    "RBIS": lambda pi, rho, n: (n["lam"], rho / n["lam"], ONE, True),
    "TruncatedIS": lambda pi, rho, n: (n["lam"], rho, n.get("bound"), False),
}

class Refused(Exception):
    """What does not hold, and where."""

def require(holds, where):
    if not holds:
        raise Refused(where)

def number(text: Any) -> Any:
    one = None if text == "inf" or isinstance(text, list) else Fraction(text)
    return [number(each) for each in text] if isinstance(text, list) else one

class Problem:
    """The MDP, the policies and the rule. Pairs are z = s·A + a; P[z] is a list of (s', p) without ends of episodes."""

    def __init__(self, file):
        target, behavior = number(file["target"]), number(file["behavior"])
        self.S, self.A, self.gamma, self.R = len(target), len(target[0]), number(file["gamma"]), number(file["rewards"])
        self.n, self.P = self.S * self.A, []
        require(0 <= self.gamma < 1, "gamma is outside [0, 1)")
        for row in target + behavior:
            require(len(row) == self.A and min(row) >= 0 and sum(row) == 1, "a policy is no distribution in some state")
        self.pi, self.mu = ([p for row in policy for p in row] for policy in (target, behavior))
        for z, row in enumerate(file["transitions"]):
            steps = [(s, number(p)) for s, p in row]
            fine = all(p >= 0 and -1 <= s < self.S for s, p in steps) and sum(p for _, p in steps) == 1
            require(fine, f"transitions of pair {z} are no distribution")
            self.P.append([(s, p) for s, p in steps if s >= 0])
        require(len(self.P) == self.n == len(self.R) == len(self.mu), "the tables have other sizes")
        rule = file["rule"]
        self.name, self.given = rule["name"], {k: number(v) for k, v in rule["numbers"].items()}
        self.horizon, self.lags = rule["horizon"], rule["lags"] and number(rule["lags"])
        self.acting = [z for z in range(self.n) if self.mu[z] > 0]
        self.set_factors(number(rule["decay"]), number(rule["ratio"]), number(rule["cap"]), rule["recursive"])
        for z in self.acting if self.name in RULES else []:
            same = self.factors_of_rule(z) == (self.decay[z], self.ratio[z], self.cap[z], self.recursive)
            require(same, f"{self.name} has other factors at pair {z}")

    def set_factors(self, decay, ratio, cap, recursive):
        self.decay, self.ratio, self.cap, self.recursive = decay, ratio, cap, recursive
        for z in self.acting:
            fine = 0 <= decay[z] <= 1 and ratio[z] >= 0 and (cap[z] is None or cap[z] >= 0)
            require(fine, f"factors of pair {z} are outside what is proven for")
        self.free = not self.lags and all(cap[z] is None for z in self.acting)

    def factors_of_rule(self, z):
        return RULES[self.name](self.pi[z], self.pi[z] / self.mu[z], self.given)

    def later(self, z):
        """(z', γ P(s'|z) μ(a'|s'))."""
        pairs = ((s * self.A + a, p) for s, p in self.P[z] for a in range(self.A))
        return [(o, self.gamma * p * self.mu[o]) for o, p in pairs if self.mu[o] > 0]

    def step(self, value, z, lag):
        """What a trace with x = value reads when it comes to z, and its x from there on."""
        value, cap = value * self.ratio[z], self.cap[z]
        bound = self.lags[min(lag, len(self.lags)) - 1] if self.lags else None
        read = min(each for each in (value, cap, bound) if each is not None)
        return read, min(value, cap) if self.recursive and cap is not None else value

def finite_sum(x, witness):
    """C of a horizon, exactly: masses of (pair, x, decays) are carried forward, and equal ones merge."""
    require(x.horizon is not None and x.horizon <= 200, "a sum needs a horizon of at most 200")
    C, horizon = [], int(x.horizon or 0)
    for start in range(x.n):
        row, live = [ONE * (y == start) for y in range(x.n)], {(start, ONE, ONE): ONE}
        for lag in range(1, horizon):
            after = {}
            for (z, value, decayed), mass in live.items():
                for o, p in x.later(z):
                    read, value_there = x.step(value, o, lag)
                    key = o, value_there, decayed * x.decay[o]
                    row[o] += mass * p * key[2] * read
                    after[key] = after.get(key, ZERO) + mass * p
            require(len(after) < 200_000, "too many histories to sum")
            live = after
        C.append(row)
    return C, C

def linear(x, witness):
    """No cap: C = I + G C, G(z, z') = γ P μ c, between a sub- and a super-solution; a vector w > G w shows that C exists."""
    require(x.free and x.horizon is None, "a linear witness is for rules without cap, bounds by lag and horizon")
    low, up, w = number(witness["lower"]), number(witness["upper"]), number(witness["w"])
    for z in range(x.n):
        steps = [(o, p * x.decay[o] * x.ratio[o]) for o, p in x.later(z)]
        require(w[z] > 0 and sum(c * w[o] for o, c in steps) < w[z], f"w is no proof that C exists, at pair {z}")
        for y in range(x.n):
            require(low[z][y] <= (y == z) + sum(c * low[o][y] for o, c in steps), f"lower is no sub-solution at ({z}, {y})")
            require(up[z][y] >= (y == z) + sum(c * up[o][y] for o, c in steps), f"upper is no super-solution at ({z}, {y})")
    return low, up

def chain(x, witness):
    """Caps: H(s, x), what a trace that arrives in s with x still reads, is concave in x: chords below, lines above it."""
    require(not x.lags and x.horizon is None, "a chain witness is for rules without bounds by lag and horizon")
    here = [[z for z in x.acting if z // x.A == s] for s in range(x.S)]
    for s in range(x.S):
        require(x.gamma * sum(x.mu[z] * x.decay[z] for z in here[s]) < 1, f"coefficients in state {s} do not sum to less than 1")
    grid, low, up = number(witness["grid"]), [], []
    require(grid[0] == 0 and all(a < b for a, b in zip(grid, grid[1:])), "the grid does not ascend from 0")
    below = [check_nodes(x, here, grid, number(witness["nodes"][y]), y) for y in range(x.n)]
    above = [check_lines(x, here, witness["lines"][y], y) for y in range(x.n)]
    for H, C in ((below, low), (above, up)):
        C += [[(y == z) + x.gamma * sum(p * H[y][s] for s, p in x.P[z]) for y in range(x.n)] for z in range(x.n)]
    return low, up

def chord(grid, values, at):
    """The chord at a point; constant beyond the last node, since H only grows."""
    j = bisect_right(grid, at) - 1
    if j == len(grid) - 1:
        return values[-1]
    return values[j] + (at - grid[j]) / (grid[j + 1] - grid[j]) * (values[j + 1] - values[j])

def check_nodes(x, here, grid, nodes, y):
    """A sub-solution at the nodes; H(s, 1) from below."""
    for s in range(x.S):
        for i, at in enumerate(grid):
            total = ZERO
            for z in here[s]:
                read, value = x.step(at, z, 1)
                after = x.gamma * sum(p * chord(grid, nodes[o], value) for o, p in x.P[z])
                total += x.mu[z] * x.decay[z] * ((z == y) * read + after)
            require(nodes[s][i] <= total, f"lower is no sub-solution for column {y}, state {s}, node {i}")
    return [chord(grid, nodes[s], ONE) for s in range(x.S)]

def check_lines(x, here, given, y):
    """Lines b + g x above H: each follows from lines of the next states, one choice for each action. H(s, 1) from above."""
    lines = [[(number(b), number(g), choice) for b, g, choice in given[str(s)]] for s in range(x.S)]
    for s in range(x.S):
        for k, (b, g, choice) in enumerate(lines[s]):
            where = f"upper line {k} of state {s}, column {y}"
            require(b >= 0 and g >= 0 and len(choice) == len(here[s]), where)
            for z, (clipped, following) in zip(here[s], choice):
                require((not clipped or x.cap[z] is not None) and len(following) == len(x.P[z]), where)
                free, c = (ZERO, x.ratio[z]), x.mu[z] * x.decay[z]
                read = (x.cap[z], ZERO) if clipped else free
                onward = read if x.recursive else free
                b, g = b - c * (z == y) * read[0], g - c * (z == y) * read[1]
                for (o, p), j in zip(x.P[z], following):
                    b2, g2, _ = lines[o][j]
                    b, g = b - c * x.gamma * p * (b2 + g2 * onward[0]), g - c * x.gamma * p * g2 * onward[1]
            require(b >= 0 and g >= 0, where + " is not above what it stands for")
    return [min(b + g for b, g, _ in lines[s]) for s in range(x.S)]

def bounds_of_C(x, witness):
    return {"sum": finite_sum, "linear": linear, "chain": chain}[witness["kind"]](x, witness)

def bounds_of_Z(x, witness):
    """lower ≤ Z ≤ upper, entry by entry: Z = I − C + C γP_π."""
    low, up = bounds_of_C(x, witness)
    n = range(x.n)
    onto = [[x.gamma * x.pi[o] * sum(p for s, p in x.P[z] if s == o // x.A) for o in n] for z in n]
    def entries(plus, minus):
        return [[(i == j) - minus[i][j] + sum(plus[i][k] * onto[k][j] for k in n) for j in n] for i in n]
    return entries(low, up), entries(up, low)

def determinant(matrix):
    a, product = [row[:] for row in matrix], ONE
    for k in range(len(a)):
        pivot = max(range(k, len(a)), key=lambda i: abs(a[i][k]))
        if a[pivot][k] == 0:
            return ZERO
        a[k], a[pivot], product = a[pivot], a[k], product * a[pivot][k] * (1 if pivot == k else -1)
        for i in range(k + 1, len(a)):
            a[i] = [u - a[i][k] / a[k][k] * v for u, v in zip(a[i], a[k])]
    return product

def check_claim(x, Z, claim):
    """One claim; the sentence that has been verified."""
    kind, n = claim["claim"], range(x.n)
    if kind == "recursive condition holds":
        require(not x.lags and (x.recursive or x.free), "only shown for rules without a cap, or with a recursive one")
        for z in x.acting:
            require(x.decay[z] * x.ratio[z] * x.mu[z] <= x.pi[z], f"decay · ratio exceeds ρ at pair {z}")
        return "β_t ≤ β_{t-1} ρ_t holds for every history"
    if kind == "recursive condition fails":
        return check_history(x, claim["history"])
    if kind == "control cycle":
        return check_cycle(x, number(claim["values"]))
    if kind in ("variance at most", "variance at least"):
        return check_variance(x, claim, number(claim["values"]), number(claim["number"]))
    require(Z is not None, "claims about Z need a witness")
    (low, up), r = Z, number(claim["number"])
    most = [[max(abs(low[i][j]), abs(up[i][j])) for j in n] for i in n]
    if kind == "norm at most":
        require(max(sum(row) for row in most) <= r, "a row of |Z| exceeds the number")
    elif kind == "norm at least":
        i, signs = claim["row"], claim["signs"]
        require(all(s in (-1, 1) for s in signs), "signs are not ±1")
        require(sum(low[i][j] if signs[j] > 0 else -up[i][j] for j in n) >= r, f"row {i} does not reach the number")
    elif kind == "radius at most":
        v = number(claim["vector"])
        require(all(v[i] > 0 and sum(most[i][j] * v[j] for j in n) <= r * v[i] for i in n), "|Z| v exceeds the number times v")
    else:
        require(kind == "radius at least", f"there is no claim {kind!r}")
        eigenvalue_beyond(low, up, number(claim["beyond"]), r, number(claim["inverse"]))
    return f"{'‖Z‖' if 'norm' in kind else 'the spectral radius of Z'} is {kind.split(' ', 1)[1]} {float(r):.12g}"

def eigenvalue_beyond(low, up, t, r, B):
    """A real eigenvalue beyond t, |t| ≥ r: det(tI − Z) has not the sign that it has at t · ∞, for no Z within the bounds."""
    n = range(len(low))
    require(abs(t) >= r, "the number t is nearer to 0 than the claim")
    middle = [[(i == j) * t - (low[i][j] + up[i][j]) / 2 for j in n] for i in n]
    for i in n:
        off = sum(abs((i == j) - sum(B[i][k] * middle[k][j] for k in n)) for j in n)
        off += sum(abs(B[i][k]) * (up[k][j] - low[k][j]) / 2 for j in n for k in n)
        require(off < 1, "the inverse does not show that tI − Z is regular within the bounds")
    require(determinant(middle) * (1 if t > 0 else (-1) ** len(low)) < 0, "the determinant has the sign that it has far out")

def check_history(x, history):
    """β_t > β_{t-1} ρ_t along a history that μ can make."""
    (value, decayed), betas, z = (ONE, ONE), [ONE], history[-1]
    require(len(history) > 1 and all(b in dict(x.later(a)) for a, b in zip(history, history[1:])), "μ cannot make this history")
    for lag, met in enumerate(history[1:], 1):
        decayed *= x.decay[met]
        read, value = x.step(value, met, lag)
        betas.append(ZERO if x.horizon is not None and lag >= x.horizon else decayed * read)
    require(betas[-1] * x.mu[z] > betas[-2] * x.pi[z], "β_t does not exceed β_{t-1} ρ_t at the end of the history")
    return f"β_t ≤ β_{{t-1}} ρ_t fails along {history}"

def check_cycle(x, values):
    """Q_k → Q_{k+1} by M with greedy π_k (the first of several best actions), and the last again Q_0: no convergence."""
    require(x.name in RULES and x.horizon is None, "a cycle needs a rule that is known, without a horizon")
    require(any(row != values[0] for row in values), "the values do not move")
    for k, (q, after) in enumerate(zip(values, values[1:] + values[:1])):
        best = [max(q[z // x.A * x.A : z // x.A * x.A + x.A]) for z in range(x.n)]
        x.pi = [ONE if z % x.A == q[z // x.A * x.A :].index(best[z]) else ZERO for z in range(x.n)]
        factors = [x.factors_of_rule(z) if x.mu[z] else (ZERO, ONE, None, False) for z in range(x.n)]
        x.set_factors(*(list(column) for column in list(zip(*factors))[:3]), False)
        require(x.free, "cycles are shown for rules without a cap")
        for z in range(x.n):
            delta = x.R[z] + x.gamma * sum(p * best[s * x.A] for s, p in x.P[z]) - q[z]
            moved = sum(c * x.decay[o] * x.ratio[o] * (after[o] - q[o]) for o, c in x.later(z))
            require(after[z] - q[z] - moved == delta, f"step {k} of the cycle is not M Q at pair {z}")
    return f"control cycles with period {len(values)}"

def check_variance(x, claim, values, r):
    (low, up), kind = variances(x, values, claim["witness"]), claim["claim"]
    require(max(up) <= r if kind == "variance at most" else max(low) >= r, "the bounds do not show this variance")
    return f"the variance of a correction at Q^π is {kind[9:]} {float(r):.12g}, from the pair where it is largest"

def variances(x, q, witness):
    """At Q^π the δ's are uncorrelated: Var Δ = C₂ σ², where C₂ is C of the squares of γ, decay, ratio and cap; σ² = Var δ."""
    v = [sum(x.pi[z] * q[z] for z in range(s * x.A, s * x.A + x.A)) for s in range(x.S)]
    mean = [sum(p * v[s] for s, p in x.P[z]) for z in range(x.n)]
    require(all(q[z] == x.R[z] + x.gamma * mean[z] for z in range(x.n)), "the values are not Q^π")
    noise = [x.gamma**2 * (sum(p * v[s] ** 2 for s, p in x.P[z]) - mean[z] ** 2) for z in range(x.n)]
    x.gamma, x.lags = x.gamma**2, x.lags and [d and d**2 for d in x.lags]
    x.decay, x.ratio, x.cap = ([c and c**2 for c in part] for part in (x.decay, x.ratio, x.cap))
    return [[sum(c * s for c, s in zip(row, noise)) for row in C] for C in bounds_of_C(x, witness)]

def digest(file):
    """A checksum of all but itself: a changed digit that would leave the proof right is noticed, too."""
    rest = {key: value for key, value in file.items() if key != "sha256"}
    return sha256(json.dumps(rest, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()

def check(file: Any) -> list[str]:
    """The sentences that hold; raises `Refused` at the first that does not."""
    require(file.get("format") == "offtrace proof 1", "this is no proof of format 1")
    require(file.get("sha256") == digest(file), "the checksum is another: the file has been changed")
    x = Problem(file["problem"])
    Z = bounds_of_Z(x, file["witness"]) if file["witness"] else None
    others = "control cycle", "variance at most", "variance at least"  # than Z's factors: they change the problem
    return [check_claim(Problem(file["problem"]) if c["claim"] in others else x, Z, c) for c in file["claims"]]

def main(path):
    try:
        with open(path, encoding="utf-8") as text:
            print("\n".join(f"verified: {sentence}" for sentence in check(json.load(text))))
    except Refused as reason:
        return f"REFUSED: {reason}"
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
        return f"REFUSED: the file is damaged or no proof ({type(error).__name__}: {error})"

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
