"""The peers' own virtual environments, under `.bench/`: made on the first run, reused afterwards.

The peers do not go into the development environment: their dependencies are heavy and disagree with one another
(tianshou wants an older pandas). In each environment offtrace comes from `src/`, so both sides of a ratio run in one
process, on the same NumPy and Numba. A peer that cannot be installed does not stop the others: it is reported, with
the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".bench"

BASE = ["numpy==2.4.6", "numba==0.68.1", "scipy==1.17.1"]
TORCH = "torch==2.13.0"  # the CPU build, where pip's find-links offers it: another pin would fetch CUDA
PEERS = {
    "peers": {
        "rlax": ["jax==0.10.2", "rlax==0.1.9"],
        "torchrl": [TORCH, "torchrl==0.14.1", "tensordict==0.14.3"],
        "RLlib": [TORCH, "ray[rllib]==2.60.0"],
    },
    "tianshou": {"tianshou": [TORCH, "tianshou==2.0.1"]},
}
TESTED = ["rich", "jinja2", "pytest", "hypothesis"]
LIBRARIES: dict[str, dict[str, list[str]]] = {  # in which tests of an adapter run, and nothing is measured
    "with-sb3": {"sb3": [TORCH, "stable-baselines3==2.9.2", "tqdm", *TESTED]},
    "with-tianshou": {"tianshou": [TORCH, "tianshou==2.0.1", "pandas<3", *TESTED]},
    # verl alone: it asks for engines that need a GPU, and for older versions than its rollout correction does.
    "with-verl": {
        "what verl imports": [
            TORCH,
            "tensordict==0.10.0",
            "hydra-core",
            "codetiming",
            "pandas",
            "ray==2.60.0",
            "transformers",
            *TESTED,
        ],
        "verl": ["--no-deps", "verl==0.9.1"],
    },
    "with-trainers": {
        "what slime, prime-rl, SkyRL and AReaL import": [
            TORCH,
            "ray==2.60.0",
            "tensordict==0.10.0",
            "hydra-core",
            "loguru",
            "jaxtyping",
            "beartype",
            "transformers",
            "prime-pydantic-config>=0.4.3",
            "aiohttp",
            "cloudpathlib",
            "requests",
            "accelerate",
            "datasets",
            "wandb",
            "tomli_w",
            "aiofiles",
            "colorlog",
            "peft",
            "tenacity",
            "flask",
            "torchdata",
            "lark",
            "uvloop",
            "pillow",
            "einops",
            "openai",
            *TESTED,
        ]
    },
    "with-trl": {"trl": [TORCH, "trl==1.16.0", "transformers", "datasets", "accelerate", *TESTED]},
}


def variables() -> dict[str, str]:
    """The environment of every measured process: offtrace from src/, compiled code kept apart, bytecode written."""
    names = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NUMBA_CACHE_DIR": str(HOME / "numba")}
    names.pop("PYTHONDONTWRITEBYTECODE", None)  # without bytecode on disk every import would be slow
    return names


def ensure(name: str) -> tuple[Path, dict[str, str]]:
    """The Python of an environment, made if need be, and the peers that are not in it, each with the reason."""
    python = HOME / name / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    HOME.mkdir(exist_ok=True)
    peers, missing = (PEERS | LIBRARIES)[name], {}
    if not python.exists() and not installed("venv", "--python", sys.executable, str(HOME / name), log=name):
        return python, dict.fromkeys(peers, _why(name))
    for peer, packages in {"base": [], **peers}.items():
        stamp, wanted = HOME / name / f"{peer}.installed", "\n".join(BASE + packages)
        if stamp.exists() and stamp.read_text() == wanted:
            continue
        print(f"installing {peer} into .bench/{name} …", flush=True)
        if installed("pip", "install", "--python", str(python), *BASE, *packages, log=name):
            stamp.write_text(wanted)
        elif peer == "base":
            return python, dict.fromkeys(peers, _why(name))
        else:
            missing[peer] = _why(name)
    return python, missing


def _why(name: str) -> str:
    return f"not installed: its installation failed, see .bench/{name}.log"


def installed(*arguments: str, log: str) -> bool:
    """Whether uv did what was asked of it; what it said is in `.bench/LOG.log`."""
    names = variables()
    ask = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]  # uv does not read pip's settings
    links = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.split()
    if links:
        names.setdefault("UV_FIND_LINKS", ",".join(links))
    with (HOME / f"{log}.log").open("a") as file:
        return (
            subprocess.run([sys.executable, "-m", "uv", *arguments], env=names, stdout=file, stderr=file).returncode
            == 0
        )


if __name__ == "__main__":
    for environment in PEERS:
        print(environment, "lacks", ensure(environment)[1] or "nothing")
