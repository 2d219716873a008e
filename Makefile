# Two commands matter: `make serve` and `make test`. Each makes what it needs (environment, engine, model) the first time,
# and goes straight on the next time. Variables, with their defaults:
#
#   ENGINE=cpu|gpu     which vLLM to install; by default gpu where nvidia-smi lists a GPU, else cpu
#   CONFIG=FILE        what `make serve` runs
#   PYTHON=PROGRAM     the interpreter to make the environment with; by default the first fitting python3.11 … python3.13
#   VENV=FOLDER        where the environment lies
#   TORCH_INDEX=URL    where the CPU build of torch comes from, unless pip's own configuration already offers it
#   PYTEST_ARGS=…      further arguments of pytest in `make test`, for example PYTEST_ARGS="-k queue -x"
#   TEST_PROCESSES=2   how many processes run the tests, side by side; 0: this one alone

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

ENGINE ?= $(shell nvidia-smi --list-gpus 2>/dev/null | grep -q . && echo gpu || echo cpu)
CONFIG ?= examples/quickstart.yaml
PYTHON ?=
VENV ?= .venv
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PYTEST_ARGS ?=
TEST_PROCESSES ?= 2
export TORCH_INDEX PYTHON

bin := $(VENV)/bin
stamps := $(VENV)/.stamps
model := models/smollm2
engine_stamp := $(stamps)/engine-$(ENGINE)

.NOTPARALLEL:  # every step installs into the same environment
.PHONY: help serve test lint errors-doc bench gpu-check environment clean distclean

help:
	@echo 'make serve      set everything up, then serve SmolLM2 on vLLM at http://127.0.0.1:8080'
	@echo 'make test       set everything up, then ruff, mypy, import-linter and the tests (no Docker needed)'
	@echo 'make lint       the static part of make test'
	@echo 'make bench      run every benchmark; results in build/bench/'
	@echo 'make gpu-check  say whether a GPU can be used, and check the engine on it'
	@echo 'make errors-doc write docs/errors.md anew from rewarm/errors/'
	@echo 'make clean      remove build outputs and caches (make distclean: environment and model too)'

serve: $(engine_stamp) $(model)/model.safetensors
	@echo '==> rewarm serve $(CONFIG)'
	@exec $(bin)/rewarm serve $(CONFIG)

test: lint $(engine_stamp) $(model)/model.safetensors
	@echo '==> pytest'
	@$(bin)/python -m pytest -n $(TEST_PROCESSES) $(PYTEST_ARGS)

lint: $(stamps)/test
	@echo '==> ruff'
	@$(bin)/ruff check .
	@$(bin)/ruff format --check .
	@echo '==> mypy'
	@$(bin)/mypy
	@echo '==> import-linter'
	@$(bin)/lint-imports

errors-doc: $(stamps)/base
	@$(bin)/python -m tools.errors_doc

bench: $(stamps)/test $(engine_stamp) $(model)/model.safetensors
	@tools/bench.sh $(bin)/python

# With a GPU it needs the environment; without one it only says so.
gpu-check: $(if $(filter gpu,$(ENGINE)),environment)
	@tools/gpu_check.sh $(bin)/python

environment: $(engine_stamp) $(stamps)/test $(model)/model.safetensors

# Each stamp stands for one step of tools/environment.sh; pyproject.toml is what decides the step's outcome.
$(stamps)/base: pyproject.toml
	@tools/environment.sh base $(VENV)

$(stamps)/engine-%: $(stamps)/base
	@tools/environment.sh engine-$* $(VENV)

$(stamps)/test: $(stamps)/base
	@tools/environment.sh test $(VENV)

# The folder appears complete or not at all, and outlives the environment.
$(model)/model.safetensors: | $(engine_stamp)
	@tools/environment.sh model $(VENV) $(model)

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

distclean: clean
	rm -rf $(VENV) models
