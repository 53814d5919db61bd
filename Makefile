# `make train` trains, `make check` looks at a change in a minute, without the tests of `research/`, `make test` runs
# every test, `make walk` runs pages of the guide and the README as a reader would (PAGE=docs/guide/filter.md: one page;
# ALL=1: every page with marks, about an hour). Each sets up what it needs, once. `make setup LOCKED=1` installs only
# packages whose digests deploy/lock-cpu.txt holds.
PYTHON ?= python3
VENV ?= .venv
KIND ?= cpu
LOCKED ?=
RECIPE ?= frozenlake
ARGS ?=
# Tests that start Ray or load vLLM run one after another in one process, and the others in two beside it
# (tests/conftest.py). What fails is run once more at once, under the same load: real processes may exceed their bounds on
# a machine that others use. A test that fails twice fails the command; one that needed its second try is shown with its
# first failure, in build/first-try-failures.txt too, and is to be mended the same day.

.PHONY: train check test walk docs setup setup-smollm2 lint clean

train: setup $(if $(filter smollm2% prompts,$(RECIPE)),setup-smollm2)
	$(VENV)/bin/squelch train $(RECIPE) $(ARGS)

check: lint
	$(VENV)/bin/python -m pytest -m "not ray and not slow" --ignore=tests/research -n 2 $(ARGS)

test: setup
	VENV=$(VENV) PYTHON=$(VENV)/bin/python deploy/setup.sh test
	$(VENV)/bin/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder --reruns 1 $(ARGS)

walk: setup
	VENV=$(VENV) PYTHON=$(VENV)/bin/python deploy/setup.sh test
	VENV=$(VENV) deploy/setup.sh smollm2
	$(VENV)/bin/python -m tests.walk $(PAGE) $(if $(ALL),--all --fresh) $(ARGS)

docs: setup
	$(VENV)/bin/sphinx-build -q -W --keep-going docs build/docs
	@echo "open build/docs/index.html"

setup:
	PYTHON=$(PYTHON) VENV=$(VENV) LOCKED=$(LOCKED) deploy/setup.sh $(KIND)

setup-smollm2: setup
	VENV=$(VENV) deploy/setup.sh smollm2

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/pyrefly check --python-interpreter-path $(VENV)/bin/python

clean:
	rm -rf $(VENV) .cache runs
