# Two commands do everything: `make demo` and `make test`. Both make the environment first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
WORKERS ?= 2
DEMO_FLAGS ?= --num-lines 1200 --resample 0.2 --hidden 64 --layers 1 --batch-size 8 \
	--learning-rate 0.01 --epochs 6

.PHONY: demo test lint types tests notebooks bench format clean

# Every arm on one device, then the arm with 8 buckets again on two.
demo: $(READY)
	@rm -rf results/demo results/demo-2-devices
	$(BIN)/python -m experiments.buckets $(DEMO_FLAGS) --workdir results/demo
	$(BIN)/python -m experiments.buckets $(DEMO_FLAGS) --workdir results/demo-2-devices \
		--num-devices 2 --num-buckets 8 --no-batch-max

test: lint types tests notebooks

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYTHONPATH=. $(BIN)/lint-imports

# The step beside flax, optax and torch; torch comes with the extra `bench`.
bench: $(READY)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m experiments.step $(BENCH_FLAGS)

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
