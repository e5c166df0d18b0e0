# make demo, make test: all that a fresh machine with Python 3.11 needs. See CONTRIBUTING.md.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all check bench abuse docs docs-serve format clean
.DEFAULT_GOAL := test

# A stamp is newer than pyproject.toml when its environment is up to date, so a second call installs nothing.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

# Versions are pinned here only: CI tests what it tested before, users get what fits their environment.
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]' --constraint constraints.txt
	touch $(VENV)/.core $@

demo: $(VENV)/.core            ## the whole path on data that needs no download
	$(BIN)/softtriple demo

# Two workers with a thread each: on two cores that is faster than one with two, which mostly wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

test: check                    ## everything CI runs
	$(PYTEST)

test-all: check                ## the slow tests too
	$(PYTEST) -m ''

check: $(VENV)/.dev            ## lint, format, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.dev            ## every benchmark, results in benchmarks/results/
	for name in choosing loss_step evaluate methods search scale; do $(BIN)/python benchmarks/$$name.py || exit 1; done

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
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
