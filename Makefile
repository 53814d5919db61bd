# `make train` trains, `make check` looks at a change in a minute, `make test` runs every test. Each sets up what it
# needs, once.
PYTHON ?= python3
VENV ?= .venv
KIND ?= cpu
RECIPE ?= frozenlake
ARGS ?=

.PHONY: train check test setup lint clean

train: setup
	$(VENV)/bin/squelch train $(RECIPE) $(ARGS)

check: lint
	$(VENV)/bin/python -m pytest -m "not ray and not slow" -n 2 --dist worksteal $(ARGS)

test: setup
	PYTHON=$(VENV)/bin/python deploy/setup.sh test
	$(VENV)/bin/python -m pytest $(ARGS)

setup:
	PYTHON=$(PYTHON) VENV=$(VENV) deploy/setup.sh $(KIND)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/pyrefly check --python-interpreter-path $(VENV)/bin/python

clean:
	rm -rf $(VENV) .cache runs
