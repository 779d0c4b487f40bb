# `make demo` and `make test` work from a bare clone with Python 3.11+ and pip.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := $(VENV)/.extras

.PHONY: install demo test unit soak mutation check wheel wheel-test clean-install extras-check reference sizes way format screenshots clean

MUTANTS ?= 40
SEED ?=

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(EXTRAS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ocr,finders,torchao,bitsandbytes]'
	touch $@

demo: install            ## `esa demo`: asks a 38k-token chronicle questions with the default model.
	$(BIN)/esa demo

test: check $(EXTRAS)    ## Every check and every test, the default model's included.
	$(BIN)/python -m pytest -m 'not model and not process and not training and not families' -n 2 --dist worksteal
	$(BIN)/python -m pytest -m '(training or families) and not model and not process' -n 2 --dist worksteal
	$(BIN)/python -m pytest -m 'model or process'

# Many images forbid bytecode files: then each process of the tests compiles every module again.
unit test: export PYTHONDONTWRITEBYTECODE =

unit: install            ## What needs no model, no other process, no training and no family of models but Llama: about two minutes.
	$(BIN)/python -m pytest -m 'not model and not process and not training and not families' -n 2 --dist worksteal

soak: install            ## Property tests, mutated documents and models, random damage and kills with EXAMPLES=1000 random examples each.
	ESA_SOAK_EXAMPLES=$(or $(EXAMPLES),1000) $(BIN)/python -m pytest -q -k "properties or fuzz or ignore_rules or damaged_models or at_random"

mutation: install        ## Small changes of the code that the tests should notice: MUTANTS=40, SEED=1; half an hour. Not in CI.
	$(BIN)/python tests/mutation.py --mutants $(MUTANTS) --seed $(or $(SEED),1)

check: install           ## Format, lint, types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

wheel: install           ## Wheel and sdist in dist/, checked by twine in an environment of its own.
	rm -rf dist build/twine
	$(BIN)/python -m build --no-isolation
	$(PYTHON) -m venv build/twine
	build/twine/bin/python -m pip install --quiet --disable-pip-version-check twine
	build/twine/bin/twine check --strict dist/*

wheel-test: install      ## What wheel and sdist hold, and `esa` from the wheel; a part of `make test`.
	$(BIN)/python -m pytest tests/test_package.py

clean-install: wheel     ## The wheel with all its dependencies in an empty environment; the demo there.
	rm -rf build/empty
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build/empty && bin/esa doctor && bin/esa presets show && bin/esa demo

extras-check: install    ## Resolves every extra under constraints.txt; needs the package index.
	$(BIN)/python tests/support/extras_check.py

reference: install       ## The reference of commands and options in docs/cli.md, from their help.
	PYTHONPATH=. $(BIN)/python docs/make_cli_reference.py

way: install             ## Files and frames from `esa ask` to its answer.
	$(BIN)/python tests/support/way.py

sizes: install           ## Files, lines, words of the docs, options of the command line.
	PYTHONPATH=. $(BIN)/python tests/support/sizes.py

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

gpu:                     ## What needs a CUDA GPU, with the Python that PYTHON names: tests, then times of kernels and long texts.
	-$(PYTHON) -m pytest -q -m gpu tests/attention tests/models tests/storage
	-$(PYTHON) benchmarks/gpu.py kernels --out benchmarks/results/gpu/kernels.jsonl
	-$(PYTHON) benchmarks/gpu.py texts --lengths 32k,128k --out benchmarks/results/gpu/texts.jsonl

screenshots: install     ## The server's page with the default model, in docs/. Needs a Chromium.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,browser]'
	$(BIN)/python docs/make_screenshots.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist
