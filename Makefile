# Each verb sets up .venv first; a second call starts at once.
SHELL := /bin/bash
BIN := .venv/bin
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help poc test check kernels-check lint fix unit setup clean

help:
	@echo "make poc    set up, then compare before and after behind one real Triton server"
	@echo "make test   set up, then all checks and all tests"
	@echo "make unit   the tests that need no server and no real model"
	@echo "make check  ruff, mypy --strict, import-linter; changes nothing"
	@echo "make kernels-check  compile every GPU kernel for four kinds of GPU; needs none"
	@echo "make fix    let ruff rewrite what it can"
	@echo "make clean  remove the environment, caches and reports"

poc: setup
	$(BIN)/pageport poc

test: check kernels-check
	$(BIN)/python -m pytest

unit: setup
	$(BIN)/python -m pytest -n 2 -m "not server and not real_model and not network"

check: lint
	$(BIN)/mypy
	$(BIN)/lint-imports

kernels-check: setup
	$(BIN)/python scripts/kernels_check.py $(if $(WRITE),--write)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

fix: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

setup:
	@scripts/setup.sh

clean:
	rm -rf .venv .venv-clients .setup.lock build dist *.egg-info reports .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
