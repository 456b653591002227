# rehome: `make run` does the main job, `make test` passes the tests; `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
DATA ?= .rehome
KEEP ?=
TESTS ?= tests
JOBS ?= 3
MINUTES ?= 30
SEED ?=
CONTAINERS ?=

.PHONY: help setup setup-dev run check test test-all conformance torture stack bench format clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "rehome needs Python 3.11 or later, and none was found on PATH: install python3.11 (Debian: apt install python3 python3-venv) and run make again." >&2; exit 1; }
	@echo "== setting up $(VENV) with $(PYTHON) (Spark is large: a few minutes the first time)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "could not make a virtual environment: on Debian and Ubuntu, apt install python3-venv." >&2; exit 1; }
	@$(PY) -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.installed
	@echo "== adding what the tests need"
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

setup: $(VENV)/.installed ## virtual environment, Temporal's server and Java, so that .venv/bin/rehome works
	@$(PY) -m ops.stack.temporal_server
	@$(PY) -m ops.stack.java

setup-dev: setup $(VENV)/.installed-dev

run: setup ## the main job on an embedded stack of its own (KEEP=1 leaves it up)
	@$(PY) -m ops.demo $(if $(KEEP),--keep)

test: setup-dev ## the gate: the tests that no slow or busy machine turns red, in JOBS=3 processes (TESTS=path for some)
	@$(PY) -m pytest -n $(JOBS) $(TESTS)

#: What failed for time is run once more, alone: pytest's own cache has which.
TIMING := $(PY) -m pytest -p cacheprovider -o cache_dir=build/timing -m "timing and not slow_conformance"

test-all: setup-dev ## all tests: the gate, what is heavy, and what depends on time (a second time where it fails)
	@status=0; rm -rf build/timing; \
	$(PY) -m pytest -n $(JOBS) -m "not timing and not slow_conformance" $(TESTS) || status=$$?; \
	echo "== what depends on time"; \
	$(TIMING) -n 2 $(TESTS) || { echo "== once more, alone, what failed there"; $(TIMING) -rA --last-failed $(TESTS); } || status=$$?; \
	exit $$status

conformance: setup-dev ## the same tests against our nodes and against Apache Kafka; the table of cases in build/conformance.md
	@$(PY) -m pytest tests/conformance -m "" --kinds rehome,apache

#: What has a larger set than `make test` takes, apart from tests/simulation, tests/crash and tests/faults.
LARGE := tests/workflows/test_any_input.py tests/workflows/test_any_result.py tests/workflows/model/test_assignment_exhaustive.py tests/workflows/model/test_replicated_commands.py \
	tests/storage_node/groups/test_store.py tests/storage_node/groups/test_any_order.py \
	tests/storage_node/groups/test_giving.py tests/storage_node/protocol/test_memory.py \
	tests/storage_node/protocol/test_fuzz_schemas.py tests/storage_node/replication/test_replication_property.py \
	tests/activities/test_fencing.py

torture: setup-dev ## the full sets: every crash point, power cuts, failing disks, then MINUTES=30 of torture (SEED=, CONTAINERS=1)
	@REHOME_FULL=1 $(PY) -m pytest --timeout 7200 tests/simulation tests/crash tests/faults $(LARGE)
	@$(VENV)/bin/rehome torture --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(CONTAINERS),--containers)

stack: setup ## the embedded stack in the foreground, in DATA=.rehome, until Ctrl-C
	@$(VENV)/bin/rehome stack up --data $(DATA)

bench: setup-dev ## the benchmark's table, Apache Kafka beside us
	@$(PY) -m ops.bench

check: setup-dev ## format check, lint, types, import arrows
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

format: setup-dev ## formats the code
	@$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

clean: ## removes what was made here, but not the caches in your home
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
