# make serve   set up, make the demo checkpoint if there is none, serve it on 127.0.0.1:$(PORT)
# make test    set up, run every check and the tests
# make test-gpu  the tests that need a GPU, on a machine that has one
# The first run needs the network to fetch packages; later ones do not.

PYTHON ?= python3
PORT ?= 8000
MODEL ?= checkpoints/demo
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PYRIGHT_PYTHON_CACHE_DIR := $(CURDIR)/$(VENV)/pyright

.PHONY: setup serve test test-slow test-gpu check format clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Antiphon needs Python 3.11 or newer; set PYTHON=…" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	$(BIN)/pyright --version
	@touch $(READY)

serve: setup
	@$(BIN)/antiphon checkpoint demo checkpoints/demo --size small --if-missing
	@exec $(BIN)/antiphon serve $(MODEL) --port $(PORT) --threads 1

test: check
	$(BIN)/pytest

test-slow: setup
	$(BIN)/pytest -m slow --timeout 1800

test-gpu: setup
	$(BIN)/pytest -m gpu tests/gpu tests/nn

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
