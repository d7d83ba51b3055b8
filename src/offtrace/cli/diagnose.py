"""`offtrace diagnose`: what is wrong with the log-probabilities of a batch that a trainer has saved."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from tyro.conf import Positional, UseAppendAction, arg

from offtrace._shared.extras import from_extra
from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.whole_files import read_npz
from offtrace.cli.options import Output
from offtrace.cli.rule_options import named_or_in_file, parameters

NAMES = ("log_pi", "log_mu", "mask", "segment", "cu_seqlens")
Level = Literal["token", "prefix", "suffix", "sequence", "geometric"]
Rule = Annotated[Mapping[str, Any], arg(name="", constructor_factory=lambda: parameters(default_lam=1.0))]
WIDTH, HEIGHT = 60, 8
"""Of the picture, in letters."""


def diagnose(
    file: Positional[Path],
    *,
    trace: Annotated[str, arg(metavar="NAME")] = "importance-sampling",
    rule: Rule = {},  # noqa: B006 (never changed)
    level: Level = "prefix",
    columns: Annotated[tuple[tuple[str, ...], ...], UseAppendAction, arg(metavar="NAME=THEIRS […]")] = (),
    output: Output = None,
) -> int:
    """How far π and μ are apart in a saved batch, what is wrong with its log-probabilities, and what weights make of it.

    Example: `offtrace diagnose batch.npz --columns log_pi=old_log_probs log_mu=rollout_log_probs --output ess.png`

    Args:
        file: .npz, .safetensors or .parquet, with log_pi, log_mu, mask where there is one, and segment or cu_seqlens where rows
            are packed: [T], [B, T], or lists of numbers in a column of Parquet
        trace: the rule of the weights
        level: where the product of ratios is taken
        columns: what the arrays are called in the file
        output: also draw the effective sample size by position into this picture
    """
    from offtrace.returns.weights.diagnose import diagnose_weights

    given = arrays_of(file, dict(_renamed(text) for texts in columns for text in texts))
    diagnosis = diagnose_weights(named_or_in_file(trace, rule, lam=1.0), **given, level=level)
    print(diagnosis)
    if not diagnosis.findings:
        print("No mistake is seen in the log-probabilities.")
    share = diagnosis.ess_by_position
    print(f"\nEffective share of sequences, by position 1 to {len(share)}:\n{picture(share)}")
    if output is not None:
        draw(share, output)
        print(f"wrote {output}", file=sys.stderr)
    return 0


def _renamed(text: str) -> tuple[str, str]:
    ours, equals, theirs = text.partition("=")
    if not equals or ours not in NAMES:
        raise ValueError(
            f"--columns {text!r} must be NAME=THEIRS, where NAME is one of {', '.join(NAMES)}{did_you_mean(ours, NAMES)}"
        )
    return ours, theirs


def arrays_of(file: Path, renamed: Mapping[str, str]) -> dict[str, Any]:
    """The arrays of a batch by our names."""
    if not file.exists():
        raise FileNotFoundError(2, "No such file or directory", str(file))
    there = _read(file)
    given: dict[str, Any] = {}
    for ours in NAMES:
        theirs = renamed.get(ours, ours)
        if theirs in there:
            given[ours] = there[theirs]
        elif ours in renamed or ours in ("log_pi", "log_mu"):
            raise ValueError(
                f"{file} has no {theirs!r}{did_you_mean(theirs, list(there))}. It has {', '.join(there)}: "
                f"say which it is with --columns {ours}=…"
            )
    return given


def _read(file: Path) -> dict[str, Any]:
    """All arrays of a file by their names; where a Parquet file has lists, its rows are these alone."""
    if file.suffix == ".npz":
        return read_npz(file)
    if file.suffix == ".safetensors":
        with from_extra("trainers", f"{file.name} needs the package"):
            from safetensors.numpy import load_file
        return load_file(file)
    if file.suffix == ".parquet":
        with from_extra("logs", f"{file.name} needs the package"):
            import polars as pl
        frame = pl.read_parquet(file)
        lists = [name for name in frame.columns if frame[name].dtype == pl.List]
        rows = {name: [row.to_numpy() for row in frame[name]] for name in lists}
        return rows or {name: frame[name].to_numpy() for name in frame.columns}
    raise ValueError(f"{file} must end in .npz, .safetensors or .parquet")


def picture(share: np.ndarray) -> str:
    """The shares as columns of letters, at most `WIDTH` of them; where nothing is known there is none."""
    at = np.unique(np.linspace(0, len(share) - 1, min(WIDTH, len(share))).round().astype(int))
    heights = np.nan_to_num(share[at], nan=0.0) * HEIGHT
    lines = [
        f"{(level + 1) / HEIGHT:4.0%} "
        + "".join("█" if h > level + 0.5 else "▄" if h > level else " " for h in heights)
        for level in reversed(range(HEIGHT))
    ]
    return "\n".join([*lines, f"     {'1':<{max(1, len(at) - len(str(len(share))))}}{len(share)}"])


def draw(share: np.ndarray, file: Path) -> None:
    """A picture of the shares."""
    from offtrace import figures

    name, none = "effective share of sequences", np.full(len(share), np.nan)
    lines = [("", [(name, np.arange(1, len(share) + 1), share, none, none)])]
    figures.band_panels(lines, xlabel="decision of the sequence", ylabel="", looks={name: 0}).savefig(file)
