# The commands that people and CI run. Written for POSIX sh and GNU make 3.81, which macOS ships.

VENV ?= .venv
UV ?= uv
BIN := $(VENV)/bin
PYTEST_WORKERS ?= 2
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock" $(LOCK_OPTIONS)

.DEFAULT_GOAL := help
.PHONY: help install demo test e2e bench lint fmt lock clean

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

install: ## Make the environment that tests and checks run in, from the lock
	@sh scripts/set-up.sh $(VENV) dev

demo: ## Show the bug and the cure on an emulated fleet (installs only what a Mac would)
	@sh scripts/set-up.sh $(VENV) base
	@$(BIN)/python -m basert_fleet.cli.demo

test: install ## Run all tests but the end-to-end ones; the decisions need 95 % branch coverage
	@rm -f .coverage .coverage.*
	$(BIN)/pytest --ignore=tests/e2e --numprocesses=$(PYTEST_WORKERS) --dist=loadfile --cov --cov-report=
	@$(BIN)/python scripts/check_branches.py --at-least 95

e2e: install ## Run the end-to-end tests: real processes, real sockets
	$(BIN)/pytest tests/e2e

bench: install ## Measure beside HAProxy (Linux, Go and haproxy; BENCH_QUICK=1: a minute, and the docs stay)
	$(BIN)/python -m benchmarks $(if $(BENCH_QUICK),--quick)

lint: install ## Check style, types, layers, duplicates and locks
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pylint operator/basert_fleet scripts
	$(BIN)/python scripts/check_locks.py

fmt: install ## Format the code and mend what ruff can
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

lock: ## Lock the dependencies of pyproject.toml (needs uv; LOCK_OPTIONS=--upgrade takes newer versions)
	@command -v $(UV) >/dev/null || { echo "make lock needs uv on PATH, or make UV=/path/to/uv lock" >&2; exit 1; }
	$(COMPILE) pyproject.toml --group build --output-file requirements/base.txt
	$(COMPILE) pyproject.toml --all-extras --group dev --constraint requirements/base.txt --output-file requirements/dev.txt

clean: ## Remove the environment, builds, caches and reports
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find operator scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
