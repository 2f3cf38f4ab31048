# Everything a person or CI does here. `make` alone says what there is.
PYTHON ?= python3.11
BIN := .venv/bin
PORT ?= 8000
TESTS ?=
MARKERS ?= not slow and not browser
TEMPLATES = $$(git ls-files 'templates/*.html' '*/templates/*.html')
# A file's tests run in one process, because they share fixtures. Files start in their order: the slowest are in the
# first folder, tests/acceptance. Three processes for two cores, since many tests wait for processes and sockets.
WORKERS ?= $(shell echo $$(( ($$(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2 )))
PYTEST_FLAGS := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Each worker and each child process of a test would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: audit fuzz help install run test test-all test-sql test-services test-cuda coverage lint size check check-nightly node chaos chaos-swarm chaos-rephrase docs docs-cli docs-reference dist pictures fmt lock mutants

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 12

install: .venv/installed  ## make .venv and put everything in it (about 2 GB, mostly torch for CPU)

# torch first and by itself: asked for in any other way, pip brings gigabytes of CUDA libraries along.
.venv/installed: requirements.lock pyproject.toml package-lock.json
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install torch==2.13.0
	$(BIN)/pip install -r requirements.lock
	$(BIN)/pip install --no-deps --no-build-isolation -e .
	npm ci --no-audit --no-fund
	touch $@

run: docs        ## the whole train on this machine: site, queue, worker, one CPU node, at http://127.0.0.1:8000
	$(BIN)/python manage.py run --port $(PORT)

node: install    ## one more node for a running site: make node URL=http://... TOKEN=...
	$(BIN)/dailytrain node --server $(URL) --token $(TOKEN)

test: install    ## the quick tests, on SQLite and an embedded Redis; some of them: make test TESTS=tests/scheduler
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow and not browser" $(TESTS)

test-all: install  ## all tests: also in a browser, with many processes, and more examples of the property tests
	HYPOTHESIS_PROFILE=ci $(BIN)/python -m pytest $(PYTEST_FLAGS) $(TESTS)

test-sql: install  ## the tests that depend on the database, on a PostgreSQL and a Redis that this starts
	.ci/with_services $(BIN)/python -m pytest $(PYTEST_FLAGS) -m sql $(TESTS)

test-services: install  ## all tests that use a database or Redis, on a PostgreSQL and a Redis that this starts
	.ci/with_services $(BIN)/python -m pytest $(PYTEST_FLAGS) -m services $(or $(TESTS),tests/acceptance tests/leaderboard tests/scheduler tests/site)

test-cuda: install  ## compile training for an H100 that is not there, and compare kernels, bytes and memory; needs g++
	$(BIN)/pip install --quiet triton==3.7.1  # 200 MB; compiles kernels for GPUs, also where there is none
	$(BIN)/pip install --quiet torchao==0.18.0  # fp8
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup $(or $(TESTS),tests/cuda)

coverage: install  ## lines and branches that the quick tests run; all tests: make coverage MARKERS=
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(PYTEST_FLAGS) -m "$(MARKERS)" $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# SUBJECT: patterns of what to change; all of it takes hours. `.venv/bin/python .ci/mutants.py show NAME` shows one.
mutants: install  ## changes in the code that decides verdicts which no test notices: make mutants SUBJECT="scheduler.leases.*"
	$(BIN)/pip install --quiet mutmut==3.8.1
	rm -rf mutants
	OMP_NUM_THREADS=1 $(BIN)/python .ci/mutants.py run --max-children $(WORKERS) $(foreach name,$(SUBJECT),'$(name)')
	$(BIN)/python .ci/mutants.py results

lint: install    ## style, types, import rules, known insecure calls, migrations, settings, size
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/djade --target-version 5.2 --check $(TEMPLATES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --severity-level medium --recursive dailytrain leaderboard scheduler trainer
	$(BIN)/hadolint Dockerfile
	$(BIN)/python manage.py makemigrations --check --dry-run
	$(BIN)/python manage.py check --fail-level WARNING
	$(BIN)/python .ci/size.py --loaded

size: install    ## lines by package beside their budgets in pyproject.toml, and what a tiny training run loads
	$(BIN)/python .ci/size.py --loaded

# Triton comes last, since it changes what the environment can compile.
check: lint      ## what CI runs on each change: lint, quick tests, a night, a journey, PostgreSQL, a compiled model
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m "check or not slow and not browser"
	$(MAKE) test-sql
	$(MAKE) test-cuda TESTS="tests/cuda -m check"

check-nightly: lint  ## everything: all tests, those of a database on PostgreSQL, all compiled models; an hour
	$(MAKE) test-all
	$(MAKE) test-services
	$(MAKE) test-cuda

chaos: install   ## faults of every process and service for two minutes, then the oracle: make chaos SEED=7 SECONDS=600
	CHAOS_SEED=$(or $(SEED),1) CHAOS_SECONDS=$(or $(SECONDS),120) $(BIN)/python -m pytest -s -n0 tests/acceptance/site_faults/test_site_faults.py

chaos-swarm: install  ## a swarm of real processes with every kind of fault for 60 steps, then all at random for ten minutes
	SWARM_STEPS=60 SWARM_SECONDS=600 $(BIN)/python -m pytest -s -o timeout=1200 tests/trainer/swarm -k "faults or liars"

chaos-rephrase: install  ## a campaign over C4 and Gutenberg in four styles, its volunteers killed and frozen
	REPHRASE_SECONDS=180 REPHRASE_HONEST=4 REPHRASE_BOOKS=6 REPHRASE_SLICES=20 REPHRASE_STYLES="easy medium hard qa" \
	    $(BIN)/python -m pytest -s -o timeout=2400 tests/acceptance/test_campaign.py

fuzz: install    ## 10,000 requests made from the OpenAPI documents (CI makes 1,000): no 500, no answer that they do not name
	FUZZ_CASES=10000 $(BIN)/python -m pytest -o timeout=7200 tests/site/test_openapi_fuzz.py

audit: install   ## known vulnerabilities of the locked packages; needs the services of PyPI and npm, so it is no part of `check`
	$(BIN)/python -m pip install --quiet pip-audit && $(BIN)/pip-audit --requirement requirements.lock --no-deps
	npm audit

fmt: install     ## format the code and the templates
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/djade --target-version 5.2 $(TEMPLATES)

pictures: install  ## draw the pictures of all pages again, with which tests compare them
	RENEW_PICTURES=1 $(BIN)/python -m pytest tests/browser/test_page_pictures.py

docs: install    ## build the documentation into build/docs; a broken link or a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-cli: install  ## generate docs/reference/cli.md from the parsers
	$(BIN)/python -m trainer.cli.reference > docs/reference/cli.md

docs-reference: docs-cli  ## generate all reference pages that come from the code
	$(BIN)/python -m docs.generate

dist: install    ## build the wheel of the agent and the trainer into dist/
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

lock:            ## resolve the newest allowed versions anew, in a throwaway environment, into requirements.lock
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --upgrade pip
	.venv-lock/bin/pip install torch==2.13.0
	.venv-lock/bin/pip install -e '.[training,notebook,swarm,rephrase,mcp]' --group site --group dev hatchling editables
	{ echo '# Made by `make lock`. torch is installed before these, see the Makefile.'; \
	  .venv-lock/bin/pip freeze --exclude-editable --exclude torch; } > requirements.lock
	rm -rf .venv-lock
