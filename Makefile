# Shortcuts for lra-bench commands. Every target creates .venv if necessary; `make help` lists the targets.
#
#   make bench MODEL=performer TASK=listops
#   make bench MODEL=performer,local TASK=listops SEED=0,1,2 ARGS="train.lr=3e-4 --dry-run"

SHELL := bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

# Variables that are not set are not passed on, so that the defaults of lra-bench apply.
choice = $(if $($(1)),"$(2)=$($(1))")
option = $(if $($(1)),$(2) "$($(1))")
CHOICES = $(strip $(call choice,TASK,task) $(call choice,MODEL,model) $(call choice,POSITION,position) \
  $(call choice,PROTOCOL,protocol) $(call choice,HARDWARE,hardware) $(call choice,SEED,seed))

.DEFAULT_GOAL := help

# Variables that each target reads. make ignores other variables, so any other variable on the command line is an error.
reads_bench := TASK MODEL POSITION PROTOCOL HARDWARE SEED ARGS
reads_profile := $(reads_bench)
reads_grid := ARGS
reads_evaluate := RECORD ARGS
reads_leaderboard := TASK PROTOCOL ARGS
reads_compare := A B TASK PROTOCOL ARGS
reads_plots := TASK PROTOCOL ARGS
reads_data := TASK PROTOCOL ARGS
reads_test := ARGS
reads_test-slow := ARGS
reads_test-long := ARGS
reads_docs := ARGS
GOALS := $(or $(MAKECMDGOALS),$(.DEFAULT_GOAL))
READ := $(foreach goal,$(GOALS),$(reads_$(goal))) PYTHON VENV
MAKES_OWN := SHELL .SHELLFLAGS MAKE MAKEFLAGS MAKEFILES
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
UNKNOWN := $(firstword $(filter-out $(READ) $(MAKES_OWN),$(GIVEN)))
ifeq ($(MAKELEVEL),0) # a make that another make started inherits the variables of both
ifneq ($(UNKNOWN),)
MEANT := $(filter $(shell printf %s '$(subst ','\'',$(UNKNOWN))' | tr a-z A-Z),$(READ))
OTHERS := $(if $(filter ARGS,$(READ)),; write other options as ARGS="train.lr=3e-4")
ifneq ($(MEANT),)
$(error $(UNKNOWN): make accepts $(MEANT)=…$(OTHERS))
else ifneq ($(and $(OTHERS),$(findstring .,$(UNKNOWN))),)
$(error $(UNKNOWN): write ARGS="$(UNKNOWN)=$(value $(UNKNOWN))")
else
$(error $(UNKNOWN): make $(GOALS) accepts $(strip $(READ))$(OTHERS))
endif
endif
endif

.PHONY: help setup bench grid profile evaluate leaderboard compare plots data docs test test-slow test-long check wheel sdist clean

help: ## Print this list of targets
	@echo "Variables: TASK MODEL POSITION PROTOCOL HARDWARE SEED (several values with commas), ARGS (other options), PYTHON"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(INSTALLED) ## Create .venv and install lra-bench (every other target does this too)

$(INSTALLED): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) is not installed; name another interpreter: make setup PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || { \
	  echo "lra-bench needs Python 3.11, 3.12 or 3.13, $(PYTHON) is $$("$(PYTHON)" -V 2>&1); name another interpreter: make setup PYTHON=python3.12" >&2; exit 1; }
	@test -x "$(BIN)/pip" || "$(PYTHON)" -m venv "$(VENV)"
	"$(BIN)/pip" install -c constraints.txt -e .
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	"$(BIN)/pip" install -c constraints.txt -e '.[dev]'
	@touch $@

bench: $(INSTALLED) ## Train and measure a cell or a grid: MODEL=performer,local TASK=listops SEED=0,1,2
	"$(BIN)/lra-bench" bench $(CHOICES) $(ARGS)

grid: $(INSTALLED) ## Show or stop grids in the background and in queues: ARGS=status, ARGS="stop GRID"
	"$(BIN)/lra-bench" grid $(or $(ARGS),status)

profile: $(INSTALLED) ## Compare speed, memory and FLOPs of untrained models with exact attention: MODEL=performer,local
	"$(BIN)/lra-bench" profile $(CHOICES) $(ARGS)

evaluate: $(INSTALLED) ## Test the best weights of a record again: RECORD=results/runs/….json ARGS="--lengths 1000,2000"
	"$(BIN)/lra-bench" evaluate $(call option,RECORD) $(ARGS)

leaderboard: $(INSTALLED) ## Print the best rows of each task, or one TASK or PROTOCOL; ARGS=--write writes all tables
	"$(BIN)/lra-bench" leaderboard $(call option,TASK,--task) $(call option,PROTOCOL,--protocol) $(ARGS)

compare: $(INSTALLED) ## Compare two variants: A=transformer B="transformer causal=true" TASK=listops
	@test -n "$(A)" -a -n "$(B)" || { echo 'compare: name two variants, such as make compare A=transformer B="transformer causal=true"' >&2; exit 2; }
	"$(BIN)/lra-bench" compare "$(A)" "$(B)" $(call option,TASK,--task) $(call option,PROTOCOL,--protocol) $(ARGS)

plots: $(INSTALLED) ## Draw the figures of all records, or of one TASK (or group) or PROTOCOL
	"$(BIN)/lra-bench" plot $(call option,TASK,--task) $(call option,PROTOCOL,--protocol) $(ARGS)

data: $(INSTALLED) ## Generate or download the data of tasks in advance: TASK=listops, TASK=lra
	"$(BIN)/lra-bench" data prepare $(call option,TASK) $(call option,PROTOCOL,--protocol) $(ARGS)

# The theme prints announcements of its authors unless this variable is set.
docs check: export NO_MKDOCS_2_WARNING := 1

docs: $(INSTALLED_DEV) ## Serve the site of the documentation at http://127.0.0.1:8000, built again after each change
	"$(BIN)/python" -m mkdocs serve $(ARGS)

test: $(INSTALLED_DEV) ## Run the fast tests; select some with ARGS="tests/project/test_imports.py -k cycle"
	"$(BIN)/pytest" -n 2 --dist worksteal $(ARGS)

# Tests that measure time or memory run without other tests. pytest exits with 5 if ARGS selects no test of one kind.
test-slow: $(INSTALLED_DEV) ## Run the slow tests, which take minutes
	"$(BIN)/pytest" -m "slow and not alone and not long" -n 2 --dist worksteal $(ARGS) || test $$? = 5
	"$(BIN)/pytest" -m "slow and alone and not long" $(ARGS) || test $$? = 5

test-long: $(INSTALLED_DEV) ## Run the tests that take longer than all slow ones together
	"$(BIN)/pytest" -m long $(ARGS)

# mypy does not support package-dir of setuptools, so it checks the layout of the wheel, built from symbolic links.
TYPED := build/typed
check: $(INSTALLED_DEV) ## Check style, spelling, types, import rules and links, and build the site in build/site
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/codespell" -D - -D .words-to-avoid
	@rm -rf $(TYPED) && mkdir -p $(TYPED)/lra_bench
	@ln -s "$(CURDIR)"/lra_bench/* "$(CURDIR)"/{conf,models,tasks} "$(CURDIR)/results/published" $(TYPED)/lra_bench
	@ln -s "$(CURDIR)"/{tests,benchmarks} $(TYPED)
	cd $(TYPED) && "$(BIN)/mypy" --config-file "$(CURDIR)/pyproject.toml" --cache-dir "$(CURDIR)/.mypy_cache" lra_bench tests benchmarks
	"$(BIN)/pytest" -q tests/project/test_imports.py
	"$(BIN)/python" -m mkdocs build --strict

# Files that an earlier build left in build/lib would get into the wheel.
wheel: $(INSTALLED) ## Build a wheel in dist/, to install lra-bench without the checkout
	@rm -rf build/lib
	"$(BIN)/pip" wheel --no-deps --wheel-dir dist .

sdist: $(INSTALLED_DEV) ## Build a source distribution with tests and documentation in dist/
	"$(BIN)/python" -c "from setuptools.build_meta import build_sdist; build_sdist('dist')"

clean: ## Remove build folders and caches of tools (results, .venv and data caches are kept)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
