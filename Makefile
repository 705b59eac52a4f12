# Each target makes its own .venv if it does not exist; `make demo` and `make test` need nothing else.
# Another Python: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
AZURITE := 3.35.0
# -E: a page that did not change is read too, or a second build would not repeat its warnings
DOCS := "$(BIN)/sphinx-build -E -q -n -W --keep-going docs build/docs"
LINT := "$(BIN)/ruff check ." "$(BIN)/ruff format --check ." "$(BIN)/mypy" "$(BIN)/lint-imports"

# `make chaos` takes other cases each day; `make chaos SEED=7` takes those of a certain one.
SEED ?= $(shell date +%j | sed 's/^0*//')
SHARE ?= 0.15
PART ?= tests

# Interpreters of `make versions`: names on PATH or paths; pairs such as 2.21:3.12 or 2.21:newest; and its checks.
PYTHONS ?=
PAIRS ?=
CHECKS ?=

# A Markdown file for the table of `make gpu`.
OUT ?=

.PHONY: help venv demo test quick lint docs links recipes versions package chaos chaos-full bench gpu pictures clean
.DEFAULT_GOAL := help

help:
	@echo "make demo        kill a two-worker training twice and compare its end with that of an uninterrupted one"
	@echo "make test        the gate: linters, types, layers and tests"
	@echo "make quick       within a minute: style, and tests that need no other process"
	@echo "make lint        the gate without the tests"
	@echo "make docs        the documentation site, in build/docs"
	@echo "make links       whether what the site links to in other places exists"
	@echo "make recipes     the examples with other libraries, killed and resumed; in an environment of their own"
	@echo "make versions    kills, resumes and quick tests under each supported Python, TensorFlow and Keras"
	@echo "make package     build wheel and sdist, check them, install the wheel elsewhere and use it there"
	@echo "make chaos       a share of every stress test, by seed: SEED=$(SEED) SHARE=$(SHARE)"
	@echo "make chaos-full  every stress test completely; continues where an earlier run on this commit ended; PART=$(PART)"
	@echo "make bench       what backups cost, next to Keras', Orbax' and TensorFlow's own"
	@echo "make gpu         kills and resumes under each strategy on this machine's GPUs, and a snapshot's cost; OUT=FILE.md"
	@echo "make pictures    draw those in docs/ again: of a run that is killed, of the demo, of what make bench has stored"
	@echo "make clean       remove what these have made, .venv included"

venv: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11; name another one: make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[test]" --group dev --group docs
	@# Azure's tests need its emulator; without npm they are skipped, and say so.
	if command -v npm >/dev/null; then npm install --silent --no-fund --no-audit --prefix .venv/azurite azurite@$(AZURITE); fi
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	@.ci/parts $(LINT) $(DOCS) "$(BIN)/python -m pytest -n 2 --dist worksteal --durations 10 --durations-min 0"

quick: $(STAMP)
	@.ci/parts "$(BIN)/ruff check --quiet ." "$(BIN)/python -m pytest -n 2 --dist worksteal -q --durations 5 -m 'not (chaos or cluster or kill or process or slow)'"

lint: $(STAMP)
	@.ci/parts $(LINT)

docs: $(STAMP)
	@.ci/parts $(DOCS)

links: $(STAMP)
	$(BIN)/sphinx-build -q -n -b linkcheck docs build/links

recipes: .venv/recipes/.installed
	.venv/recipes/bin/python -m pytest -n 2 -m "" --durations 10 tests/examples

.venv/recipes/.installed: $(STAMP)
	$(PYTHON) -m venv .venv/recipes
	.venv/recipes/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv/recipes/bin/python -m pip install --quiet --editable ".[test]" --group recipes
	touch $@

versions:
	$(PYTHON) tests/versions/matrix.py $(PYTHONS) $(if $(PAIRS),--pairs $(PAIRS)) $(if $(CHECKS),--checks $(CHECKS))

package: $(STAMP)
	$(BIN)/python -m tests.versions.package

chaos: $(STAMP)
	@echo "the same cases again: make chaos SEED=$(SEED) SHARE=$(SHARE)"
	$(BIN)/python -m pytest -n 2 --dist worksteal -m chaos --chaos-share $(SHARE) --chaos-seed $(SEED) -v --durations 10

# pytest's code 5 is that no test was left
chaos-full: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m chaos --chaos-log .chaos/passed --durations 10 $(PART) || [ $$? -eq 5 ]

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	$(BIN)/python -m benchmarks

# without a GPU, on logical CPU devices: that it runs is all that this shows
gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu $(if $(OUT),--out $(OUT))

pictures: $(STAMP)
	$(BIN)/python -m benchmarks.pictures

clean:
	rm -rf .venv .chaos runs build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
