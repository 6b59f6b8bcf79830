# `make train` and `make test` set up first, once.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help setup train test test-slow lint style types behaviour bench clean

help:
	@echo "make train      set up, then train a dial-a-ride agent and evaluate it"
	@echo "make test       set up, then check style, layers, types and behaviour"
	@echo "make test-slow  many-seed trainings and long fault runs"
	@echo "make bench      measure training speed compared with other libraries"
	@echo "make clean      remove the virtual environment and caches (runs/ is kept)"

setup: $(INSTALLED)

# The package and the extras that tests use; repeated only when these files change.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,sb3,routing,ray,export,wandb]'
	@touch $(INSTALLED)

# A short dial-a-ride training, evaluated on fixed days against heuristic baselines.
train: setup
	@run=dvrp-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/hundredfold train dvrp --name $$run --num-envs 64 --episodes 6400 && \
	$(BIN)/hundredfold evaluate runs/$$run --days 128 --splits known unseen_customers \
		--baselines none random greedy_expected belief_largest privileged_largest

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
	$(BIN)/pytest -m "not slow" -n 2

bench: setup
	$(BIN)/python -m benchmarks train

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist src/*.egg-info
	find src benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
