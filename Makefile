# make run   the main job: the bifurcation study in about a minute, and its page
# make test  formatting, lint, layers, tests and docs, whose tutorials are run
# make test-all  the same with all rules on every backend, where `make test` has two for each kind of kernel, with Ray and with agents that learn
# make quick the inner loop: lint, and the tests of traces, trajectories and kernels
# make check formatting, lint, layers and types
# make bench the claims about speed, as ratios against real peers, into benchmarks/RESULTS.md
# make peers the tests of rlax, torchrl, Stable-Baselines3, tianshou and verl with ours inside; counts into docs/peers.inc
# make dist  wheel and sdist, installed and tried where nothing else is
# make oldest the oldest versions of Python and of our dependencies that we claim, really tried
# make docs  the documentation, into docs/_build/html

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-all quick check lint types docs bench peers dist oldest clean

run: $(VENV)/ready
	$(BIN)/offtrace study run bifurcation --subset minute --out out
	$(BIN)/offtrace study report bifurcation --subset minute --out out --no-open

# Types are left to `make check`: tests run every line, and pyright takes as long as a quarter of them. CI runs both.
test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m ""

quick: lint
	$(BIN)/python -m pytest -n 2 -q tests/traces tests/mdps tests/test_trajectory.py tests/test_rows.py tests/returns/test_identities.py

check: lint types

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

# Room for what lives shortly: Node then collects garbage less often, which is a twentieth of the time.
PYRIGHT := NODE_OPTIONS=--max-semi-space-size=64 $(BIN)/pyright

types: $(VENV)/ready
	$(PYRIGHT)

docs: $(VENV)/ready
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html

bench: $(VENV)/ready
	$(BIN)/python benchmarks/run.py

peers: $(VENV)/ready
	$(BIN)/python benchmarks/peer_suites.py

dist: $(VENV)/ready
	$(BIN)/python benchmarks/installed.py

oldest: $(VENV)/ready
	$(BIN)/python benchmarks/oldest.py

# uv installs in seconds; where it cannot be had, pip does the same.
$(VENV)/ready: requirements-dev.txt pyproject.toml
	@echo "setting up $(VENV) (once) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv || true
	@export UV_FIND_LINKS="$$($(BIN)/python -m pip config get global.find-links 2>/dev/null)"; \
	if $(BIN)/python -m uv --version >/dev/null 2>&1; \
	then $(BIN)/python -m uv pip install --quiet --python $(BIN)/python -r requirements-dev.txt && \
	     $(BIN)/python -m uv pip install --quiet --python $(BIN)/python --no-build-isolation --no-deps -e .; \
	else $(BIN)/python -m pip install --quiet -r requirements-dev.txt && \
	     $(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e .; fi
	@touch $@

clean:
	rm -rf $(VENV) .bench docs/_build out .pytest_cache .ruff_cache .hypothesis
