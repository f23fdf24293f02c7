# make serve   set up, fetch small released weights that understand English speech (226 MB) if they are not there,
#              serve them on 127.0.0.1:$(PORT); without network, or with MODEL=demo, a small random checkpoint;
#              MODEL=DIR-OR-HUB-ID serves another one
# make test    set up, run every check and the tests; the deciding half's own take 95 % of its lines and branches
# make test-gpu  the tests that need a GPU, on a machine that has one
# make clients install the stock clients that test-slow talks to the server with, each on its own (1.5 GB)
# The first run needs the network to fetch packages; later ones do not.

PYTHON ?= python3
PORT ?= 8000
MODEL ?= talk
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CLIENTS := .clients
AGENTS := openai-agents==0.24.0
PYDANTIC := pydantic-ai-slim[openai,realtime]==2.68.0
PIPECAT := pipecat-ai[openai]==1.14.0
LIVEKIT := livekit-agents==1.8.9 livekit-plugins-openai==1.8.9
JS := @openai/agents-realtime@0.20.0 ws@8.23.0

# Options of pip for torch: PyPI's build for Linux on x86 brings CUDA, gigabytes of it; an index of CPU builds does not.
TORCH_INDEX ?=

# A hundred processes of the tests would each compile what they import.
unexport PYTHONDONTWRITEBYTECODE
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PYRIGHT_PYTHON_CACHE_DIR := $(CURDIR)/$(VENV)/pyright

# Two at a time; where make can, it shows in one piece what each of them says.
BESIDE := $(MAKE) --no-print-directory --jobs 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
CHECKS := check-types check-lint check-format check-floors

.PHONY: setup serve test test-slow test-gpu check $(CHECKS) kernels format clean clients

setup: $(READY)

# pip would compile fifteen thousand modules one after another. Some packages ship templates that are none.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Antiphon needs Python 3.11 or newer; set PYTHON=…" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt $(TORCH_INDEX) torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable . --group dev
	@$(BIN)/python -m compileall -qq -j 2 $(VENV)/lib || true
	$(BIN)/pyright --version
	@touch $(READY)

SERVE_DEMO = $(BIN)/antiphon checkpoint demo checkpoints/demo --size small --if-missing && \
	exec $(BIN)/antiphon serve checkpoints/demo --port $(PORT) --threads 1

serve: setup
ifeq ($(MODEL),talk)
	@if $(BIN)/antiphon checkpoint talk checkpoints/talk --if-missing; then \
		exec $(BIN)/antiphon serve checkpoints/talk --port $(PORT) --threads 1 --kv-tokens 4096 \
			--max-context-tokens 4096 --min-lead-s 0; \
	else \
		echo "The released weights are not to be had now. A small random demo is served instead:"; \
		echo "its answers have nothing to do with what is said. Run make serve again to try once more."; \
		$(SERVE_DEMO); \
	fi
else ifeq ($(MODEL),demo)
	@$(SERVE_DEMO)
else
	@exec $(BIN)/antiphon serve $(MODEL) --port $(PORT) --threads 1
endif

test: setup
	@$(BESIDE) $(CHECKS) kernels
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --coverage

test-slow: setup
	$(BIN)/pytest -m slow --timeout 1800 -o faulthandler_timeout=3600

test-gpu: setup
	$(BIN)/pytest -m gpu tests/gpu tests/nn

clients: $(CLIENTS)/agents/.ready $(CLIENTS)/pydantic/.ready $(CLIENTS)/pipecat/.ready
clients: $(CLIENTS)/livekit/.ready $(CLIENTS)/js/.ready

$(CLIENTS)/agents/.ready: PACKAGES = $(AGENTS)
$(CLIENTS)/pydantic/.ready: PACKAGES = $(PYDANTIC)
$(CLIENTS)/pipecat/.ready: PACKAGES = $(PIPECAT)
$(CLIENTS)/livekit/.ready: PACKAGES = $(LIVEKIT)

$(CLIENTS)/js/.ready: Makefile
	npm install --silent --no-audit --no-fund --prefix $(CLIENTS)/js $(JS)
	@touch $@

$(CLIENTS)/%/.ready: Makefile
	$(PYTHON) -m venv $(CLIENTS)/$*
	$(CLIENTS)/$*/bin/python -m pip install --quiet $(foreach package,$(PACKAGES),"$(package)")
	@touch $@

check: setup
	@$(BESIDE) $(CHECKS)

$(CHECKS) kernels: setup

check-types:
	$(BIN)/pyright

check-lint:
	$(BIN)/ruff check .

check-format:
	$(BIN)/ruff format --check .

check-floors:
	$(BIN)/lint-imports --no-logo

# Most of what tests would wait for while it is compiled; the checks leave a core for it.
kernels:
	$(BIN)/python tests/compile_kernels.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
