PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: run test test-cold check clean help

help: ## Show this help
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

run: $(INSTALLED) ## Set everything up and serve on http://127.0.0.1:8080
	@$(BIN)/python -m service serve --demo

test: $(INSTALLED) ## Run all tests on a real MongoDB that they start themselves
	@$(BIN)/pytest -n 2 --dist loadgroup

test-cold: $(INSTALLED) ## Download the database engine into an empty cache, as a newcomer's machine does
	@$(BIN)/pytest -m cold

check: $(INSTALLED) ## Run the linter, the formatter and the type checker
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

$(INSTALLED): setup.cfg
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

clean: ## Remove the environment and caches, but not the data
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
