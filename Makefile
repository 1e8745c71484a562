# Stock python3 (>= 3.11) with venv and pip is all that is needed; every target installs what it uses.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The regressions are small: two BLAS threads on a busy machine mostly wait for each other.
export OPENBLAS_NUM_THREADS ?= 1


.PHONY: demo test test-rest test-all coverage faults lint bench results docs clean

DEMO := runs/demo-$(shell date +%Y%m%d-%H%M%S)

demo: $(VENV)/.installed  ## train an agent on position-only cart-pole, try it, film it, and write a report
	$(BIN)/rpsp train InvertedPendulum-v5 --iterations 25 --out $(DEMO)
	$(BIN)/rpsp eval $(DEMO)
	$(BIN)/rpsp watch $(DEMO) --format gif || echo 'No video then; the report goes without.'
	$(BIN)/rpsp report $(DEMO)
	@echo 'Look at the page and the video; to go on with rpsp as a command of your shell: . $(BIN)/activate'

# Tests of one file share what they compile, so a file stays with one worker; three of them, because some tests wait.
# For a random order: make test ORDER=--randomly-seed=1
ORDER ?= -p no:randomly
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ORDER)
# Files whose tests wait for processes come first, so that no worker is left alone with them at the end. Each folder is named
# on its own: pytest drops a folder from the list if another one contains it, and then the order is alphabetical.
FIRST := tests/faults tests/experiments
TESTS := $(FIRST) $(filter-out $(FIRST) tests/helpers tests/fixtures tests/conftest.py tests/__pycache__,$(wildcard tests/*))

test: $(VENV)/.dev  ## every behaviour once; programs are compiled quickly
	$(PYTEST) $(TESTS)

# Slow tests of loggers and of tuning: one failed when last run (wandb), the others were not run since; to be looked into.
UNSURE := --ignore=tests/experiments/test_callbacks.py --ignore=tests/experiments/test_tuning.py

test-rest: $(VENV)/.dev  ## what `make test` leaves out, compiled as users compile it
	RPSP_TESTS=full $(PYTEST) -m slow $(TESTS) $(UNSURE)

test-all: $(VENV)/.dev  ## every test, compiled as users compile it
	RPSP_TESTS=full $(PYTEST) -m '' $(TESTS)

coverage: $(VENV)/.dev  ## lines of src/ that `make test` runs
	rm -f .coverage .coverage.*
	$(BIN)/python -m coverage run -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ORDER) $(TESTS)
	$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage report --skip-covered --sort=cover

faults: $(VENV)/.dev  ## every promise of docs/promises.md with the full number of faults; prints the figures and puts them there
	@mkdir -p build && rm -f build/faults.jsonl
	RPSP_FAULTS=full RPSP_FAULTS_LOG=$(CURDIR)/build/faults.jsonl $(BIN)/python -m pytest tests/faults; \
	status=$$?; $(BIN)/python tests/helpers/amounts.py build/faults.jsonl docs/promises.md; exit $$status

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: $(VENV)/.installed  ## every figure of docs/benchmarks.md, measured again
	$(BIN)/python -m benchmarks

results: $(VENV)/.installed  ## docs/results.md and docs/differences.md, figures and the README's, made from results/
	$(BIN)/rpsp paper --page docs/results.md --readme README.md --results results --quiet
	$(BIN)/python -m benchmarks.differences

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
