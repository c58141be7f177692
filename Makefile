# Everything a person or CI does here, by name. `make help` prints this list.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.installed
TOOLS := $(VENV)/.tools

.PHONY: help install demo results test coverage test-slow test-slice test-gpu test-slurm lint type bench package clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/' | expand -t 12

# The pins of constraints.txt decide the versions; pyproject.toml only says which ranges are right. Python compiles each
# module at its first import; compiling all of them takes a third of the set-up. Where PYTHONDONTWRITEBYTECODE is set, as
# in many containers, every process would compile them again.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(PYTHON) -m venv $(VENV) && \
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt -e
ifneq ($(shell command -v uv),)
INSTALL = uv venv -q --allow-existing -p $(PYTHON) $(VENV) && uv pip install -q -p $(BIN)/python -c constraints.txt -e
endif

$(READY): pyproject.toml constraints.txt
	$(INSTALL) .
	@touch $@

# The tests' processes start at once, and each would compile the same modules; these packages they do not import.
NOT_IMPORTED := /(tests?|testing|mypyc?|networkx|pip|pygments|setuptools)/
$(TOOLS): pyproject.toml constraints.txt  # and what its tests and checks need
	$(INSTALL) '.[dev,slurm]'
	@-$(BIN)/python -m compileall -q -j 0 -x '$(NOT_IMPORTED)' $(VENV)/lib/python3*/site-packages rpr
	@touch $(READY) $@

# A job of one thread more than cores: a core is not idle while another job starts, ends or is the last.
CORES := $(shell nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)

install: $(READY)  ## set up rpr-cli in .venv, and nothing else

demo: $(READY)  ## set up, train nine tiny models on the synthetic corpus, report them (about five minutes on two cores)
	$(BIN)/rpr-cli sweep quick jobs=$$(($(CORES) + 1)) logger=none
	$(BIN)/rpr-cli report sweep=quick

results: $(TOOLS)  ## render sweeps/RESULTS.md and report.md of each committed sweep; its whole report goes into reports/
	$(BIN)/python -m rpr.report.committed sweeps reports

# A worker that has no test left takes some of another's.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
QUICK := -m "not slow and not gpu and not slurm" --ignore=tests/gpu
MANY := -n auto --maxprocesses=8 --dist worksteal

test: $(TOOLS)  ## the tests a change must pass, without measuring coverage
	$(PYTEST) $(QUICK) $(MANY)

coverage: $(TOOLS)  ## the same tests, and which lines and branches they reach: at least fail_under of pyproject.toml
	@$(BIN)/coverage erase
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest $(QUICK) $(MANY)
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report

test-slow: $(TOOLS)  ## the long tests: faults at many moments, several processes, large numbers
	$(PYTEST) -m "slow and not gpu"

# The commit decides which of them come first; a test that the end of the time cuts off has not failed, even if it
# has to be killed since it does not end its processes in time (137). Compiling the GPU kernels alone takes longer.
SLICE := git rev-parse HEAD 2> /dev/null || echo none
test-slice: $(TOOLS)  ## some of the long tests, others for each commit: as many as three minutes allow
	RPR_TEST_ORDER=$$($(SLICE)) timeout -k 90 -s INT 160 env $(PYTEST) -vv -x -m "slow and not gpu and not slurm" -k "not kernels_compile" || case $$? in 124|137) ;; *) exit 1;; esac

test-gpu: $(TOOLS)  ## the tests that need a CUDA device (5 minutes); from a plain checkout: python -m pytest -m gpu tests/gpu
	$(PYTEST) -m gpu tests/gpu $(MANY)

test-slurm: $(TOOLS)  ## the tests that need a SLURM of two nodes, as its operator
	$(PYTEST) -m slurm $(TESTS)

lint: $(TOOLS)  ## style, format, dead code and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/vulture
	$(BIN)/lint-imports

type: $(TOOLS)  ## strict types
	$(BIN)/python -m mypy

bench: $(READY)  ## steps/s of the position variants, side by side
	$(BIN)/rpr-cli bench

package: $(READY)  ## build the wheel and prove it in a fresh environment, from an empty folder
	rm -rf dist
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w dist .
	@set -e; folder=$$(mktemp -d); wheel=$$(ls $(CURDIR)/dist/rpr-*.whl); \
	trap 'rm -rf "$$folder"' EXIT; \
	$(PYTHON) -m venv $$folder/venv; \
	$$folder/venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt "$$wheel"; \
	mkdir $$folder/empty; cd $$folder/empty; \
	$$folder/venv/bin/rpr-cli train --cfg job model=big hardware=8xgpu > $$folder/job.yaml; \
	grep -q 'name: wmt14_en_de' $$folder/job.yaml; grep -q 'max_steps: 300000' $$folder/job.yaml; \
	$$folder/venv/bin/rpr-cli sweep quick --dry-run > $$folder/jobs; test $$(grep -c '^rpr-cli train' $$folder/jobs) -eq 9; \
	$$folder/venv/bin/rpr-cli train --cfg job model=nope 2> $$folder/refusal && exit 1; \
	grep -q 'no such choice' $$folder/refusal; echo "the wheel works from an empty folder: $$wheel"

clean:  ## forget what was built (not the runs)
	rm -rf dist .coverage* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
