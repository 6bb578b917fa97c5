# Every target sets up what it needs in .venv, so a fresh clone needs only Python 3.11+, make and g++.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?=
DATA_FLAG := $(if $(DATA),--data $(DATA),)

.PHONY: demo test lint format bench clean
.DEFAULT_GOAL := demo

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

demo: $(VENV)/.dev  ## label scikit-learn's digits from 50 labels; table on screen, picture in demo.png
	$(BIN)/python -m homophily_service.demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench  ## make bench DATA=folder runs on the real sets, otherwise on synthetic stand-ins
	$(BIN)/python -m benchmarks all $(DATA_FLAG)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
