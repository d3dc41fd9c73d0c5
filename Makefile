# Shortcuts over lra-bench. Every target sets up .venv by itself; `make help` lists them.
#
#   make bench MODEL=performer TASK=listops
#   make bench MODEL=performer,local TASK=listops SEED=0,1,2 ARGS="train.lr=3e-4 --dry-run"

SHELL := bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
INSTALLED := $(VENV)/.installed

# What is not chosen is not passed, so that lra-bench's own default holds.
choice = $(if $($(1)),"$(2)=$($(1))")
option = $(if $($(1)),$(2) "$($(1))")
CHOICES = $(strip $(call choice,TASK,task) $(call choice,MODEL,model) $(call choice,POSITION,position) \
  $(call choice,PROTOCOL,protocol) $(call choice,HARDWARE,hardware) $(call choice,SEED,seed))

.DEFAULT_GOAL := help

# Variables that each target reads. Others on the command line would be ignored, so the first of them stops make here.
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
GOALS := $(or $(MAKECMDGOALS),$(.DEFAULT_GOAL))
READ := $(foreach goal,$(GOALS),$(reads_$(goal))) PYTHON VENV
MAKES_OWN := SHELL .SHELLFLAGS MAKE MAKEFLAGS MAKEFILES
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
UNKNOWN := $(firstword $(filter-out $(READ) $(MAKES_OWN),$(GIVEN)))
ifeq ($(MAKELEVEL),0) # a make that was started by another has the variables of both
ifneq ($(UNKNOWN),)
MEANT := $(filter $(shell printf %s '$(subst ','\'',$(UNKNOWN))' | tr a-z A-Z),$(READ))
ELSE := $(if $(filter ARGS,$(READ)),; everything else goes in ARGS="train.lr=3e-4")
ifneq ($(MEANT),)
$(error $(UNKNOWN): make takes $(MEANT)=…$(ELSE))
else ifneq ($(and $(ELSE),$(findstring .,$(UNKNOWN))),)
$(error $(UNKNOWN): write ARGS="$(UNKNOWN)=$(value $(UNKNOWN))")
else
$(error $(UNKNOWN): make $(GOALS) takes $(strip $(READ))$(ELSE))
endif
endif
endif

.PHONY: help setup bench grid profile evaluate leaderboard compare plots data test test-slow check clean

help: ## Show this list
	@echo "Variables: TASK MODEL POSITION PROTOCOL HARDWARE SEED (comma lists make a grid), ARGS (further options), PYTHON"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(INSTALLED) ## Create .venv and install lra-bench with its tests (done by every other target)

$(INSTALLED): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) is not there; name an interpreter: make setup PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || { \
	  echo "lra-bench needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is $$("$(PYTHON)" -V 2>&1); name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@test -x "$(BIN)/pip" || "$(PYTHON)" -m venv "$(VENV)"
	"$(BIN)/pip" install -c constraints.txt -e '.[dev]'
	@touch $@

bench: $(INSTALLED) ## Measure a cell or a grid: MODEL=performer,local TASK=listops SEED=0,1,2
	"$(BIN)/lra-bench" bench $(CHOICES) $(ARGS)

grid: $(INSTALLED) ## Follow grids submitted with launcher=slurm: ARGS=status, ARGS="cancel GRID", ARGS="resume GRID"
	"$(BIN)/lra-bench" grid $(or $(ARGS),status)

profile: $(INSTALLED) ## Compare speed and memory over length with exact attention, without training: MODEL=performer,local
	"$(BIN)/lra-bench" profile $(CHOICES) $(ARGS)

evaluate: $(INSTALLED) ## Test a record's kept weights again: RECORD=results/runs/….json ARGS="--lengths 1000,2000 --knobs ALL"
	"$(BIN)/lra-bench" evaluate $(call option,RECORD) $(ARGS)

# A part of the records must not take the place of the tables of all.
leaderboard: $(INSTALLED) ## Print the leaderboard of all records and write every table; with TASK or PROTOCOL, print
	"$(BIN)/lra-bench" leaderboard $(call option,TASK,--task) $(call option,PROTOCOL,--protocol) \
	  $(if $(TASK)$(PROTOCOL),,--write) $(ARGS)

compare: $(INSTALLED) ## Compare two variants: A=performer B="performer features=64 rope" TASK=listops
	@test -n "$(A)" -a -n "$(B)" || { echo 'compare: name two variants, as make compare A=performer B="performer features=64"' >&2; exit 2; }
	"$(BIN)/lra-bench" compare "$(A)" "$(B)" $(call option,TASK,--task) $(call option,PROTOCOL,--protocol) $(ARGS)

plots: $(INSTALLED) ## Draw the figures of all records, or of those of one TASK or PROTOCOL
	"$(BIN)/lra-bench" plot $(call option,TASK,--task) $(call option,PROTOCOL,--protocol) $(ARGS)

data: $(INSTALLED) ## Generate or download a task's data ahead of time: TASK=listops
	"$(BIN)/lra-bench" data prepare $(call option,TASK) $(call option,PROTOCOL,--protocol) $(ARGS)

test: $(INSTALLED) ## Run the fast tests (ARGS="tests/project/test_imports.py -k cycle" for some)
	"$(BIN)/pytest" -n 2 --dist worksteal $(ARGS)

# Those that measure time or memory have the machine to themselves. Of either kind ARGS may leave none: pytest's status 5.
test-slow: $(INSTALLED) ## Run the tests that take minutes
	"$(BIN)/pytest" -m "slow and not alone" -n 2 --dist worksteal $(ARGS) || test $$? = 5
	"$(BIN)/pytest" -m "slow and alone" $(ARGS) || test $$? = 5

# mypy cannot see setuptools' package-dir: it is shown the layout of the wheel, made of links.
TYPED := build/typed
check: $(INSTALLED) ## Check style, types and import rules
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	@rm -rf $(TYPED) && mkdir -p $(TYPED)/lra_bench
	@ln -s "$(CURDIR)"/lra_bench/* "$(CURDIR)"/{conf,models,tasks} "$(CURDIR)/results/published" $(TYPED)/lra_bench
	@ln -s "$(CURDIR)"/{tests,benchmarks} $(TYPED)
	cd $(TYPED) && "$(BIN)/mypy" --config-file "$(CURDIR)/pyproject.toml" --cache-dir "$(CURDIR)/.mypy_cache" lra_bench tests benchmarks
	"$(BIN)/pytest" -q tests/project/test_imports.py

clean: ## Remove what builds and tools leave here (results, .venv and data caches stay)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
