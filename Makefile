# Each target makes its own .venv if there is none; `make demo` and `make test` need nothing else.
# Another Python: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
AZURITE := 3.35.0
LINT := "$(BIN)/ruff check ." "$(BIN)/ruff format --check ." "$(BIN)/mypy" "$(BIN)/lint-imports"

.PHONY: help venv demo test lint chaos bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   kill a two-worker training twice and compare its end with that of an undisturbed one"
	@echo "make test   the gate: linters, types, layers and tests"
	@echo "make lint   without the tests"
	@echo "make chaos  the long campaigns: every kill, strategy and data source"
	@echo "make bench  what backups cost, measured beside Keras', Orbax' and TensorFlow's own"
	@echo "make clean  remove what these have made, .venv included"

venv: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11; name another one: make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[test]" --group dev
	@# Azure's tests need its emulator; without npm they are skipped, and say so.
	if command -v npm >/dev/null; then npm install --silent --no-fund --no-audit --prefix .venv/azurite azurite@$(AZURITE); fi
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	@.ci/parts $(LINT) "$(BIN)/python -m pytest -n 2"

lint: $(STAMP)
	@.ci/parts $(LINT)

chaos: $(STAMP)
	$(BIN)/python -m pytest -m chaos

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv runs build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
