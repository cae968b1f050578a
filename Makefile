# `make demo` and `make test` set up .venv themselves; nothing else is needed but Python >= 3.11.
#   make demo TORCH=cuda     use torch's CUDA build
#   make test ARGS="-k grpo"  further arguments for pytest
PYTHON ?= python3
TORCH  ?= cpu
ARGS   ?=
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready-$(TORCH)
CONSTRAINTS := $(if $(filter cuda,$(TORCH)),constraints-cuda.txt,constraints.txt)

# Data for the tests, where this checkout has such a folder beside it (see docs/testing.md).
ifneq ($(wildcard ../shared/data),)
export SERO_TEST_DATA ?= $(abspath ../shared/data)
endif

# One thread a process: the tests run two processes, and the tiny model gains nothing from more.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup demo test test-full lint format bench bench-webshop bench-advantages mutants clean
help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

setup: $(STAMP) ## create .venv with every dependency at its pinned version

$(STAMP): pyproject.toml constraints.txt constraints-cuda.txt setup_venv.sh
	@VENV=$(VENV) PYTHON=$(PYTHON) TORCH=$(TORCH) CONSTRAINTS=$(CONSTRAINTS) sh setup_venv.sh
	@rm -f $(VENV)/.ready-*
	@touch $@

demo: $(STAMP) ## play, branch, train a tiny policy with GRPO+SERO, write runs/demo/report.html
	$(BIN)/sero demo $(ARGS)

test: $(STAMP) ## the test suite (samples where the full count is long)
	$(BIN)/python -m pytest -n 2 $(ARGS)

test-full: $(STAMP) ## every check at its full count; writes benchmarks/results/full_test.json
	$(BIN)/python benchmarks/full_test.py $(ARGS)

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP) ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## speed beside the original engine, in one run; writes benchmarks/results/
	$(BIN)/python benchmarks/alfworld_speed.py $(ARGS)

bench-webshop: $(STAMP) ## the same for WebShop; with ARGS="--original DIR" beside a checkout of it
	$(BIN)/python benchmarks/webshop_speed.py $(ARGS)

bench-advantages: $(STAMP) ## every base objective beside a plain loop; fails above 50 ms
	$(BIN)/python benchmarks/advantages.py $(ARGS)

mutants: $(STAMP) ## plant 200 bugs in the objectives; fails if the tests catch fewer than 95 %
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c $(CONSTRAINTS) cosmic-ray
	$(BIN)/python benchmarks/mutants.py $(ARGS)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
