# Each target sets up what it needs first, once: `make train` the package alone, `make test` everything.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# What is installed, as stamp files: the package alone, or with the tools and extras that tests use.
PACKAGE := $(VENV)/.installed
COMPLETE := $(VENV)/.installed-complete
# Both variables, so that old and new releases of pip also build with the pinned setuptools.
PIP_INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup train test test-slow coverage lint style types behaviour bench clean

help:
	@echo "make train      set up, then train a dial-a-ride agent and evaluate it"
	@echo "make test       set up, then check style, layers, types and behaviour"
	@echo "make test-slow  many-seed trainings and long fault runs"
	@echo "make coverage   run the tests with branch coverage of the package"
	@echo "make bench      measure training speed compared with other libraries"
	@echo "make clean      remove the virtual environment and caches (runs/ is kept)"

setup: $(COMPLETE)

# Repeated only when these files change.
$(PACKAGE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e .
	@touch $(PACKAGE)

# Completes what `make train` has set up, or sets up everything at once.
$(COMPLETE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[dev,sb3,routing,ray,export,wandb]'
	@touch $(PACKAGE) $(COMPLETE)

# A short dial-a-ride training, evaluated on fixed days against heuristic baselines.
train: $(PACKAGE)
	@run=dvrp-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/hundredfold train dvrp --city hubs --name $$run && \
	$(BIN)/hundredfold evaluate runs/$$run --days 128 --splits known unseen_trips \
		--baselines none random greedy_expected belief_largest lookahead privileged_largest

# Types are checked in parallel with the tests, which often wait for their processes.
test: style
	@$(MAKE) --no-print-directory -j 2 types behaviour

test-slow: setup
	$(BIN)/pytest -m slow

lint: style types

style: setup
	$(BIN)/ruff format --check src benchmarks tests
	$(BIN)/ruff check src benchmarks tests
	$(BIN)/lint-imports --no-logo

types: setup
	$(BIN)/mypy

behaviour: setup
	$(BIN)/pytest -m "not slow" -n 2 --durations=10

# Kernels run compiled, where coverage sees nothing: `pyproject.toml` leaves them out.
coverage: setup
	$(BIN)/pytest -m "not slow" -n 2 --cov --cov-report=term:skip-covered

bench: setup
	$(BIN)/python -m benchmarks train

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist src/*.egg-info
	find src benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
