# Everything runs in .venv, made on first use; `make help` lists the targets.
PYTHON ?= python3
ARGS ?=
MODEL ?=
SEED ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip -qq
BASE := .venv/base.stamp
DEV := .venv/dev.stamp
LOCAL := .venv/local.stamp
# `make quick` leaves out the tests that run the docs, need a server or take long.
LONG := $(patsubst %,tests/test_%.py,api benchmarks docs forks project site transfer tutorial values)
QUICK := $(wildcard tests/behaviours tests/kernel) $(filter-out $(LONG),$(wildcard tests/test_*.py))
TYPED := $(wildcard src tests/typing/*.py examples/*.py examples/plugin/src/*)
PEERS := $(sort $(basename $(notdir $(wildcard requirements/peers/*.txt))))
COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
	--python-version 3.11

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo quick test attack campaign siege faults phoenix check format docs site shots api bench peers load dist lock clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | while IFS='	' read -r name text; do printf '  %-8s %s\n' "$$name" "$$text"; done

setup: $(BASE) ## Make .venv with Windlass and its base dependencies

demo: $(BASE) $(if $(filter local:%,$(MODEL)),$(LOCAL)) ## Run the demo (base only); MODEL=local:smollm2 for a real model
	@$(if $(filter local:smollm2,$(MODEL)),$(BIN)/windlass local install >/dev/null)
	@$(BIN)/windlass demo $(if $(MODEL),--model '$(MODEL)') $(ARGS)

quick: $(DEV) ## Check format, lint and types (mypy), test behaviours and kernel: half a minute
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary $(TYPED)
	@$(BIN)/python -m pytest -q -n auto --dist worksteal $(QUICK) $(ARGS)

# Without a network the weights cannot be fetched: the tests that need them then say so and are skipped.
test: $(DEV) ## Run the tests; ARGS="-k name" goes to pytest
	@$(BIN)/windlass local install >/dev/null || true
	@$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

attack: $(DEV) ## Attack the hooks over the whole matrix of events, decisions and ways of running
	@WINDLASS_ATTACK=1 $(BIN)/python -m pytest -q -n auto tests/attacks $(ARGS)

campaign: $(DEV) ## Kill every scenario on every store, cancel 10,000 turns, simulate capabilities, try 10,000 agent files, MCP results, HTTP bodies, answers of hooks
	@WINDLASS_CAMPAIGN=1 WINDLASS_SOAK_SECONDS=60 $(BIN)/python -m pytest -q -n auto \
		tests/agent_files tests/compat/claude_code/test_reading.py tests/crash tests/mcp/test_contents.py tests/replay \
		tests/server/test_bodies.py tests/server/test_streams.py tests/simulation tests/test_cancel_anywhere.py $(ARGS)

siege: $(DEV) ## Kill, stop, cut off and race processes and tamper with both stores for five to ten minutes; SEED=7 repeats it
	@seed=$(or $(SEED),$$(date +%s)); echo "seed $$seed; repeat it with: make siege SEED=$$seed"; \
		WINDLASS_SIEGE=1 WINDLASS_SIEGE_SEED=$$seed WINDLASS_SEED=$$seed $(BIN)/python -m pytest -q -n 2 -rP \
		--show-capture=stdout tests/siege tests/crash/test_ownership.py tests/stores/test_tampering.py $(ARGS)

faults: $(DEV) ## Kill workers and servers, cut lines and let clocks jump under 200 sessions, and print figures; SEED=7 repeats
	@WINDLASS_FAULTS=1 WINDLASS_FAULTS_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -q -n 0 -rP --show-capture=stdout \
		tests/faults $(ARGS)

phoenix: $(DEV) .venv-phoenix/stamp ## Send spans to Arize Phoenix and read them back; installs 850 MB into .venv-phoenix
	@WINDLASS_PHOENIX=$(CURDIR)/.venv-phoenix/bin/phoenix $(BIN)/python -m pytest -q -n 0 \
		tests/capabilities/test_phoenix.py $(ARGS)

check: $(DEV) ## Check format, lint, types and import contracts, and build the site strictly
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary $(TYPED)
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/build_site.py

format: $(DEV) ## Format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

docs: $(DEV) ## Generate the reference pages and the table of behaviours, and run the tutorial for what it prints
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/transcripts.py
	@WINDLASS_WRITE_HELP=1 $(BIN)/python -m pytest -q -n 0 tests/cli/test_help.py >/dev/null

site: $(DEV) ## Build the documentation as a site in build/site; ARGS=--serve serves it on this machine
	@$(BIN)/python docs/build_site.py $(ARGS)

shots: $(DEV) ## Take the pictures of the inspector in docs/images; needs chromium
	@WINDLASS_SHOTS=1 $(BIN)/python -m pytest -q -n 0 tests/inspector/test_shots.py -k picture_has $(ARGS)

api: $(DEV) ## Rewrite tests/api.txt, the list of what is public
	@$(BIN)/python tests/test_api.py

bench: $(DEV) ## Run the benchmarks
	@$(BIN)/python benchmarks/run.py $(ARGS)

peers: $(DEV) $(PEERS:%=.venv-peers/%/stamp) ## Measure Windlass and eight other frameworks in environments of their own (half an hour), and write the page
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir .venv-peers/wheel .
	@.venv-peers/windlass/bin/python -m pip -qq install --no-deps --force-reinstall .venv-peers/wheel/windlass-*.whl
	@$(BIN)/python benchmarks/peers/run.py $(ARGS)
	@$(BIN)/python docs/generate.py

load: $(DEV) ## Measure 10,000 sessions at once (a quarter of an hour), and write the page; ARGS="--soak 30" for a long soak
	@$(BIN)/python benchmarks/load.py $(ARGS)
	@$(BIN)/python docs/generate.py

dist: $(DEV) ## Build the wheel and the sdist, check them, and try the wheel with each extra; ARGS=ui tries one
	@$(BIN)/python -m release $(ARGS)

lock: $(DEV) ## Re-compile requirements/*.txt; ARGS=--upgrade takes newer versions
	$(COMPILE) $(ARGS) pyproject.toml requirements/base.in -o requirements/base.txt
	$(COMPILE) $(ARGS) pyproject.toml requirements/dev.in --all-extras -o requirements/dev.txt
	$(COMPILE) $(ARGS) pyproject.toml requirements/local.in --extra local -o requirements/local.txt
	@for peer in $(PEERS); do \
		$(COMPILE) $(ARGS) requirements/peers/$$peer.in $$(test $$peer != windlass || echo pyproject.toml) \
			-o requirements/peers/$$peer.txt || exit 1; done

clean: ## Remove .venv, builds and caches
	@rm -rf .venv .venv-peers .venv-phoenix build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip is the last thing venv puts there: without it a venv is not whole.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Windlass needs Python 3.11 or newer, not " + sys.version)'
	@echo "Making .venv"
	@$(PYTHON) -m venv .venv

# Hashed pins and an editable install do not go into one pip call, hence two steps.
$(BASE): requirements/base.txt pyproject.toml | $(BIN)/pip
	@echo "Installing $<"
	@$(PIP) install --require-hashes --no-deps -r $<
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(LOCAL): requirements/local.txt $(BASE)
	@echo "Installing $<"
	@$(PIP) install --require-hashes --no-deps -r $<
	@touch $@

$(DEV): requirements/dev.txt $(BASE)
	@echo "Installing $<"
	@$(PIP) install --require-hashes --no-deps -r $<
	@$(BIN)/python -m pip check
	@touch $@

# It has nothing to do with the lock: a program of its own, which only the target `phoenix` starts.
.venv-phoenix/stamp:
	@echo "Installing Phoenix"
	@$(PYTHON) -m venv .venv-phoenix
	@.venv-phoenix/bin/python -m pip -qq install arize-phoenix==20.26.1
	@touch $@

.venv-peers/%/stamp: requirements/peers/%.txt
	@echo "Installing $<"
	@$(PYTHON) -m venv .venv-peers/$*
	@.venv-peers/$*/bin/python -m pip -qq install --require-hashes --no-deps -r $<
	@.venv-peers/$*/bin/python -m pip check
	@touch $@
