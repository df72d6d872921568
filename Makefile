# Two commands do everything: `make demo` and `make test`. Both make the environment first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
WORKERS ?= 2
DEMO_FLAGS ?= --workdir results/demo

.PHONY: demo test lint types tests notebooks format clean

demo: $(READY)
	@rm -rf results/demo
	$(BIN)/python -m experiments.buckets $(DEMO_FLAGS)

test: lint types tests notebooks

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYTHONPATH=. $(BIN)/lint-imports

types: $(READY)
	$(BIN)/basedpyright

tests: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadscope

notebooks: $(READY)
	@set -e; for notebook in $(wildcard notebooks/*.ipynb); do \
		$(BIN)/python -m pytest --nbmake "$$notebook"; done

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Installs once, and again only when what is to be installed changes.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
		"bucketjax needs Python 3.11 or newer; %s is %s: say make PYTHON=python3.11" \
		% (sys.executable, sys.version.split()[0]))'
	@echo "installing into $(VENV); the first time takes a few minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) results .pytest_cache .ruff_cache .hypothesis build dist
