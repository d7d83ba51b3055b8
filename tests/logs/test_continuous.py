"""Actions that are real numbers: densities, kernels for a deterministic target, and what is said where something is lacking."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pytest

import offtrace as ot
from logs import by_formula, linear_systems
from logs.linear_systems import BEHAVIOR, GAMMA, TARGET, density, log_density, value
from offtrace import cli
from offtrace.logs import (
    Columns,
    Density,
    Deterministic,
    Features,
    Logs,
    LogsError,
    compare,
    describe,
    evaluate,
    read,
    sweep,
)
from offtrace.reports.logs import evaluation_page

QUADRATIC = Features(of_pairs=linear_systems.quadratic)
BY_RATIOS = {
    "per-decision IS": by_formula.per_decision,
    "weighted per-decision IS": by_formula.weighted_per_decision,
    "IS": by_formula.ordinary,
    "weighted IS": by_formula.weighted,
}
ARGUMENTS: dict[str, Any] = {"trace": ot.RBIS(lam=0.9), "gamma": GAMMA, "resamples": 100, "model": QUADRATIC}


def failed(row: Any) -> list[str]:
    return [check.kind for check in row.failed]


# --- densities --------------------------------------------------------------------------------------------------------


def test_estimators_by_ratios_equal_their_formulas_with_densities_above_one() -> None:
    logs = linear_systems.logs(60, 4, 0.2)
    assert logs.log_mu is not None
    assert logs.log_mu.max() > 0
    pi = density(0.9 * BEHAVIOR, 0.18)
    result = evaluate(logs, pi, **ARGUMENTS)
    episodes = by_formula.episodes_of(logs, log_density(0.9 * BEHAVIOR, 0.18, logs.state, logs.action))
    for name, formula in BY_RATIOS.items():
        assert result[name].estimate == pytest.approx(formula(episodes, GAMMA), rel=1e-10), name
    assert "actions   2 real numbers" in str(describe(logs, pi))
    assert "lies outside the range of logged actions" in evaluation_page.html(result)


def test_intervals_hold_the_closed_form() -> None:
    """Four steps and the end, by weights; and for ever, cut after ten steps, by fits too."""
    pi = density(TARGET, 0.5)
    short = evaluate(linear_systems.logs(500, 4, 0.6), pi, **ARGUMENTS, estimators=[*BY_RATIOS])
    for row in short.estimates:
        assert row.low < value(TARGET, 0.5, 4) < row.high, row.title
    result = evaluate(linear_systems.logs(300, 10, 0.6, cut=True), pi, **ARGUMENTS)
    for row in result.estimates:
        assert row.low < value(TARGET, 0.5) < row.high, row.title
    assert not {"V(μ)", "settled", "contradicted"} & set(failed(result["fitted"]))
    assert result["fitted"].high - result["fitted"].low < 2.0
    s, a = np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]])
    assert result.q(s, a).shape == (1,)


def test_what_the_density_is_given_as_does_not_matter(tmp_path: Path) -> None:
    """A function, an array, and a column: one answer. Without draws there is no model, and what is cut is left out, and said."""
    logs = linear_systems.logs(40, 4, 0.5, cut=True)
    log_pi = log_density(TARGET, 0.5, logs.state, logs.action)
    function = Density(lambda s, a: log_density(TARGET, 0.5, s, a))
    options = {**ARGUMENTS, "estimators": ["per-decision IS", "weighted IS"]}
    by_function = evaluate(logs, function, **options)
    written = frame_of(logs).with_columns(lp=pl.Series(log_pi))
    columns = replace(COLUMNS, log_pi="lp")
    by_column = evaluate(read(written, columns=columns), None, **options)
    shuffled = evaluate(read(written.sample(fraction=1.0, shuffle=True, seed=0), columns=columns), None, **options)
    for other in (by_column, shuffled):
        assert other["weighted IS"].estimate == pytest.approx(by_function["weighted IS"].estimate, rel=1e-12)
    row = by_function["weighted IS"]
    episodes = by_formula.episodes_of(replace(logs, terminated=logs.truncated), log_pi)
    assert row.estimate == pytest.approx(by_formula.weighted(episodes, GAMMA), rel=1e-10)
    assert "left out" in failed(row)
    assert next(check.number for check in row.failed if check.kind == "left out") == pytest.approx(GAMMA**4)
    assert np.isnan(row.low)
    assert any("left out, since the target policy does not say" in w for w in by_function.warnings)
    with pytest.raises(
        ValueError, match=r"'doubly robust' cannot be computed: it needs Σ_a .* Density\(log_pi, sample=…\)"
    ):
        evaluate(logs, function, **{**ARGUMENTS, "estimators": ["doubly robust"]})
    with pytest.raises(ValueError, match="there is no Q of this result"):
        by_function.q(logs.state, logs.action)
    drawn = Density(None, sample=density(TARGET, 0.5).sample)
    assert evaluate(read(written, columns=columns), drawn, **options)["weighted IS"].estimate == pytest.approx(
        evaluate(logs, density(TARGET, 0.5), **options)["weighted IS"].estimate, rel=1e-9
    )
    with pytest.raises(ValueError, match=r"the logs have no column log_pi"):
        evaluate(logs, drawn, **options)


def test_ratios_of_one_give_what_was_observed() -> None:
    """The target is μ: every estimator by weights gives the mean return."""
    logs = linear_systems.logs(50, 4, 0.3)
    result = evaluate(replace(logs, log_pi=logs.log_mu), None, **{**ARGUMENTS, "estimators": [*BY_RATIOS]})
    for row in result.estimates:
        assert row.estimate == pytest.approx(result.observed.estimate, rel=1e-12)


def test_comparing() -> None:
    logs = linear_systems.logs(60, 5, 0.5, cut=True)
    targets = {"some": density(TARGET, 0.5), "none": Deterministic(lambda s: 0 * s)}
    assert len(compare(logs, targets, **ARGUMENTS).results) == 2


# --- a deterministic target -------------------------------------------------------------------------------------------


def test_a_kernel_is_noise_on_the_target_and_its_bias_is_said() -> None:
    """K_h / μ are the ratios of N(π(s), h²), whose value is known: weights estimate that; fits estimate π itself."""
    logs, h = linear_systems.logs(3000, 2, 0.6), 0.6
    act = Deterministic(lambda s: s @ TARGET.T, bandwidth=h)
    result = evaluate(logs, act, **{**ARGUMENTS, "estimators": [*BY_RATIOS, "doubly robust"]})
    episodes = by_formula.episodes_of(logs, log_density(TARGET, h, logs.state, logs.action))
    for name, formula in BY_RATIOS.items():
        assert result[name].estimate == pytest.approx(formula(episodes, GAMMA), rel=1e-10), name
    noisy, exact = value(TARGET, h, 2), value(TARGET, 0.0, 2)
    of = {row.estimator: next(c.number for c in row.checks if c.kind == "kernel") for row in result.estimates}
    assert of["weighted per-decision IS"] == pytest.approx(noisy - exact, abs=0.1)
    assert noisy - exact < -0.2
    assert abs(of["doubly robust"]) < 0.1  # TD errors of the right Q have the mean 0, whatever they weigh
    for row in result.estimates:
        assert row.low < exact < row.high or "kernel" in [check.kind for check in row.failed], row.title
    assert "a kernel of bandwidth 0.6, 0.6" in str(result)
    assert result.conservative is not None
    assert "the noise of a kernel of bandwidth" in result.conservative.assumes
    fitted = evaluate(linear_systems.logs(300, 8, 0.6, cut=True), act, **{**ARGUMENTS, "estimators": ["fitted"]})[
        "fitted"
    ]
    assert fitted.low < value(TARGET, 0.0) < fitted.high
    assert fitted.estimate > value(TARGET, h)
    assert "kernel" not in [check.kind for check in fitted.checks]


def test_the_bandwidth_is_chosen_by_the_rule() -> None:
    """Over h·σ: σ is how far logged actions are from the target's, and more episodes give a smaller h."""
    act, chosen = Deterministic(lambda s: s @ BEHAVIOR.T), []
    for episodes in (50, 3000):
        logs = linear_systems.logs(episodes, 2, 0.6)
        result = evaluate(logs, act, **{**ARGUMENTS, "estimators": ["weighted IS"]})
        h: Any = vars(result.policy)["bandwidth"]
        σ = np.sqrt(((logs.action - logs.state @ BEHAVIOR.T) ** 2).mean(axis=0))
        i = -2 * np.log2(h / σ)
        np.testing.assert_allclose(i, np.full(2, round(float(i[0]))), atol=1e-9)
        chosen.append(float(i[0]))
    assert chosen[0] < chosen[1]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_errors_say_what_is_lacking_and_what_to_do() -> None:
    logs, pi = linear_systems.logs(20, 3, 0.5), density(TARGET, 0.5)
    for rule in (ot.TreeBackup(lam=0.9), ot.QSigma(sigma=0.5)):
        with pytest.raises(
            ValueError, match=r"reads π or μ itself, and these are densities .* Take a trace that reads the ratio"
        ):
            evaluate(logs, pi, **{**ARGUMENTS, "trace": rule})
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (lambda s: s, {}, r"must be Density\(log_pi\) or Deterministic\(act\).*got function"),
        (None, {}, r"or None if the logs have a column log_pi"),
        (Density(lambda s, a: a), {}, r"log densities of shape \(60, 2\) for 60 steps"),
        (Density(lambda s, a: a[:, 0] * np.nan), {}, "NaN or \\+∞, at step 0"),
        (Density(np.zeros(3)), {}, r"log_pi must be a function"),  # pyright: ignore[reportArgumentType]
        (Density(lambda s, a: np.full(len(s), -np.inf)), {}, "density 0 at all 60 logged actions"),
        (Deterministic(lambda s: s[:, 0]), {}, r"actions of shape \(60,\) for 60 states: they must be \[n, k\] = \(60, 2\)"),
        (Deterministic(lambda s: s, bandwidth=-1.0), {}, "bandwidth must be a number above 0, or one for each of the 2"),
        (pi, {"model": Features(lambda s: s)}, r"give features of both, Features\(of_pairs=φ\)"),
        (pi, {"model": "table"}, "needs states and actions that are ids"),
        (pi, {"behavior": "estimate"}, "is not estimated: declare its column"),
    ]  # fmt: skip
    for target, options, words in cases:
        with pytest.raises((ValueError, TypeError), match=words):
            evaluate(logs, target, **(ARGUMENTS | options))
    without = replace(logs, log_mu=None)
    with pytest.raises(ValueError, match="is not estimated"):
        evaluate(without, pi, **ARGUMENTS)
    with pytest.raises(ValueError, match="needs the density μ"):
        evaluate(without, pi, **ARGUMENTS, behavior=False)
    known = evaluate(without, pi, **ARGUMENTS, behavior=density(BEHAVIOR, 0.5))
    assert known["IS"].estimate == pytest.approx(evaluate(logs, pi, **ARGUMENTS)["IS"].estimate, rel=1e-12)
    only = evaluate(without, pi, **{**ARGUMENTS, "trace": ot.QLambda(lam=0.5)}, behavior=False)
    assert [row.estimator for row in only.estimates] == ["fitted", "direct method"]


@pytest.mark.parametrize("model", ["linear", None])
def test_each_model_takes_real_actions(model: str | None) -> None:
    logs = linear_systems.logs(40, 5, 0.5, cut=True)
    result = evaluate(
        logs, Deterministic(lambda s: s @ TARGET.T), **{**ARGUMENTS, "model": model, "estimators": ["fitted"]}
    )
    assert np.isfinite(result["fitted"].estimate)


def test_ids_of_states_with_real_actions() -> None:
    """Two states, reward −(a − s)²: Fourier features of (s, a) for Q."""
    rng, E = np.random.default_rng(0), 200
    state, action = rng.integers(0, 2, E), rng.normal(0.5, 0.5, (E, 1))
    logs = Logs(
        starts=np.arange(E + 1), state=state, next_state=state, action=action, reward=-((action[:, 0] - state) ** 2),
        terminated=np.ones(E, bool), truncated=np.zeros(E, bool), states=2, actions=0,
        log_mu=-0.5 * ((action[:, 0] - 0.5) / 0.5) ** 2 - np.log(0.5) - 0.5 * np.log(2 * np.pi),
    )  # fmt: skip
    result = evaluate(logs, Deterministic(lambda s: s[:, None] * 1.0), trace=ot.OneStep(), gamma=0.9)
    assert result["direct method"].estimate == pytest.approx(0.0, abs=1e-3)  # the action is right


# --- reading ----------------------------------------------------------------------------------------------------------

COLUMNS = Columns(state=("x", "y"), next_state=("nx", "ny"), action=("u", "v"), log_mu="lm")


def frame_of(logs: Logs) -> pl.DataFrame:
    """The rows of logs."""
    lengths = np.diff(logs.starts)
    given = {
        "episode": np.repeat(np.arange(logs.episodes), lengths),
        "step": np.concatenate([*map(np.arange, lengths)]),
    }
    for names, a in (("x y", logs.state), ("nx ny", logs.next_state), ("u v", logs.action)):
        given |= dict(zip(names.split(), np.asarray(a).T, strict=True))
    more = {"reward": logs.reward, "terminated": logs.terminated, "truncated": logs.truncated, "lm": logs.log_mu}
    return pl.DataFrame({name: np.ascontiguousarray(a) for name, a in (given | more).items()})


def test_actions_are_read_from_columns_and_lists(tmp_path: Path) -> None:
    logs = linear_systems.logs(5, 3, 0.1, cut=True)
    assert logs.log_mu is not None
    assert logs.log_mu.max() > 0
    frame = frame_of(logs)
    frame.write_csv(tmp_path / "a.csv")
    lists = frame.with_columns(act=pl.concat_list("u", "v"), mu=pl.col("lm").exp())
    lists.write_parquet(tmp_path / "a.parquet")
    sources = [
        (tmp_path / "a.csv", COLUMNS),
        (frame.reverse(), COLUMNS),
        (tmp_path / "a.parquet", replace(COLUMNS, action="act")),
        (lists, replace(COLUMNS, action="act", log_mu=None, mu="mu")),
        (lists, replace(COLUMNS, action="act", next_state=None)),
    ]
    for source, columns in sources:
        found = read(source, columns=columns)
        keep = slice(None) if columns.next_state else logs.truncated == 0
        np.testing.assert_array_equal(found.action, logs.action[keep])
        np.testing.assert_allclose(found.log_mu, logs.log_mu[keep], rtol=1e-12)  # pyright: ignore
        assert (found.actions, found.continuous, found.action_names) == (0, True, ())
    one = read(frame, columns=replace(COLUMNS, action="u"), actions="continuous")
    np.testing.assert_array_equal(one.action, logs.action[:, :1])


def test_what_is_declared_decides_whether_a_density_may_exceed_one() -> None:
    frame = frame_of(linear_systems.logs(5, 3, 0.1))
    whole = frame.with_columns(u=pl.lit(1))
    with pytest.raises(LogsError, match="log_mu is missing, −∞ or above 0"):
        read(whole, columns=replace(COLUMNS, action="u"))
    with pytest.raises(LogsError, match=r'not a whole number \(if actions are real numbers: actions="continuous"\)'):
        read(frame, columns=replace(COLUMNS, action="u"))
    bad = frame.with_columns(u=pl.when(pl.col("step") == 1).then(None).otherwise("u"), lm=pl.lit(float("-inf")))
    with pytest.raises(LogsError, match=r"(?s)action is missing, NaN or infinite.*log_mu is missing or infinite"):
        read(bad, columns=COLUMNS)
    with pytest.raises(TypeError, match=r"holds real numbers, but actions=3 are ids: leave out actions=…"):
        read(frame, columns=COLUMNS, actions=3)
    with pytest.raises(ValueError, match=r'but actions are ids.*say actions="continuous"'):
        read(whole.with_columns(lm=pl.lit(-1.0), p=pl.lit(0.0)), columns=replace(COLUMNS, action="u", log_pi="p"))
    with pytest.raises(TypeError, match='or "continuous" for real numbers, got'):
        read(frame, columns=COLUMNS, actions="continous")


def test_sweeps_need_ids(tmp_path: Path) -> None:
    frame_of(linear_systems.logs(5, 3, 0.5)).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(TypeError, match=r"A policy that is a table \[S, A\] needs actions that are ids"):
        sweep(tmp_path, np.ones((1, 1)), trace=ot.RBIS(lam=0.9), gamma=0.9, columns=COLUMNS)


# --- the command line, and Gymnasium ----------------------------------------------------------------------------------


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = linear_systems.logs(40, 3, 0.5)
    log_pi = log_density(TARGET, 0.5, logs.state, logs.action)
    frame_of(logs).with_columns(lp=pl.Series(log_pi)).write_csv(tmp_path / "a.csv")
    (tmp_path / "policy.py").write_text(
        "import numpy as np\nfrom offtrace.logs import Density, Deterministic\n"
        f"K = np.array({TARGET.tolist()})\nact = Deterministic(lambda s: s @ K.T, bandwidth=0.4)\n"
    )
    np.savez(tmp_path / "table.npz", probabilities=np.ones((1, 1)))
    columns = ["--columns", "state=x,y", "next_state=nx,ny", "action=u,v", "log_mu=lm"]

    def run(*given: str, status: int = 0, command: str = "evaluate") -> str:
        typed = [
            "logs",
            command,
            str(tmp_path / "a.csv"),
            *(["--gamma", "0.9"] if command == "evaluate" else []),
            *given,
        ]
        assert cli.main(typed) == status
        both = capsys.readouterr()
        return both.err if status else both.out

    found = json.loads(run(*columns, "log_pi=lp", "--estimators", "IS", "--json"))
    episodes = by_formula.episodes_of(logs, log_pi)
    assert found["value"] == pytest.approx(by_formula.ordinary(episodes, 0.9), rel=1e-9)
    act = run(*columns, "--policy", f"{tmp_path}/policy.py:act", "--estimators", "weighted IS", "direct method")
    assert "π by a kernel of bandwidth 0.4, 0.4" in act
    assert "weights   worth" in run(*columns, "log_pi=lp", command="describe")
    assert "--policy is missing" in run(*columns, status=2)
    assert "leave out one of them" in run(*columns, "log_pi=lp", "--policy", f"{tmp_path}/policy.py:act", status=2)
    one = ["--columns", "state=x,y", "next_state=nx,ny", "action=u", "log_mu=lm"]
    assert "--actions continuous" in run(*one, "--policy", f"{tmp_path}/policy.py:act", status=2)
    table = run(*columns, "--actions", "continuous", "--policy", f"{tmp_path}/table.npz", status=2)
    assert "--actions continuous says that actions are real numbers, but the policy is a table" in table


def test_pendulum() -> None:
    """Noisy torque against the swing, read from Gymnasium's episodes: at π = μ weights give what was observed."""
    env, rng, σ = gym.make("Pendulum-v1", max_episode_steps=20), np.random.default_rng(0), 0.5
    episodes = []
    for e in range(30):
        seen, actions, rewards, infos = [env.reset(seed=e)[0]], [], [], [np.nan]
        for _ in range(20):
            noise = rng.normal()
            actions.append([-0.5 * seen[-1][2] + σ * noise])
            observation, reward, *_ = env.step(np.array(actions[-1], np.float32))
            seen.append(observation)
            rewards.append(reward)
            infos.append(-0.5 * noise**2 - np.log(σ) - 0.5 * np.log(2 * np.pi))
        ends = np.arange(20) == 19
        episodes.append(
            {"observations": seen, "actions": np.array(actions), "rewards": rewards, "infos": {"log_mu": infos},
             "terminations": 0 * ends, "truncations": ends}
        )  # fmt: skip
    logs = read(episodes, columns=Columns(log_mu="log_mu"))
    assert (logs.action.shape, logs.state.shape, logs.continuous) == ((600, 1), (600, 3), True)

    def log_pi(s: np.ndarray, a: np.ndarray) -> np.ndarray:
        return -0.5 * ((a[:, 0] + 0.5 * s[:, 2]) / σ) ** 2 - np.log(σ) - 0.5 * np.log(2 * np.pi)

    same = Density(log_pi, lambda s, rng: -0.5 * s[:, 2] + σ * rng.normal(size=len(s)))
    result = evaluate(logs, same, trace=ot.Retrace(lam=0.9), gamma=0.9, resamples=50)
    assert logs.log_mu is not None
    np.testing.assert_allclose(log_pi(logs.state, logs.action), logs.log_mu, atol=1e-5)  # float32 observations
    for row in result.estimates:
        assert row.low - 0.5 < result.observed.estimate < row.high + 0.5, row.title
    assert result["IS"].estimate == pytest.approx(result.observed.estimate, rel=0.03)
