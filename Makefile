# Thin on purpose: each target sets up .venv when it is missing and then runs one command.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml tests/requirements.txt $(wildcard plugins/*/pyproject.toml)

.PHONY: demo test lint bench coverage ensemble certificates generator

.venv/installed: $(SOURCES)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	touch $@

demo: .venv/installed
	$(BIN)/rt demo
	$(BIN)/rt demo --certificates

test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/ranks.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/run_overhead.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/attack_step.py

coverage: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/coverage.py

ensemble: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/ensemble.py

certificates: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/center_smoothing.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/randomized_smoothing.py

generator: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/generator_step.py
