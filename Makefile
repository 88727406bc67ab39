# Needs Python >= 3.11 and make. Everything else is installed into .venv.
# On Linux without a GPU, PIP_ARGS can name PyTorch's index of CPU builds to keep the download small.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(PIP_ARGS)

# The tests start hundreds of processes, each of which would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-slow faults fuzz lint docs dist bench bench-peers clean

help:  ## Show what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Partita needs Python >= 3.11, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Partita and what it needs into $(VENV) ..."
	@$(PIP) --editable '.[report]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "Installing what the tests need ..."
	@$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@$(PIP) --editable '.[docs]'
	@touch $@

demo: $(VENV)/.installed  ## Ingest, partition, plan, train, evaluate, predict and report on a small data set (about a minute)
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh demo

test: $(VENV)/.installed-test  ## Run the tests that are short, each with every value of its parameters (about 6 minutes)
	@$(BIN)/python -m pytest -q -m 'not slow and not full' --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: $(VENV)/.installed-test  ## Run all tests, long ones too, each with every value of its parameters
	@$(BIN)/python -m pytest -q -m 'not slow' --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(VENV)/.installed-test  ## Run also every combination of settings (hours)
	@$(BIN)/python -m pytest -q $(ARGS)

MINUTES ?= 10
KILLS ?= 60

fuzz: $(VENV)/.installed-test  ## Damage inputs at random and judge what comes of it (MINUTES=10)
	@$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES)

FAULTS = env PARTITA_KILLS=$(KILLS) $(BIN)/python -m pytest -q tests/faults --numprocesses 2 $(ARGS)

faults: $(VENV)/.installed-test  ## Disturb every command: full disks, permissions, signals, kills (an hour; KILLS=60)
	@if unshare -m true 2>/dev/null; then unshare -m env PARTITA_FAULTS_MOUNT=1 $(FAULTS); \
	elif unshare -rm true 2>/dev/null; then unshare -rm env PARTITA_FAULTS_MOUNT=1 $(FAULTS); \
	else $(FAULTS); fi

lint: $(VENV)/.installed-test  ## Check style, types and layering
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(VENV)/.installed-docs  ## Build the documentation into site/
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs site
	@echo "Open site/index.html"

dist: $(BIN)/python  ## Build sdist and wheel into dist/, and use the wheel in a clean environment
	@$(PIP) build hatchling
	@PIP_ARGS='$(PIP_ARGS)' $(BIN)/python tests/release.py dist

bench: $(VENV)/.installed-test  ## Run the quick benchmarks
	@$(BIN)/python bench/kernels.py
	@$(BIN)/python bench/startup.py
	@$(BIN)/python bench/ingest.py --edges 10000000

bench-peers: $(VENV)/.installed-test  ## Compare with PyG and DGL, side by side (hours; ARGS=--quick for minutes)
	@$(BIN)/python bench/peers/compare.py $(ARGS)

clean:  ## Remove what make has made
	rm -rf $(VENV) demo site
