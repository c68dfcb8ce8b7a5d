# `make demo` and `make test` do all the set-up that they need, on a fresh machine too.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# On some virtual machines a native build of llama.cpp crashes; see README.md.
CMAKE_ARGS ?= -DGGML_NATIVE=OFF
export CMAKE_ARGS

.PHONY: demo test test-slow check bench docs clean install

demo: $(STAMP)
	$(BIN)/copyahead demo

test: check
	$(BIN)/pytest -q -m "not slow"

test-slow: check
	$(BIN)/pytest -q

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m copyahead.cli.reference --check docs/cli.md

bench: $(STAMP)
	@for program in benchmarks/bench_*.py; do \
	  echo "== $$program"; $(BIN)/python $$program || exit 1; \
	done

docs: $(STAMP)
	$(BIN)/python -m copyahead.cli.reference docs/cli.md

install: $(STAMP)

# Building llama.cpp takes 4 to 7 minutes on two cores, once: pip keeps the wheel.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[demo,grammar,dev]'
	$(BIN)/copyahead warmup
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache bench-*.json
	find src tests benchmarks -name __pycache__ -type d -exec rm -rf {} +
