# make demo, make test: all that a fresh machine with Python 3.11 needs. See CONTRIBUTING.md.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all check soak build wheel-test bench abuse docs docs-serve format clean
.DEFAULT_GOAL := test

# A stamp is newer than pyproject.toml when its environment is up to date, so a second call installs nothing. Both
# environments take the pinned versions of constraints.txt; users get whatever fits the ranges of pyproject.toml.
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev,docs]'
	touch $(VENV)/.core $@

# What the tests run in a browser. Without npm those tests are skipped, and say so.
BROWSER := tests/browser/node_modules/.package-lock.json
$(BROWSER): tests/browser/package-lock.json
	npm ci --prefix tests/browser --ignore-scripts --no-audit --no-fund --loglevel=error || \
	    echo "no packages from npm: the tests that need them will be skipped" >&2

demo: $(VENV)/.core            ## the whole path on data that needs no download
	$(BIN)/softtriple demo

# Two workers with a thread each: on two cores that is faster than one with two, which mostly wait for each other.
# Compiled modules are kept even where the environment says otherwise: the tests start many processes.
WORKERS := 2
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS)

test: check $(BROWSER)         ## everything CI runs
	$(PYTEST)

test-all: check $(BROWSER)     ## the slow tests too
	$(PYTEST) -m ''

check: $(VENV)/.dev            ## lint, format, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Ten times, the files in another order each time, while a process per core burns it: what passes by luck fails here.
# More workers than cores take a larger share from these processes, so that a round ends sooner, and disturb each other.
FIRST := 1
ROUNDS := 10
soak: WORKERS := 6
BURN := while True: pass
soak: $(VENV)/.dev $(BROWSER)  ## the tests in rounds FIRST to ROUNDS under load; TESTS="tests/gallery" for some
	@trap 'kill $$burners 2>/dev/null' EXIT; trap 'exit 130' INT TERM; \
	for core in $$(seq "$$(getconf _NPROCESSORS_ONLN)"); do $(BIN)/python -c '$(BURN)' & burners="$$burners $$!"; done; \
	for round in $$(seq $(FIRST) $(ROUNDS)); do \
	    echo "round $$round of $(ROUNDS)"; $(PYTEST) --shuffle "$$round" $(TESTS) || exit 1; \
	done

build: $(VENV)/.dev            ## the wheel and the sdist, in dist/, checked
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

wheel-test: $(VENV)/.dev       ## the wheel alone in an empty environment: demo, train, index, search, serve
	$(BIN)/pytest -m slow tests/test_wheel.py

bench: $(VENV)/.dev            ## every benchmark, results in benchmarks/results/
	for name in choosing loss_step evaluate methods search scale training; do $(BIN)/python benchmarks/$$name.py || exit 1; done

abuse: $(VENV)/.dev            ## kills, full disks, hostile files, a crowd of clients: about ten minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.abuse
	$(BIN)/pytest tests/abuse/test_fuzz.py --hypothesis-profile=abuse

docs: $(VENV)/.dev             ## the site, in site/
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.dev
	$(BIN)/mkdocs serve

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) tests/browser/node_modules build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
