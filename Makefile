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
PORT ?= 8481
SEED ?=
CONTAINERS ?=
KAFKA ?=
# Else every process compiles all modules again: a node takes 1.7 s of CPU to start then, and not 1.1.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-dev run check test test-all conformance mutations torture stack dashboards screenshots bench docs format clean

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

run: setup ## the main job on an embedded stack of its own (KEEP=1 leaves it up, KAFKA=1: on Apache Kafka's brokers)
	@$(PY) -m ops.demo $(if $(KEEP),--keep) $(if $(KAFKA),--kafka --data .rehome/demo-kafka)

check: setup-dev ## format, lint, types, import arrows
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

#: The gate's files (50 MB) are in memory where that has 1 GB for them, so that no disk that others use makes a test
#: slow; `make test-all` has them on the disk.
IN_MEMORY = $(shell [ -w /dev/shm ] && [ "$$(df -k --output=avail /dev/shm | tail -1)" -ge 1000000 ] && echo yes)

test: setup-dev ## the gate: the tests that no slow or busy machine turns red, in JOBS=3 processes (TESTS=path for some)
	@$(if $(IN_MEMORY),PYTEST_DEBUG_TEMPROOT=/dev/shm) $(PY) -m pytest -n $(JOBS) $(TESTS)

#: What depends on time runs in two processes after the others; what failed there is run once more, alone.
TIMING := $(PY) -m pytest -m "timing and not slow_conformance"

# (Exit code 5: TESTS names none of these tests.)
test-all: setup-dev ## all tests: the gate, what is heavy, and what depends on time (a second time, alone, where it fails)
	@rm -rf build/pytest; status=0; \
	run() { "$$@" || [ $$? = 5 ]; }; \
	run $(PY) -m pytest -n $(JOBS) -m "not timing and not slow_conformance" $(TESTS) || status=1; \
	echo "== what depends on time"; \
	run $(TIMING) -n $(if $(filter-out 0,$(JOBS)),2,0) $(TESTS) \
	|| { echo "== once more, alone, what failed there"; $(TIMING) -n 0 -rA --last-failed $(TESTS); } || status=1; \
	exit $$status

conformance: setup-dev ## the same tests against our nodes and against Apache Kafka; the table of cases in build/conformance.md
	@$(PY) -m pytest -n $(if $(filter-out 0,$(JOBS)),2,0) tests/conformance -m "" --kinds rehome,apache,apache-3.9

mutations: setup-dev ## breaks one promise after the other in a copy of the sources; the tests must notice each
	@$(PY) -m tests.mutations

#: What has a larger set than `make test-all` takes, apart from tests/simulation, tests/crash and tests/faults.
LARGE := tests/workflows/test_any_input.py tests/workflows/test_any_result.py tests/workflows/model/metadata/test_assignment_exhaustive.py tests/workflows/model/metadata/test_replicated_commands.py \
	tests/storage_node/groups/test_copies.py tests/storage_node/groups/test_store.py tests/storage_node/groups/test_any_order.py \
	tests/storage_node/groups/test_giving.py tests/storage_node/protocol/test_memory.py \
	tests/storage_node/protocol/test_fuzz_schemas.py tests/storage_node/replication/test_replication_property.py \
	tests/storage_node/log/test_open_files.py tests/activities/test_fencing.py \
	tests/ops/analytics/lake/test_any_batches.py tests/ops/analytics/lake/test_ingest.py tests/ops/analytics/lake/test_killed.py \
	tests/ops/disks/test_crashes.py tests/conformance/plan_runs/test_kills.py tests/conformance/storage/test_stopped_broker.py \
	tests/workflows/plans/test_continuing.py \
	tests/workflows/model/plans/running/test_run.py tests/workflows/model/plans/running/test_slots.py

torture: setup-dev ## the full sets: every crash point, power cuts, failing disks, then MINUTES=30 of torture (SEED=, CONTAINERS=1)
	@REHOME_FULL=1 $(PY) -m pytest --timeout 7200 -m "not slow_conformance" tests/simulation tests/crash tests/faults $(LARGE)
	@$(VENV)/bin/rehome torture --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(CONTAINERS),--containers)

stack: setup ## the embedded stack in the foreground, in DATA=.rehome, until Ctrl-C (KAFKA=1: Apache Kafka)
	@$(VENV)/bin/rehome stack up --data $(DATA) $(if $(KAFKA),--kafka)

dashboards: $(VENV)/.installed ## the pages of a demo history, served on PORT=8481 of the loopback until Ctrl-C
	@$(PY) -m ops.dashboards.site $(DATA)/dashboards --serve $(PORT)

screenshots: setup-dev ## takes the pictures of the README again
	@$(PY) -m ops.dashboards.screenshots

bench: setup-dev ## the benchmark's table, Apache Kafka beside us
	@$(PY) -m ops.bench

#: The modules of ops/docs that print a page of the same name.
PRINTED := failpoints moves node_state queries results searching tables

docs: setup-dev ## writes the generated pages of ops/docs again
	@for page in $(PRINTED); do \
		$(PY) -m ops.docs.$$page > ops/docs/.page && mv ops/docs/.page ops/docs/$${page//_/-}.md || { rm -f ops/docs/.page; exit 1; }; done
	@$(PY) -m tests.support.configuration
	@$(PY) -m tests.conformance.differences
	@$(PY) -m tests.support.report.pages

format: setup-dev ## formats the code
	@$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

clean: ## removes what was made here, but not the caches in your home
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
