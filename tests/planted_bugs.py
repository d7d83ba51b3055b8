"""Thirty bugs, planted one at a time, that the short suite must find: `.venv/bin/python tests/planted_bugs.py`.

Each is a small edit: lines that occur in a file exactly once, what they become, what that breaks, and tests that could see it.
All is done in a copy of the tree in a temporary folder. A bug is found if a test fails, which must pass without the bug.

    python tests/planted_bugs.py 3 7       bugs 3 and 7 only
    python tests/planted_bugs.py --whole   each bug against all of `make test`: hours

`tests/test_planted_bugs.py` requires that the lines are still there. When they change, plant the same bug in the new lines.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = "src/offtrace/"
PASSED = 0
"""The exit code of pytest if all tests passed."""


class Bug(NamedTuple):
    """An edit that breaks something."""

    file: str
    """In the package."""
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    """Files of tests, or single ones where a file takes long."""


class PlantedBugError(Exception):
    """A bug that cannot be planted, or tests that fail without it."""


BUGS = [
    # rules
    Bug(
        "traces/per_decision.py",
        "return lam, xp.minimum(rho, 1.0), INFINITY",
        "return 1.0, lam * xp.minimum(rho, lam), INFINITY",
        "Retrace clips ρ at λ, not at 1",
        ("tests/traces/test_rules.py", "tests/returns/test_battery.py", "src/offtrace/traces/per_decision.py"),
    ),
    Bug(
        "traces/trajectory_aware.py",
        "return lam, rho / xp.where(lam > 0, lam, 1.0), 1.0  # at λ = 0 nothing is left to divide",
        "return lam, rho / lam, 1.0",
        "RBIS divides by 0 at λ = 0",
        ("tests/traces", "tests/returns/test_battery.py"),
    ),
    Bug(
        "traces/trajectory_aware.py",
        '    aliases: ClassVar = ("truncated importance sampling", "tis")\n    recursive_condition: ClassVar = False',
        '    aliases: ClassVar = ("truncated importance sampling", "tis")\n    recursive_condition: ClassVar = True',
        "Truncated IS claims the recursive condition, so that certificates promise a contraction",
        ("tests/traces", "tests/operators/test_guarantees.py"),
    ),
    # kernels of NumPy
    Bug(
        "returns/numpy/recursive_cap.py",
        "            p = d * r\n            if not p > 0.0 and not (d > 0.0 and r > 0.0):  # p alone may have underflowed",
        "            p = d * r\n            if not p > 0.0:",
        "a recursive cap: a product of γ and ratio that underflows ends the trace",
        ("tests/returns/test_extremes.py", "tests/returns/test_battery.py"),
    ),
    Bug(
        "returns/numpy/recursive_cap.py",
        "leap[top] = leap[middle]",
        "leap[top] = middle",
        "a recursive cap above 1: a leap lands on another entry than its sums are of",
        ("tests/returns/test_extremes.py", "tests/returns/test_identities.py"),
    ),
    Bug(
        "returns/numpy/linear.py",
        "x[k0], x[k1], x[k2], x[k3] = x0, x1, x2, x3",
        "x[k0], x[k1], x[k2], x[k3] = x0, x1, x3, x2",
        "no cap: two of four rows change places",
        ("tests/returns/test_battery.py",),
    ),
    Bug(
        "returns/numpy/readout_cap.py",
        "s, e = f * sums[i + i], n if plain else scale[i] + n",
        "s, e = f * sums[i + i], n",
        "a cap at read-out: sums beyond the range of floats lose their power of two",
        ("tests/returns/test_readout.py", "tests/returns/test_extremes.py"),
    ),
    Bug(
        "returns/numpy/passes.py",
        "block.x[n], block.ratio[n] = block.after[0], block.ratio[0]",
        "block.x[n], block.ratio[n] = block.after[0], 0.0",
        "a long row without a cap: the trace is cut from one stretch to the next",
        ("tests/returns/test_identities.py", "tests/returns/test_extremes.py", "tests/returns/test_memory.py"),
    ),
    # PyTorch, JAX, Triton
    Bug(
        "returns/torch/operators.py",
        "e = linear(gradient.flip(1), c.roll(1, 1).flip(1)).flip(1)",
        "e = linear(gradient.flip(1), c.flip(1)).flip(1)",
        "PyTorch: the gradient of a per-decision trace uses coefficients of the step after",
        ("tests/returns/test_torch.py",),
    ),
    Bug(
        "returns/torch/operators.py",
        "moved = array.expand(info.batch_size, *array.shape) if dim is None else array.movedim(dim, 0)",
        "moved = array.expand(info.batch_size, *array.shape) if dim is None else array",
        "PyTorch: vmap over another dimension than the first",
        ("tests/returns/test_torch.py",),
    ),
    Bug(
        "returns/jax/kernels.py",
        "return w1 * w2, plus(x1, jnp.where(w1 == 0, 0.0, w1 * x2))",
        "return w1 * w2, plus(x1, w1 * x2)",
        "JAX on a GPU: an overflow passes a trace that is cut",
        (
            "tests/returns/test_jax.py::test_the_reverse_recursion_on_every_platform",
            "tests/returns/test_extremes_on_accelerators.py",
        ),
    ),
    Bug(
        "returns/jax/kernels.py",
        "return e, e * jnp.pad(out[:, 1:], ((0, 0), (0, 1)))",
        "return e, e * out",
        "JAX: the gradient by log π uses Δ of the same step",
        ("tests/returns/test_jax.py::test_gradients",),
    ),
    Bug(
        "returns/triton/sweep.py",
        "x = y if RECURSIVE else tl.where(joins, start, x)",
        "x = y",
        "Triton: a cap at read-out clips the product itself",
        ("tests/returns/test_triton.py",),
    ),
    # seams
    Bug(
        "returns/api.py",
        "    for form in reversed(forms):\n        outs = tuple(map(form.restored, outs))",
        "    for form in forms:\n        outs = tuple(map(form.restored, outs))",
        "results with `skip` in a layout [T, B], or with `stack`, are put back in the wrong order",
        ("tests/returns/test_skip.py", "tests/returns/test_distributions.py", "tests/returns/test_transforms.py"),
    ),
    Bug(
        "returns/api.py",
        '    if arrays.get("differentiable") and getattr(c, "requires_grad", False):',
        '    if getattr(c, "requires_grad", False):',
        "targets_from_c refuses a c with a gradient although none is asked for",
        ("tests/returns/test_torch.py", "tests/returns/test_calls.py"),
    ),
    Bug(
        "returns/weights/scan.py",
        "return decision & ~(before.one & (before.two == segment))",
        "return decision & ~before.one",
        "weights of packed rows on tensors run on from a row to the next",
        ("tests/returns/test_weights.py",),
    ),
    Bug(
        "returns/streaming/eligibility_vector.py",
        "clipped = discount * top.gradient + (0.0 if clipped is None else clipped)",
        "clipped = discount * top.gradient",
        "Stream: of several groups that are clipped at once only the last is kept",
        ("tests/returns/test_streaming.py",),
    ),
    # learners
    Bug(
        "learners/loop.py",
        "discount = settings.gamma if i > first else 0.0",
        "discount = settings.gamma",
        "replay: a trace runs on from one drawn sequence to the next",
        ("tests/learners/test_algorithm.py", "tests/learners/test_protocols.py"),
    ),
    Bug(
        "learners/methods/gradient.py",
        "add(v, -α_v * more, x.φ)",
        "add(v, α_v * more, x.φ)",
        "PGTD2: the half-step moves the second weights the wrong way",
        ("tests/learners/test_follow.py",),
    ),
    # operators and proofs
    Bug(
        "operators/variance.py",
        "return size + 2 * γ * (self.Pδ[0] @ first - self.Pδ[1] @ first) - mean**2, size",
        "return size + γ * (self.Pδ[0] @ first - self.Pδ[1] @ first) - mean**2, size",
        "the exact variance lacks half of the covariance of δ and what follows",
        ("tests/operators/test_exact.py", "tests/operators/test_theory.py"),
    ),
    Bug(
        "operators/check_proof.py",
        "require(w[z] > 0 and sum(c * w[o] for o, c in steps) < w[z],",
        "require(sum(c * w[o] for o, c in steps) < w[z],",
        "the checker of proofs takes a negative witness for a sum that diverges",
        ("tests/operators/test_forged_proofs.py", "tests/operators/test_proofs.py"),
    ),
    Bug(
        "operators/check_proof.py",
        "onward = read if x.recursive else free",
        "onward = read",
        "the checker clips a trace whose cap acts at read-out only",
        ("tests/operators/test_proofs.py",),
    ),
    # logs
    Bug(
        "logs/importance.py",
        "moved -= np.where(w.log_whole > -np.inf, at_rest, 0.0)",
        "moved -= 0.0 * at_rest",
        "weighted per-decision IS: an episode that is over has no part in the error of later steps",
        ("tests/logs/test_standard.py", "tests/logs/test_bounds.py"),
    ),
    Bug(
        "logs/reading/conversion.py",
        "number = np.lexsort(keys[::-1])  # polars takes six times as long to sort by two columns",
        "number = np.lexsort(keys)",
        "logs that are not sorted are sorted by step before episode",
        ("tests/logs/test_read.py",),
    ),
    # losses of policies
    Bug(
        "policy/shapes.py",
        "return Surrogate(value, xp.where(out, 0.0, plain), out)",
        "return Surrogate(value, plain, out)",
        "PPO: a decision beyond the clip keeps its gradient",
        ("tests/policy/test_losses.py", "tests/policy/test_named_losses.py"),
    ),
    Bug(
        "policy/grpo_advantages.py",
        "spread = (square.sum(-1) / xp.where(count > 1, count - 1, 1.0)) ** 0.5",
        "spread = (square.sum(-1) / count) ** 0.5",
        "GRPO: the standard deviation of the population, not of a sample",
        ("tests/policy", "src/offtrace/policy/grpo_advantages.py"),
    ),
    # deep agents
    Bug(
        "deep/replay_memory.py",
        "truncated = memory.truncated.at[e, last].max(~ended & ~memory.terminated[e, last])",
        "truncated = memory.truncated",
        "a deep agent's memory: credit passes from an episode that was cut to the next",
        ("tests/deep/test_replay_memory.py",),
    ),
    # studies and pages
    Bug(
        "studies/store.py",
        "if number in left and isinstance(content, bytes) and _checksum(content) == left[number].checksum:",
        "if number in left and isinstance(content, bytes):",
        "records of a study whose numbers are damaged are read as if they were right",
        ("tests/studies/test_records.py",),
    ),
    Bug(
        "reports/study/resampling.py",
        "below = np.cumsum(counts, axis=1) - counts / 2  # how many y's are smaller than a value; equal ones count half",
        "below = np.cumsum(counts, axis=1)",
        "probability of improvement: ties count as wins",
        ("tests/reports/test_statistics.py",),
    ),
    Bug(
        "reports/explorer/templates/scripts/conditions.js",
        "const one = { pair, x: s.rule.recursive ? read : x, decay,",
        "const one = { pair, x: read, decay,",
        "explorer: the condition of a rule with a cap at read-out is decided for another rule",
        ("tests/reports/test_explorer_numbers.py",),
    ),
]


def planted(bug: Bug, root: Path) -> str:
    """The text of its file with the bug; an error unless the old lines occur exactly once."""
    text = (root / PACKAGE / bug.file).read_text(encoding="utf-8")
    if text.count(bug.old) != 1:
        raise PlantedBugError(
            f"{bug.file} has {text.count(bug.old)} times, not once: {bug.old!r}. Plant the bug ({bug.breaks}) anew"
        )
    return text.replace(bug.old, bug.new)


def copy_of_tree(folder: Path) -> Path:
    """All files that git knows, and new ones that it does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def first_failure(tree: Path, tests: Sequence[str], compiled: Path) -> str | None:
    """The first of these tests that fails on the copy, or None; `compiled` is where Numba keeps its code."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "NUMBA_CACHE_DIR": str(compiled),
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "jax"),
        "CI": "1",  # Hypothesis draws the same examples each time
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+?\.\w+(?:::\w+)*)", done.stdout, re.MULTILINE)
    if done.returncode == PASSED:
        return None
    if not failed:
        raise PlantedBugError(f"pytest could not run {' '.join(tests)}:\n{done.stdout}{done.stderr}")
    return failed[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", type=int, nargs="*", help="which bugs, from 1 on; all if left out")
    parser.add_argument("--whole", action="store_true", help="run the whole short suite for each bug")
    given = parser.parse_args()
    chosen = given.numbers or range(1, len(BUGS) + 1)
    found_by: dict[str, None] = {}
    missed = 0
    with tempfile.TemporaryDirectory(prefix="planted-bugs-") as folder:
        tree, compiled = copy_of_tree(Path(folder) / "tree"), Path(folder) / "numba"
        for i in chosen:
            bug, begun = BUGS[i - 1], time.monotonic()
            path = tree / PACKAGE / bug.file
            original = shutil.copy2(
                path, Path(folder) / "original"
            )  # with its time, by which Python and Numba know it again
            path.write_text(planted(bug, tree), encoding="utf-8")
            test = first_failure(tree, ("tests",) if given.whole else bug.tests, compiled)
            shutil.copy2(original, path)
            seconds = time.monotonic() - begun
            print(f"{'MISSED' if test is None else 'found '} {i:2} {bug.file}: {bug.breaks}", flush=True)
            print(f"          {'' if test is None else f'by {test}, '}{seconds:.0f} s", flush=True)
            missed += test is None
            found_by |= {test: None} if test else {}
        if found_by and (test := first_failure(tree, [*found_by], compiled)):
            raise PlantedBugError(f"{test} fails without a bug, too")
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
