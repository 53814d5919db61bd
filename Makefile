# Two commands do everything: `make train` and `make test`. Both set up what they need, once.
PYTHON ?= python3
VENV ?= .venv
KIND ?= cpu
RECIPE ?= frozenlake
ARGS ?=

.PHONY: train test setup lint clean

train: setup
	$(VENV)/bin/squelch train $(RECIPE) $(ARGS)

test: setup
	PYTHON=$(VENV)/bin/python deploy/setup.sh test
	$(VENV)/bin/python -m pytest $(ARGS)

setup:
	PYTHON=$(PYTHON) VENV=$(VENV) deploy/setup.sh $(KIND)

lint: setup
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

clean:
	rm -rf $(VENV) .cache runs
