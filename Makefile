# `make test` and `make demo` set up all they need in .venv; the second time they start at once.
# Another interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A worker for each core; a file's tests stay together and share what they compile. Files are taken
# in their order: by number of tests, those that start processes would come last, and end apart.
WORKERS := --numprocesses logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: help test test-all demo site dist lint format install clean

help:
	@echo "make test     lint, types and tests, as CI runs them"
	@echo "make test-all as make test, and the tests marked slow"
	@echo "make demo     trains a DLRM on synthetic Criteo data in about a minute"
	@echo "make site     builds the documentation in site/, with broken links as errors"
	@echo "make dist     builds a wheel and an sdist in dist/"
	@echo "make lint     ruff and mypy alone"
	@echo "make format   lets ruff rewrite what it can"
	@echo "make clean    removes .venv and every cache"

test: lint
	$(BIN)/python -m pytest $(WORKERS)

test-all: lint
	$(BIN)/python -m pytest $(WORKERS) -m "not peers"

demo: $(STAMP)
	$(BIN)/sparsetrain demo

site: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/build_site.py
	$(BIN)/mkdocs build --strict
	@! grep -rl --include='*.html' '| ---' site || { echo 'a table of these pages is not rendered'; exit 1; }

dist: $(STAMP)
	$(BIN)/hatchling build

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(STAMP)

# The build backend comes from the constraints too, hence --no-build-isolation. Bytecode is compiled
# on all cores, where pip would take one. The stamp is made last: an interrupted installation starts
# again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is older than Python 3.10; name a newer one: make PYTHON=python3.12"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || \
	  { echo "no virtual environment: on Debian and Ubuntu, install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt \
	  --no-build-isolation --editable '.[test]'
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
