# Each target sets up what it needs first, once: `make train` the package alone, `make test` everything.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# What is installed, as stamp files: the package alone, or with the tools and extras that tests use.
PACKAGE := $(VENV)/.installed
SERVE := $(VENV)/.installed-serve
COMPLETE := $(VENV)/.installed-complete
# Both variables, so that old and new releases of pip also build with the pinned setuptools.
PIP_INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup train test test-slow coverage mutants desk lint style types behaviour kernels docs pictures bench clean

help:
	@echo "make train      set up, then train a dial-a-ride agent and evaluate it"
	@echo "make desk       set up, then serve the booking desk of a demo city on this machine"
	@echo "make test       set up, then check style, layers, types and behaviour"
	@echo "make test-slow  many-seed trainings and long fault runs"
	@echo "make coverage   run the tests with branch coverage of the package"
	@echo "make mutants    put small faults into the package, one at a time, and see whether tests fail"
	@echo "make docs       build the documentation as a site"
	@echo "make pictures   draw the pictures of the README from runs of dvrp"
	@echo "make bench      measure training speed compared with other libraries"
	@echo "make clean      remove the virtual environment and caches (runs/ is kept)"

setup: $(COMPLETE)

# Repeated only when these files change.
$(PACKAGE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e .
	@touch $(PACKAGE)

# The package with what the booking desk needs.
$(SERVE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[serve]'
	@touch $(PACKAGE) $(SERVE)

# Completes what `make train` has set up, or sets up everything at once.
$(COMPLETE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[dev,sb3,routing,ray,export,wandb,serve,sweep,video,atari,docs]'
	@touch $(PACKAGE) $(SERVE) $(COMPLETE)

# A short dial-a-ride training, evaluated on fixed days against heuristic baselines.
train: $(PACKAGE)
	@run=dvrp-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/hundredfold train dvrp --city hubs --name $$run && \
	$(BIN)/hundredfold evaluate runs/$$run --days 128 --splits known,unseen_trips \
		--baselines none,random,greedy_expected,belief_largest,lookahead,privileged_largest

# The booking desk of the built-in city; it prints its address. Bookings are kept in desk.db.
desk: $(SERVE)
	$(BIN)/hundredfold serve --customers 100 --database-url sqlite:///desk.db

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

# Twice as many tests at a time as cores: many wait for processes that they have started.
behaviour: kernels
	$(BIN)/pytest -m "not slow" -n 4 --durations=10

kernels: setup
	$(BIN)/python tests/compile_kernels.py

# Kernels run compiled, where coverage sees nothing: `pyproject.toml` leaves them out.
coverage: kernels
	$(BIN)/pytest -m "not slow" -n 4 --cov --cov-report=term:skip-covered

# In a copy of the tree; names of modules limit it: make mutants MODULES="ppo.py gae.py".
mutants: setup
	$(BIN)/python tests/mutants.py $(MODULES)

# The documentation as a site, in site/; a broken link is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

# The pictures of the README, from runs of dvrp and a replay of cage2 in Chromium: make pictures RUNS="runs/a runs/b"
RUNS ?= $(wildcard runs/dvrp-*)
pictures: setup
	$(BIN)/python -m benchmarks pictures $(RUNS)

bench: setup
	$(BIN)/python -m benchmarks train

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist src/*.egg-info
	find src benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
