# Stock python3 (>= 3.11) with venv and pip is all that is needed; every target installs what it uses.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The regressions are small: two BLAS threads on a busy machine mostly wait for each other.
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test test-slow lint bench docs clean

demo: $(VENV)/.installed  ## fit a belief to position-only cart-pole, print its errors, draw what it predicts
	$(BIN)/rpsp fit InvertedPendulum-v5 --observe positions --inspect

test: $(VENV)/.dev  ## the tests (not the slow ones)
	$(BIN)/python -m pytest

test-slow: $(VENV)/.dev  ## learning tests and long measurements
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(VENV)/.installed  ## every figure of docs/benchmarks.md, measured again
	$(BIN)/python -m benchmarks

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist site
