"""The records of `gpu.py` → the last section of RESULTS.md. They are kept, since most machines could not make them again."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

from report import Record, of, shape, table

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "gpu.jsonl"
HEADING = "## On a GPU"
LIMITS = {"Retrace": (3, 4), "NonMarkovRetrace": (10, 25), "RBIS": (10, 25), "TruncatedIS": (12, 30)}
"""Times clone(), at T = 256 and at T = 1,024."""
AGAINST_A_SCAN = 20
MOST = {256: 45, 1024: 65, 4096: 250, 16384: 300, 65536: 1000, 1 << 20: 6000}
"""µs of a million steps with a cap, by the length of rows; three times as much for hard data in rows of up to 1,024 steps."""


def tables(records: list[Record]) -> list[str]:
    lines = [f"- {r['date']}, one {r['card']}, {r['versions']}" for r in of(records, "gpu machine")]
    lines += [
        f"- {r['library']}: {r['traces']} traces on fresh random inputs{', in poisoned memory' * (r['library'] == 'PyTorch')}, "
        f"against float64: the largest error is {r['worst']:.2f} of what is allowed (2e-6 in float32, 1e-12 in float64, "
        "of Σ|γβδ|)"
        for r in of(records, "gpu check")
    ]
    lines += [f"- {r['text']}" for r in of(records, "gpu note")]

    def against_clone(r: Record) -> tuple:
        one, twenty = (r[n] / r[f"copy_{n}"] for n in ("one", "twenty"))
        limit = LIMITS.get(r["rule"], (inf, inf))[r["shape"][1] > 256]
        verdict = "met" if one <= limit else "**not met**"
        return (
            r["rule"], shape(r), f"{1 - r['spread']:.2g} – 1", f"{r['one']:.1f}", f"{one:.1f}×", f"≤ {limit}×", verdict,
            f"{r['twenty']:.1f}", f"{twenty:.1f}×", f"{r['eager']:.0f}",
        )  # fmt: skip

    def against_scan(r: Record) -> tuple:
        one, many = r["scan"] / r["one"], r["scan_many"] / r["many"]
        return (
            r["rule"], shape(r), f"{r['scan']:,.0f}", f"{r['one']:.0f}", f"{one:.0f}×", f"{r['scan_many']:,.0f}",
            f"{r['many']:.0f}", f"{many:.0f}×", "met" if min(one, many) >= AGAINST_A_SCAN else "**not met**",
        )  # fmt: skip

    header = "rule | shape | π, μ in | one call, µs | / clone() | wanted | | in twenty, µs | / clone() | eager, µs"
    lines += ["", *table(header, map(against_clone, of(records, "gpu torch")))]

    def of_any_length(r: Record, time: str, times: int) -> tuple:
        data, T = r["data"], r["shape"][1]
        hard = data["episode"] is None
        limit = (200 if T >= 1 << 20 else inf) if r["rule"] == "Retrace" else MOST[T] * (3 if hard and T <= 1024 else 1)
        limit *= times
        verdict = "" if limit == inf else "met" if r[time] <= limit else "**not met**"
        what = f"λ {data['λ']:g}, γ {data['γ']:g}, π and μ in {data['lowest π, μ']:g} – 1, "
        return (
            r["rule"], shape(r), what + ("one episode" if hard else f"episodes of {data['episode']}"), f"{r[time]:,.0f}",
            "" if limit == inf else f"≤ {limit:,}", verdict,
        )  # fmt: skip

    def in_a_graph(r: Record) -> tuple:
        verdict = "met" if r["arrays"] < 3.05 else "**not met**"
        return (*of_any_length(r, "one", 1), f"{r['arrays']:.1f}", verdict, f"{r['worst']:.0e}")

    header = "rule | shape | data | one call, µs | wanted | | arrays beside | ≤ 3 | largest error"
    lines += table(header, map(in_a_graph, of(records, "gpu long")))
    header = "weights | level | shape | one call, µs | / clone() | ≤ 3× | largest error"
    lines += table(header, [
        (r["rule"], r["level"], shape(r), f"{r['one']:.0f}", f"{r['one'] / r['copy']:.1f}×",
         "met" if r["one"] <= 3 * r["copy"] else "**not met**", f"{r['worst']:.0e}")
        for r in of(records, "gpu weights")
    ])  # fmt: skip
    header = "rule | shape | the host's time of a call, µs | launches | ≤ 100"
    lines += table(header, [
        (r["rule"], shape(r), f"{r['us']:.0f}", r["launches"], "met" if r["us"] <= 100 else "**not met**")
        for r in of(records, "gpu host")
    ])  # fmt: skip
    header = "rule | shape | data | JAX, calls in a row, µs | wanted | "
    lines += table(header, [of_any_length(r, "many", 2) for r in of(records, "gpu jax long")])
    header = "rule | shape | scan, µs | one call, µs | scan / ours | scan in a row, µs | calls in a row, µs | scan / ours | ≥ 20×"
    return [*lines, *table(header, map(against_scan, of(records, "gpu jax")))]


def section(records: list[Record]) -> list[str]:
    note = (
        "PyTorch: the whole call, float32, captured in a CUDA graph, alone or twenty times in a row (time for one), against "
        "copying one input array measured the same way: alone, clone() is mostly its launch. JAX: `ot.targets` under jit "
        "against rlax's Retrace, a scan over time, whatever the trace; as the host sees it, one call waited for, and calls in a "
        "row. Episodes of 50 steps on average. Measured by `benchmarks/gpu.py`, on another machine: its records are kept in "
        "`benchmarks/gpu.jsonl`."
    )
    return [HEADING, "", note, "", *tables(records)]


def kept() -> list[str]:
    """The section, of the records that are there."""
    return section([json.loads(line) for line in RECORDS.read_text().splitlines()])


if __name__ == "__main__":
    page = HERE / "RESULTS.md"
    before = page.read_text().split(HEADING)[0]
    page.write_text("\n".join([before.rstrip() + "\n", *kept()]))
