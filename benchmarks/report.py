"""Records → the tables and claims of RESULTS.md. Knows nothing of how they were measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

Record = dict[str, Any]
CORES = {"one": "one core", "all": "all cores"}
LOG_FACTOR = math.log(1e6) / math.log(1e4)


def table(header: str, rows: Iterable[Iterable[Any]]) -> list[str]:
    names = [name.strip() for name in header.split("|")]
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join('---' if i == 0 else '---:' for i in range(len(names)))}|"]
    return [*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows), ""]


def number(x: float) -> str:
    return f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:,.0f}"


def spread(r: Record) -> str:
    return f"{number(r['ratio'])} ({number(r['q1'])} – {number(r['q3'])})"


def shape(r: Record) -> str:
    return "[{}, {}]".format(*r["shape"])


def grid(
    records: list[Record], row: Callable[[Record], tuple], column: Callable[[Record], str], cell: Callable
) -> list[list]:
    """Records laid out by row key and column, in order of appearance."""
    rows, columns = list(dict.fromkeys(map(row, records))), list(dict.fromkeys(map(column, records)))
    cells = {(row(r), column(r)): cell(r) for r in records}
    return [["", *columns], *([*key, *(cells.get((key, c), "–") for c in columns)] for key in rows)]


def of(records: list[Record], name: str, **fixed: Any) -> list[Record]:
    return [r for r in records if r["table"] == name and all(r[key] == value for key, value in fixed.items())]


def against_peers(records: list[Record], name: str) -> list[str]:
    rows = (
        (
            r["peer"],
            r["ours"],
            shape(r),
            r["setting"],
            r["cores"],
            spread(r),
            number(r["of_us"]),
            number(r["to_us"]),
            r["repetitions"],
        )
        for r in sorted(of(records, name), key=lambda r: (r["ours"] != "Retrace", r["peer"]))
    )
    header = "peer | ours | shape | policies | cores | peer / ours (quartiles) | peer µs | ours µs | repetitions"
    return table(header, rows)


def jitted(records: list[Record]) -> list[str]:
    rows = (
        (
            r["rule"],
            shape(r),
            r["setting"],
            spread(r),
            number(r["of_us"]),
            number(r["to_us"]),
            f"{r['first']:.2f}",
            f"{r['first_of_rlax']:.2f}",
        )
        for r in of(records, "jitted")
    )
    return table(
        "rule | shape | policies | rule / rlax (quartiles) | rule µs | rlax µs | first call, s | rlax's, s", rows
    )


def aware(records: list[Record]) -> list[str]:
    rows = (
        (r["rule"], shape(r), r["setting"], spread(r), number(r["of_us"]), number(r["to_us"]))
        for r in sorted(of(records, "aware"), key=lambda r: r["rule"])
    )
    return table("rule | shape | policies | rule / Retrace (quartiles) | rule µs | Retrace µs", rows)


def crossover(records: list[Record]) -> list[str]:
    cells = grid(
        of(records, "crossover"),
        lambda r: (f"{r['rule']}, {r['setting']}",),
        lambda r: f"T = {r['T']}",
        lambda r: number(r["ratio"]),
    )
    return table(" | ".join(["rule, policies", *cells[0][1:]]), cells[1:])


def growth_factors(records: list[Record]) -> dict[tuple[str, str], float]:
    """Time per step at the longest T over that at the shortest."""
    steps: dict[tuple[str, str], dict[int, float]] = {}
    for r in of(records, "growth"):
        steps.setdefault((r["rule"], r["setting"]), {})[r["T"]] = r.get("ns_per_step", math.inf)
    return {key: t[max(t)] / t[min(t)] for key, t in steps.items()}


def growth(records: list[Record]) -> list[str]:
    def cell(r: Record) -> str:
        return r["left_out"] if "left_out" in r else number(r["ns_per_step"])

    cells = grid(of(records, "growth"), lambda r: (r["rule"], r["setting"]), lambda r: f"T = {r['T']:,}", cell)
    factors = growth_factors(records)
    rows = ([*row, "–" if math.isinf(f := factors[row[0], row[1]]) else number(f)] for row in cells[1:])
    return table(" | ".join(["rule", "policies", *cells[0][1:], "last / first"]), rows)


def memory(records: list[Record]) -> list[str]:
    cells = grid(of(records, "memory"), lambda r: (r["rule"],), shape, lambda r: f"{r['extra_mb']:.2f} MB")
    return table(" | ".join(["rule", *cells[0][1:]]), cells[1:])


def startup(records: list[Record]) -> list[str]:
    lines = []
    for r in of(records, "import"):
        lines += [
            f"`import offtrace`: {r['median']:.3f} s (quartiles {r['quartiles'][0]:.3f} – {r['quartiles'][1]:.3f}), "
            f"of which NumPy and Numba {r['numpy_and_numba']:.3f} s. "
            f"Of torch, jax, tensorflow, matplotlib and pandas it brings in: {', '.join(r['heavy']) or 'none'}.",
            "",
        ]
    rows = ((r["rule"], f"{r['compiled']:.2f} s", f"{r['from_disk']:.3f} s") for r in of(records, "first call"))
    return lines + table("first call of | in the very first process | in the second", rows)


def tensors(records: list[Record]) -> list[str]:
    rows = (
        (r["library"], r["rule"], shape(r), *(f"{r[name]:.0f}" for name in ("numpy_us", "more_us", "cold_us")))
        for r in of(records, "tensors")
    )
    return table("arrays of | rule | shape | NumPy call, µs | more, µs | more, one call alone, µs", rows)


def laboratory(records: list[Record]) -> list[str]:
    rows = (
        (r["case"], f"{r['seconds']:.2f} s", f"{r['limit']:g} s", r["told"], f"{r['peak_gb']:.2f} GB")
        for r in of(records, "laboratory")
    )
    return table("case | time | limit | answer | peak memory so far", rows)


def trials(records: list[Record]) -> list[str]:
    rows = (
        (
            r["rule"],
            number(r["ours_us"]),
            number(r["plain_us"]),
            f"{r['ratio']:.2f}",
            number(r["python_us"]),
            f"{r['to_python']:,.0f}",
            f"{r['in_python_time']:,.0f}",
        )
        for r in of(records, "trials")
    )
    lines = table(
        "rule | µs a trial | plain Numba loop, µs | plain / ours | NumPy script, µs | NumPy / ours | trials in 0.27 s",
        rows,
    )
    for r in of(records, "sweep"):
        lines += [
            f"The published sweep (440,000 trials): {r['whole']:.0f} s on all cores, from {r['trials']:,} trials.",
            "",
        ]
    return lines


def episode_factors(records: list[Record]) -> dict[str, float]:
    """The dearest step at any length over that at the shortest."""
    found: dict[str, dict[int, float]] = {}
    for r in of(records, "episodes"):
        found.setdefault(r["rule"], {})[r["length"]] = r["ns"]
    return {rule: max(ns.values()) / ns[min(ns)] for rule, ns in found.items()}


def episodes(records: list[Record]) -> list[str]:
    cells = grid(
        of(records, "episodes"), lambda r: (r["rule"],), lambda r: f"{r['length']:,} steps", lambda r: number(r["ns"])
    )
    factors = episode_factors(records)
    return table(
        " | ".join(["rule", *cells[0][1:], "dearest / first"]), ([*row, number(factors[row[0]])] for row in cells[1:])
    )


def framework(records: list[Record]) -> list[str]:
    lines = []
    for r in of(records, "framework"):
        lines += [
            f"{r['units']} units of `bifurcation` at 1,000 seeds: directly {r['direct']:.1f} s; as a study in one process "
            f"{r['net_alone']:.1f} s from its first unit on ({r['alone']:.1f} s with its start), in two {r['net_pair']:.1f} s "
            f"({r['pair']:.1f} s).",
            "",
        ]
    lines += [f"First result on disk after {r['seconds']:.1f} s, warm." for r in of(records, "first result")]
    lines += [
        f"{r['rows']:,} rows: read in {r['read']:.2f} s, summarised in {r['summarised']:.2f} s."
        for r in of(records, "reading")
    ]
    return [*lines, ""]


def logs(records: list[Record]) -> list[str]:
    return table(
        "rows | read / polars (quartiles) | of processor time | read, s | polars, s | memory, MB | logs, MB | repetitions",
        (
            (
                {"states": "in order, states are ids", "features": "in order, 4 features"}.get(r["case"], r["case"]),
                spread(r),
                f"{r['cpu_ratio']:.2f}",
                f"{r['of_us'] / 1e6:.2f}",
                f"{r['to_us'] / 1e6:.2f}",
                number(r["extra_mb"]),
                number(r["logs_mb"]),
                r["repetitions"],
            )
            for r in of(records, "logs")
        ),
    )


def fitting(records: list[Record]) -> list[str]:
    lines = [
        f"One sweep of {r['steps']:,} steps in {r['episodes']:,} episodes: {r['seconds']:.2f} s, peak {r['peak_gb']:.2f} GB."
        for r in of(records, "evaluation sweep")
    ]
    lines += [
        f"All estimators with their intervals from {r['steps']:,} steps: {r['seconds']:.1f} s, {r['sweeps']} sweeps to fit."
        for r in of(records, "evaluation")
    ]
    return ["\n".join(lines), ""]


def deep(records: list[Record]) -> list[str]:
    return table(
        "what | ratio | frames/s | peer's frames/s",
        (
            (r["case"], f"{r['ours'] / r['theirs']:.2f}", f"{r['ours']:,.0f}", f"{r['theirs']:,.0f}")
            for r in of(records, "deep")
        ),
    )


def claims(records: list[Record]) -> list[str]:
    """Every claim with its worst case."""
    rows: list[tuple] = []

    def judge(
        claim: str, cases: dict[str, float], met: Callable[[float], bool], worst: Callable = max, unit: str = "×"
    ) -> None:
        if not cases:
            rows.append((claim, "–", "not measured"))
            return
        where = worst(cases, key=lambda case: cases[case])
        value = "too slow to run" if math.isinf(cases[where]) else f"{number(cases[where])}{unit}"
        rows.append((claim, f"{value} ({where})" if where else value, "met" if met(cases[where]) else "**not met**"))

    def peers(name: str, ours: str, wanted: Callable[[str], bool]) -> dict[str, float]:
        found = of(records, name, ours=ours)
        cases = [r for r in found if wanted(r["peer"])]
        return {f"{r['peer']}, {shape(r)}, {r['setting']}, {CORES[r['cores']]}": r["ratio"] for r in cases}

    def costs(*rules: str) -> dict[str, float]:
        found = [r for r in of(records, "aware") if r["rule"] in rules]
        return {f"{r['rule']}, {shape(r)}, {r['setting']}": r["ratio"] for r in found}

    def grows(wanted: Callable[[str], bool]) -> dict[str, float]:
        return {", ".join(key): factor for key, factor in growth_factors(records).items() if wanted(key[0])}

    same = "at least as fast as"
    judge(
        f"Retrace {same} rlax, torchrl and RLlib",
        peers("per-decision", "Retrace", lambda p: "tianshou" not in p),
        lambda r: r >= 1,
        min,
    )
    judge(
        f"QLambda {same} tianshou's GAE",
        peers("per-decision", "QLambda", lambda p: "alone" not in p),
        lambda r: r >= 1,
        min,
    )
    judge(
        f"`state_targets` {same} every V-trace with advantages",
        peers("v-trace", "state_targets", lambda p: "no advantage" not in p),
        lambda r: r >= 1,
        min,
    )
    judge(
        f"`state_targets` {same} rlax's V-trace without advantages (less work)",
        peers("v-trace", "state_targets", lambda p: "no advantage" in p),
        lambda r: r >= 1,
        min,
    )
    judge("a recursive cap (NonMarkovRetrace, RBIS) ≤ 5× Retrace", costs("NonMarkovRetrace", "RBIS"), lambda r: r <= 5)
    judge("Truncated IS ≤ 20× Retrace", costs("TruncatedIS"), lambda r: r <= 20)
    direct = of(records, "crossover")
    judge(
        "no rule slower than the vectorised direct kernel, at any T (up to 10 % of noise)",
        {f"{r['rule']}, T = {r['T']}, {r['setting']}": r["ratio"] for r in direct if "SHORT" not in r["rule"]},
        lambda r: r >= 0.9,
        min,
    )
    judge("time per step, T = 10⁴ to 10⁶: < 2×", grows(lambda rule: rule != "TruncatedIS"), lambda r: r < 2)
    judge(
        "the same for Truncated IS, a log factor of 1.5 aside: < 3×",
        grows(lambda rule: rule == "TruncatedIS"),
        lambda r: r < 2 * LOG_FACTOR,
    )
    many = {r["rule"]: r["extra_mb"] for r in of(records, "memory") if r["shape"][0] > 1}
    judge("extra memory does not grow with rows: [4096, 256] takes < 3 MB", many, lambda mb: mb < 3, unit=" MB")
    single = {r["rule"]: r["bytes_per_t"] for r in of(records, "memory", shape=[1, 1_000_000])}
    judge("extra memory is O(T): [1, 1000000] takes < 200 bytes a step", single, lambda b: b < 200, unit=" bytes")
    shares = {r["case"]: r["seconds"] / r["limit"] for r in of(records, "laboratory")}
    judge("the operator laboratory, each case within its limit", shares, lambda share: share <= 1, unit="× of it")
    taken = {r["rule"]: r["in_python_time"] for r in of(records, "trials")}
    judge("a learner: 1,000 trials of daley2023 in 0.27 s on one core", taken, lambda n: n >= 1000, min, " trials")
    whole = {f"{r['trials']:,} trials measured": r["whole"] for r in of(records, "sweep")}
    judge("the published sweep in under 180 s", whole, lambda s: s < 180, unit=" s")
    judge("a learner's step in episodes of 10³ to 10⁶ steps: < 2×", episode_factors(records), lambda f: f < 2)
    studies = {f"{r['units']} units": r for r in of(records, "framework")}
    costs_of = {where: r["net_alone"] / r["direct"] for where, r in studies.items()}
    judge("a study costs < 5 % over calling the learners", costs_of, lambda x: x < 1.05)
    gains = {where: r["net_alone"] / r["net_pair"] for where, r in studies.items()}
    judge("two processes ≥ 1.8× one", gains, lambda x: x >= 1.8, min)
    soon = {r["table"]: r["seconds"] for r in of(records, "first result")}
    judge("a study's first result < 3 s, warm", soon, lambda s: s < 3, unit=" s")
    summed = {f"{r['rows']:,} rows": r["read"] + r["summarised"] for r in of(records, "reading")}
    judge("10⁶ rows read and summarised in < 5 s", summed, lambda s: s < 5, unit=" s")
    for library, what, most in (
        ("PyTorch", "PyTorch tensors on the CPU", 10),
        ("JAX", "JAX arrays outside of jit", 40),
    ):
        more = {f"{r['rule']}, {shape(r)}": r["more_us"] for r in of(records, "tensors") if r["library"] == library}
        judge(f"{what}: < {most} µs beyond the NumPy call", more, lambda us, most=most: us < most, unit=" µs")
    swept = {f"{r['steps']:,} steps": r for r in of(records, "evaluation sweep")}
    judge(
        "a fitted sweep of 10⁷ logged steps, RBIS, < 10 s",
        {k: r["seconds"] for k, r in swept.items()},
        lambda s: s < 10,
        unit=" s",
    )
    judge("the same in < 2 GB", {k: r["peak_gb"] for k, r in swept.items()}, lambda gb: gb < 2, unit=" GB")
    ordered = {r["case"]: r for r in of(records, "logs") if r["case"] != "shuffled"}
    times = {case: r["ratio"] for case, r in ordered.items()}
    judge("reading 10⁷ steps of Parquet ≤ 1.8× polars' own scan of it", times, lambda x: x <= 1.8)
    beyond = {case: r["extra_mb"] - r["logs_mb"] for case, r in ordered.items()}
    judge("reading takes < 200 MB beyond the logs", beyond, lambda mb: mb < 200, unit=" MB")
    trained = {r["case"]: r["ours"] / r["theirs"] for r in of(records, "deep")}
    against = {case: x for case, x in trained.items() if "one-step" not in case}
    judge("deep agents: frames per second ≥ 3× the PyTorch example's", against, lambda x: x >= 3, min)
    judge(
        "a trace instead of one-step costs < 10 % of training throughput",
        {case: x for case, x in trained.items() if case not in against},
        lambda x: x > 0.9,
        min,
    )
    imports = {"": r["median"]} if (r := next(iter(of(records, "import")), None)) else {}
    heavy = [name for r in of(records, "import") for name in r["heavy"] if name in ("torch", "jax")]
    if heavy:
        rows.append(("`import offtrace` brings in neither torch nor jax", ", ".join(heavy), "**not met**"))
    judge(
        "`import offtrace`, with neither torch nor jax, < 0.7 s",
        imports,
        lambda s: s < 0.7,
        unit=" s",
    )
    return table("claim | worst case | verdict", rows)
