# The project's tasks. `make setup` makes .venv; every other target calls it first (nothing to do: 0.1 s).

MAKEFLAGS += --no-print-directory
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
LOCK_OPTIONS := --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --no-strip-extras

# What each target takes on make's command line; a make within make inherits what its parent was given.
VARIABLES_up := ONCE FRESH REPEAT INPUT KEY PORT BROKERS CHAOS
VARIABLES_simulation := SEED SEEDS FIRST SHRINK
VARIABLES_fuzz := SECONDS SEED
VARIABLES_mutation := MUTATIONS SEED FIRST FILES JOBS
VARIABLES_test := $(VARIABLES_simulation) $(VARIABLES_fuzz)
VARIABLES_e2e := SMOKE KUBECONFIG KUBELAB E2E_REGISTRY E2E_KEEP E2E_BUILT
VARIABLES_bench := KILLS CHANGES CATCH_UP_MIB
VARIABLES_dist := IMAGES DOCKER SOURCE_DATE_EPOCH
ifeq ($(MAKELEVEL),0)
GOALS := $(or $(MAKECMDGOALS),setup)
KNOWN := $(sort SPARK $(foreach goal,$(GOALS),$(VARIABLES_$(goal))))
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
UNKNOWN := $(sort $(filter-out $(KNOWN) JAVA_HOME TAILRACE_%,$(GIVEN)))
$(if $(UNKNOWN),$(error make $(GOALS) has no variable $(UNKNOWN); it has $(KNOWN)))
endif

# Where it is set, each worker of the tests would compile all of them each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup fmt check test integration e2e simulation fuzz mutation up bench dist lock

# Each stamp in .venv is as new as the last install from the file that it depends on.
setup: $(VENV)/.project $(if $(filter 0,$(SPARK)),,$(VENV)/.spark)
	@:

$(VENV)/.python:
	@for python in python3.11 python3.12 python3.13 python3.14 python3; do \
		if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "setup: making $(VENV) with $$("$$python" --version)"; \
			"$$python" -m venv $(VENV) && touch $@; exit; \
		fi; \
	done; \
	echo "Python 3.11 or newer with its venv module is needed and was not found (Debian: apt install python3-venv)." >&2; \
	exit 1

$(VENV)/.packages: requirements.lock $(VENV)/.python
	@echo "setup: installing the packages of requirements.lock"
	@$(PIP) install --require-hashes -r requirements.lock
	@touch $@

$(VENV)/.project: pyproject.toml $(VENV)/.packages
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# Spark needs Java 17 or newer; without it there is nothing to install and no stamp.
$(VENV)/.spark: requirements-spark.lock $(VENV)/.packages
	@java_major=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
	if [ "$${java_major:-0}" -ge 17 ]; then \
		echo "setup: installing PySpark (0.5 GB, a minute or two)"; \
		$(PIP) install --require-hashes --no-build-isolation -r requirements-spark.lock && touch $@; \
	fi

fmt: setup
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

check: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy -p tailrace -p pyspark_tailrace -p tailrace_broker -p tailrace_operator
	@$(BIN)/mypy .ci/leave_nothing.py examples benchmarks tests tools
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/pytest --quiet --numprocesses auto --cov --cov-report=term-missing:skip-covered tests/unit

# Two at a time: half of the time tests wait. A file's tests stay together, Spark's as well.
integration: setup
	@$(BIN)/pytest --quiet --numprocesses 2 --dist loadgroup --durations 15 tests/integration

# On kind, or KUBECONFIG=… or KUBELAB=/path/to/kubelab; SMOKE=1: the first minutes only. Docs: docs/kubernetes.md.
e2e: setup
	@$(BIN)/pytest --capture=no --verbosity=-1 -p no:randomly --durations 10 --with-e2e $(if $(SMOKE),tests/e2e/test_smoke.py,tests/e2e)

# SEEDS=200: this many scenarios of each simulator, of cuts 20 times as many; FIRST=1000: from that one on.
# SEED=7 runs one of a ring with its trace, SHRINK=1 without what it fails without. Docs: docs/simulation.md.
simulation: setup
	@$(BIN)/python -m tests.simulation.ring
	@$(if $(SEED),,SEEDS=$(or $(SEEDS),10) $(BIN)/pytest --quiet --numprocesses auto --deselect tests/simulation/ring/test_ring.py::test_every_promise_is_kept_and_every_rule_needed tests/simulation)

fuzz: setup
	@$(BIN)/python -m tests.fuzz $(or $(SECONDS),60)

# Changes one line of the broker at a time; a test must fail. MUTATIONS=300 of them, drawn by SEED,
# FIRST=300: those after the first 300, of the files whose path contains FILES, JOBS at a time. Docs: CONTRIBUTING.md.
mutation: setup
	@$(BIN)/python -m tools.mutation

test: check integration simulation
	@$(BIN)/python -m tests.fuzz $(or $(SECONDS),10)

up: setup
	@$(BIN)/python -m examples.up

bench: setup
	@$(BIN)/python -m benchmarks --store

# What a release publishes, in dist/: sdist, wheel, chart, images and checksums. IMAGES=0: without images,
# IMAGES=1: not without; DOCKER=podman: by that command. Docs: CONTRIBUTING.md.
dist: $(VENV)/.project
	@$(BIN)/python -m tools.dist

# Keeps the versions that still fit; delete a lock file first to renew all of it.
lock:
	@command -v uv >/dev/null || { echo "make lock needs uv (pip install uv)." >&2; exit 1; }
	@uv pip compile $(LOCK_OPTIONS) --extra aio --extra arrow --extra broker --extra operator --extra dev pyproject.toml --output-file requirements.lock
	@grep -o 'pyspark>[^"]*' pyproject.toml | uv pip compile $(LOCK_OPTIONS) - --output-file requirements-spark.lock
	@for image in broker operator spark; do \
		uv pip compile $(LOCK_OPTIONS) --constraint requirements.lock --constraint requirements-spark.lock --extra $$image pyproject.toml --output-file docker/$$image.lock || exit; \
	done
	@printf '%s\n' hatchling setuptools wheel | uv pip compile $(LOCK_OPTIONS) --constraint requirements.lock - --output-file docker/build.lock
