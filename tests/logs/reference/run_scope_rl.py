"""Fill in what SCOPE-RL estimates for the logs in scope_rl.json.

It wants other libraries than this project, so it has an environment of its own:

    uv venv scope && uv pip install --python scope/bin/python scope-rl==0.2.1
    scope/bin/python tests/evaluation/reference/run_scope_rl.py
"""

import importlib.metadata
import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("scope_rl.json")
NAMES = {
    "IS": "TrajectoryWiseImportanceSampling",
    "per-decision IS": "PerDecisionImportanceSampling",
    "weighted IS": "SelfNormalizedTIS",
    "weighted per-decision IS": "SelfNormalizedPDIS",
    "doubly robust": "DoublyRobust",
    "weighted doubly robust": "SelfNormalizedDR",
}


def main() -> None:
    """All estimators that both have, on episodes of equal length."""
    from scope_rl.ope.discrete import basic_estimators  # pyright: ignore[reportMissingImports]

    given = json.loads(FILE.read_text())
    state, action, reward, mu = (np.array(given[name]) for name in ("state", "action", "reward", "mu"))
    pi, q = np.array(given["pi"]), np.array(given["q"])
    arguments = {
        "step_per_trajectory": given["steps"],
        "action": action,
        "reward": reward,
        "pscore": mu,
        "evaluation_policy_action_dist": pi[state],
        "state_action_value_prediction": q[state],
        "gamma": given["gamma"],
    }
    found = {
        name: float(getattr(basic_estimators, cls)().estimate_policy_value(**arguments)) for name, cls in NAMES.items()
    }
    found_by = {"library": "scope-rl", "version": importlib.metadata.version("scope-rl")}
    FILE.write_text(json.dumps({**given, "by": found_by, "estimates": found}))


if __name__ == "__main__":
    main()
