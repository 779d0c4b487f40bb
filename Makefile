# `make demo` and `make test` work from a bare clone with Python 3.11+ and pip.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test unit check format clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: install            ## `esa demo`: asks a 38k-token chronicle questions with the default model.
	$(BIN)/esa demo

test: check              ## Every check and every test, the default model's included.
	$(BIN)/python -m pytest -m 'not model and not process' -n 2 --dist worksteal
	$(BIN)/python -m pytest -m 'model or process'

unit: install            ## What needs no model and no other process: under two minutes.
	$(BIN)/python -m pytest -m 'not model and not process' -n 2 --dist worksteal

check: install           ## Format, lint, types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist
