# `make lab` opens the course, `make test` proves it. `make` alone lists every target.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
WORKERS ?= 2
SUITE   := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help lab test course bench lint format clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | sort | expand -t 12

$(VENV)/.made:
	$(PYTHON) -c 'import sys; v = sys.version_info; assert (3, 10) <= v[:2] <= (3, 13), f"picolib needs Python 3.10 to 3.13, this is {v.major}.{v.minor}: make PYTHON=python3.12 …"'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.lab: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[course]'
	touch $@

$(VENV)/.test: $(VENV)/.lab
	$(PIP) --editable '.[test]'
	touch $@

lab: $(VENV)/.lab  ## open the course in JupyterLab (your own copies live in workspace/)
	$(BIN)/picolib lab

test: $(VENV)/.test  ## lint, tests, every notebook and solution under nbval, the generator's check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check picolib tests benchmarks
	$(SUITE) -n $(WORKERS) --dist loadscope tests
	$(BIN)/python -m picolib.course.generate --check
	$(SUITE) -p no:cacheprovider --nbval --nbval-current-env --nbval-cell-timeout=120 --nbval-kernel-startup-timeout=60 \
		--nbval-sanitize-with tests/nbval_sanitize.cfg notebooks solutions

course: $(VENV)/.test  ## execute and refresh all notebooks, then regenerate exercises/
	$(BIN)/python -m picolib.course.execute notebooks solutions
	$(BIN)/python -m picolib.course.generate

bench: $(VENV)/.test  ## measure against torch's own implementations (tables and figures in benchmarks/results)
	$(BIN)/python -m benchmarks

lint: $(VENV)/.test  ## ruff only
	$(BIN)/ruff check . && $(BIN)/ruff format --check picolib tests benchmarks

format: $(VENV)/.test  ## let ruff format the code
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format picolib tests benchmarks

clean:  ## remove the virtual environment and build products (never workspace/)
	rm -rf $(VENV) build dist *.egg-info
