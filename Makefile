# `make` lists what can be made. Everything goes into $(VENV); nothing here needs root but the tests' own Slurm.
PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= auto
ARGS    ?=

PY      := $(VENV)/bin/python
PIP     := $(PY) -m pip --disable-pip-version-check --quiet
PYTEST  := $(PY) -m pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist loadgroup
# Tests of the second kind need what root installs; a compiler is often there already.
NO_SERVICE := not slurm and not browser$(if $(shell command -v cc), , and not compiler)
SERVICE    := (slurm or browser$(if $(shell command -v cc),, or compiler))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

.PHONY: help run lab test test-fast test-full test-modal lint bench clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

run: $(VENV)/.run ## Install the product and run notebooks/quickstart.ipynb on this machine (about a minute)
	@$(PY) notebooks/run.py notebooks/quickstart.ipynb $(ARGS)

lab: $(VENV)/.lab ## Open the quickstart in JupyterLab
	@$(PY) -m jupyterlab $$([ "$$(id -u)" != 0 ] || echo --allow-root) notebooks/quickstart.ipynb $(ARGS)

test: $(VENV)/.test lint ## Lint, types, layers, all tests but the long matrices; starts a real Slurm (root or sudo)
	@$(call tests,not full and not torch and not account)

test-fast: $(VENV)/.test ## The tests that need no service
	@$(PYTEST) -m "$(NO_SERVICE) and not full and not torch and not account" $(ARGS)

test-full: $(VENV)/.torch lint ## All tests, the long matrices too (hours)
	@$(call tests,not account)

test-modal: $(VENV)/.test ## A few runs on the real Modal, with your account (MODAL_TOKEN_ID and MODAL_TOKEN_SECRET; some cents)
	@$(PYTEST) -m account tests/backends/test_modal_account.py $(ARGS)

lint: $(VENV)/.test ## Style, types and layers
	@rc=0; $(PY) -m ruff check . || rc=1; $(PY) -m ruff format --check . || rc=1; \
	$(PY) -m mypy || rc=1; $(VENV)/bin/lint-imports --no-logo || rc=1; exit $$rc

bench: $(VENV)/.test ## Measure the overheads beside raw sbatch and submitit (root or sudo)
	@$(as_root) && $(slurm) && $$as $(PY) -m tests.bench $(ARGS)

clean: ## Remove the environment and all that was made here
	rm -rf "$(VENV)" build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# Two runs: first what any user may run, then what stands on services, as root. Both run, whatever the first says.
define tests
rc=0; $(PYTEST) -m "$(NO_SERVICE) and $(1)" $(ARGS) || rc=1; \
$(as_root) && $(slurm) && $(debian) && $$as $(PYTEST) -m "$(SERVICE) and $(1)" $(ARGS) || rc=1; \
exit $$rc
endef

# Sets $$as to what runs a command as root.
define as_root
if [ "$$(id -u)" = 0 ]; then as=; \
elif sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; then as="sudo -E env PYTHONDONTWRITEBYTECODE=1"; \
else echo "The service tests did not run: they start a real Slurm, which needs root or sudo. Without: make test-fast." >&2; \
  exit 1; fi
endef

# What the services are made of, from Debian's packages; nothing is started here.
slurm  = $$as $(PY) tests/clusters/slurm.py install
debian = { command -v chromium >/dev/null && command -v cc >/dev/null || { $$as apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
  $$as apt-get install -qq --yes --no-install-recommends chromium gcc libc6-dev >/dev/null; }; }

$(VENV)/.python:
	@command -v "$(PYTHON)" >/dev/null || { echo "No $(PYTHON) here. Install Python 3.10 or newer, or: make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PYTHON) is $$("$(PYTHON)" -V 2>&1), but 3.10 or newer is needed: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: apt-get install python3-venv" >&2; exit 1; }
	@"$(PYTHON)" -m venv "$(VENV)"
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.run: $(VENV)/.python pyproject.toml
	@echo "Installing clusterkernel into $(VENV) ..."
	@$(PIP) install --editable . --group quickstart
	@touch $@

$(VENV)/.lab: $(VENV)/.run
	@echo "Installing JupyterLab into $(VENV) ..."
	@$(PIP) install --editable '.[lab]'
	@touch $@

$(VENV)/.test: $(VENV)/.python pyproject.toml
	@echo "Installing clusterkernel and what its tests need into $(VENV) ..."
	@$(PIP) install --editable '.[all]' --group test
	@touch $@

$(VENV)/.torch: $(VENV)/.test
	@echo "Installing PyTorch into $(VENV) ..."
	@$(PIP) install --group torch
	@touch $@
