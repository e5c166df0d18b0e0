# make demo, make test: all that a fresh machine with Python 3.11 needs. See CONTRIBUTING.md.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all check types bench format clean
.DEFAULT_GOAL := test

# A stamp is newer than pyproject.toml when its environment is up to date, so a second call installs nothing.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(VENV)/.core $@

demo: $(VENV)/.core            ## the whole path on data that needs no download
	$(BIN)/softtriple demo

test: check                    ## everything CI runs
	$(BIN)/pytest

test-all: check                ## the slow tests too
	$(BIN)/pytest -m ''

check: $(VENV)/.dev            ## lint, format, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.dev            ## every benchmark, results in benchmarks/results/
	for name in loss_step evaluate methods; do $(BIN)/python benchmarks/$$name.py || exit 1; done

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
