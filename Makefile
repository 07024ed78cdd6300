PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := install --quiet --quiet --disable-pip-version-check
INSTALLED := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
E2E := .venv-e2e
PEERS := .venv-bench

.PHONY: run test test-slow test-all test-e2e chromium mongosh promtool zsh bench wrk fuzz mutants check format docs types version dist dist-check sync-client lock clean help

help: ## Show this help
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

run: $(INSTALLED) ## Set everything up and serve on http://127.0.0.1:8080
	@$(BIN)/python -m service serve --demo

# Bytecode is written even where the environment says not to: tests start Python many times.
test test-slow test-e2e: export PYTHONDONTWRITEBYTECODE :=

# Three at once on two cores: a third of their time is waiting.
test: $(DEV) ## Run the tests on a real MongoDB that they start themselves (PYTEST=--cov: hold the coverage against its floor)
	@$(BIN)/pytest -n 3 --dist loadgroup -m "not slow and not alone" $(PYTEST)

test-slow: $(DEV) ## Run the tests that start processes, take long, or measure
	@$(BIN)/pytest -n 2 --dist loadgroup -m "slow and not alone"
	@$(BIN)/pytest -m alone

test-all: test-slow ## Run the slow tests and the others, these with the coverage
	@$(MAKE) --no-print-directory test PYTEST="--cov --hypothesis-profile=thorough"

test-e2e: $(E2E)/.installed chromium mongosh promtool zsh ## Drive the running service with third-party tools: Chromium, Scrapy, pandas, mongosh, … (E2E_TESTS: some of them)
	@$(E2E)/bin/pytest -n 2 --dist loadfile $(or $(E2E_TESTS),tests/e2e)

bench: $(INSTALLED) $(PEERS)/.installed wrk ## Measure beside FastAPI, Fastify, Eve and the floor (BENCH=--quick: less data, shorter runs)
	@$(BIN)/python -m scripts.bench $(BENCH)

check: $(DEV) ## Run the linter, the formatter and the type checker
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(DEV) ## Format the code, and mend what the linter can mend
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

sync-client: $(DEV) ## Generate the synchronous client from the asynchronous one
	@$(BIN)/python -m scripts.sync_client

types: $(INSTALLED) ## Generate the types of the TypeScript client from the OpenAPI document
	@cd clients/typescript && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@mkdir -p build && $(BIN)/python -m scripts.openapi > build/openapi.json
	@cd clients/typescript && OPENAPI=../../build/openapi.json npm run --silent generate

version: $(DEV) ## Write the version of the changelog's newest release into every package
	@$(BIN)/python -m scripts.dist --version

dist: $(DEV) ## Build every package into dist/: sdist and wheel of service and client, the npm package, the image's context
	@$(BIN)/python -m scripts.dist

dist-check: $(DEV) ## Install what `make dist` built into empty environments, and write an item through each
	@$(BIN)/python -m scripts.dist --check

docs: $(INSTALLED) ## Write the generated parts of the documentation
	@{ sed '/^|/,$$d' docs/settings.md; $(BIN)/python -m service settings --markdown; } > docs/settings.md.new
	@mv docs/settings.md.new docs/settings.md

lock: $(DEV) ## Choose the newest allowed versions and write them with their hashes to constraints*.txt
	@$(BIN)/pip $(PIP) uv==0.13.7
	@for name in '' -dev -e2e; do \
		case "$$name" in -dev) extras="--extra dev";; -e2e) extras="--extra dev --extra e2e";; *) extras="";; esac; \
		printf "%s\n" "setuptools >= 77" "cython >= 3.1" | $(BIN)/uv pip compile setup.cfg - --extra local --extra parquet $$extras --upgrade \
			--quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url --no-strip-extras \
			--custom-compile-command "make lock" --output-file constraints$$name.txt \
			$$(test -z "$$name" || echo --constraints constraints.txt) || exit 1; \
	done

# The one-pass encoder is compiled where a compiler is at hand: it is built again when its sources change.
ENCODER := setup.py $(wildcard service/store/outputs/one_pass*.p[xy]*)

$(INSTALLED): $(ENCODER) setup.cfg clients/python/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "error: needs Python 3.11, 3.12 or 3.13: make PYTHON=/path/to/python3 ...")'
	@echo "setting up $(VENV), once; this takes a little while"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip $(PIP) --require-hashes -r constraints.txt
	@$(BIN)/pip $(PIP) --no-deps --no-build-isolation -e . -e clients/python
	@touch $@

$(DEV): $(INSTALLED) constraints-dev.txt
	@echo "adding the tools for tests and checks to $(VENV), once"
	@$(BIN)/pip $(PIP) --require-hashes -r constraints-dev.txt
	@touch $@

$(E2E)/.installed: $(ENCODER) setup.cfg clients/python/pyproject.toml constraints-e2e.txt
	@echo "setting up $(E2E)"
	@$(PYTHON) -m venv $(E2E)
	@$(E2E)/bin/pip $(PIP) --require-hashes -r constraints-e2e.txt
	@$(E2E)/bin/pip $(PIP) --no-deps --no-build-isolation -e . -e clients/python
	@touch $@

$(PEERS)/.installed: scripts/bench/peers/requirements.txt scripts/bench/peers/package.json
	@echo "setting up $(PEERS)"
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/pip $(PIP) -r $<
	@npm install --prefix scripts/bench/peers --no-audit --no-fund --no-package-lock --loglevel=error
	@touch $@

# $(call apt,COMMAND,PACKAGES,WHO NEEDS IT): install a tool as root on Debian or Ubuntu, else say what is missing.
define apt
	@if command -v $(1) >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing $(1) with apt-get"; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends $(2) >/dev/null && exit 0; \
	fi; \
	echo "error: $(3) $(1): install it (Debian: apt-get install $(2))" >&2; \
	exit 1
endef

wrk:
	$(call apt,wrk,wrk,the benchmark needs)

# CHROMIUM names one that is not on the PATH. The one without windows makes the tests much quicker.
chromium:
	@if command -v "$${CHROMIUM:-chromium-headless-shell}" >/dev/null; then exit 0; fi; \
	if [ -z "$$CHROMIUM" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium-headless-shell with apt-get"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends chromium-headless-shell fonts-dejavu-core >/dev/null && exit 0; \
	fi; \
	if [ -z "$$CHROMIUM" ] && command -v chromium >/dev/null; then exit 0; fi; \
	echo "error: the end-to-end tests need Chromium: install it (Debian: apt-get install chromium-headless-shell), or name it with CHROMIUM=/path/to/it" >&2; \
	exit 1

# For the alerts in docker/monitoring.
promtool:
	$(call apt,promtool,prometheus,the end-to-end tests need)

# For the completion of sds.
zsh:
	$(call apt,zsh,zsh,the end-to-end tests need)

# For the examples in docs/analysts.md.
mongosh: $(E2E)/.installed
	@command -v mongosh >/dev/null || test -x $(E2E)/node_modules/.bin/mongosh \
		|| npm install --prefix $(E2E) --no-audit --no-fund --no-package-lock --loglevel=error mongosh@2.12 \
		|| { echo "error: the documentation's examples need mongosh: install it, or Node.js with npm" >&2; exit 1; }

mutants: $(DEV) ## Break the code in one place at a time, and see whether the tests notice (MUTANTS: some of them)
	@$(BIN)/python -m scripts.mutants $(MUTANTS)

fuzz: $(DEV) ## Fuzz the service by its OpenAPI document for some minutes
	@$(BIN)/python -m scripts.fuzz

clean: ## Remove the environment and caches, but not the data
	rm -rf build service/store/outputs/one_pass.c service/store/outputs/one_pass.*.so
	rm -rf $(VENV) $(E2E) $(PEERS) .venv-harambe *.egg-info clients/python/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
