# Everything is set up in a project-local environment, .venv, by uv out of PyPI. A stamp file says that a part of it is there.
#
#   make demo        two workers train a model on handwritten digits
#   make test        the short tests, under 15 minutes; make test-full: all but the soak; make soak: those and an hour of faults
#   make check       format, lint, types, layers, documents
#   make audit       versions with known holes, files that are not the pinned ones
#   make release     wheel and sdist in dist/, checked

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
INSTALL := $(UV) pip install --quiet --compile-bytecode -c constraints/dev.txt -c constraints/frameworks.txt --build-constraints constraints/dev.txt
PYTEST := $(BIN)/python -m pytest -q $(PYTEST_ARGS)
PARALLEL := -n logical --maxprocesses 8 --dist loadgroup
# A short test waits for a third of its time, so two for each core keep all cores busy.
SHORT_PARALLEL := -n $(shell cores=$$(nproc); echo $$(( cores < 4 ? 2 * cores : 8 ))) --dist loadgroup
# Tests of what the code looks like, which `make check` runs, and `make test` does not run again.
CHECKS := tests/unit/test_imports.py tests/unit/test_house.py
SCRIPTS := src/trainmaster/web/pages/static/vendor
NOT_CHECKS := $(addprefix --ignore=,$(CHECKS))
ALONE := tests/unit tests/simulation
STARTED := $(shell date +%s)
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# Bytecode halves every import; an environment that forbids it is overruled here.
unexport PYTHONDONTWRITEBYTECODE VIRTUAL_ENV PYTHONPATH
export PATH := $(abspath $(BIN)):$(PATH)
export UV_PYTHON := $(abspath $(BIN))/python

.PHONY: setup frameworks packages s3server hadoop kubernetes spark java pins format demo unit test test-full soak check docs docs-serve record peers estimator versions bench audit release clean
.DEFAULT_GOAL := setup

# took,WHAT: says how long the recipe has taken since `start` was set.
took = echo "$(1): $$(( $$(date +%s) - start )) s"

setup: $(VENV)/.dev
	@$(BIN)/python tools/pages
	@$(BIN)/python -m compileall -q src

$(UV): constraints/uv.txt
	@start=$$(date +%s); \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, $(PYTHON) is " + sys.version)'; \
	$(PYTHON) -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r constraints/uv.txt; \
	touch $@; $(call took,environment)

$(VENV)/.dev: $(UV) pyproject.toml tests/netns_engine/pyproject.toml tests/ring_framework/pyproject.toml constraints/dev.txt constraints/frameworks.txt
	@start=$$(date +%s); $(INSTALL) -e '.[dev]' -e tests/netns_engine -e tests/ring_framework; touch $@; $(call took,trainmaster and its tools)

$(VENV)/.pytorch: $(UV) pyproject.toml constraints/dev.txt constraints/frameworks.txt
	@start=$$(date +%s); $(INSTALL) -e '.[pytorch,examples]'; touch $@; $(call took,pytorch and scikit-learn)

$(VENV)/.tensorflow: $(VENV)/.pytorch
	@start=$$(date +%s); $(INSTALL) -e '.[tensorflow]'; touch $@; $(call took,tensorflow)

frameworks: setup $(VENV)/.pytorch $(VENV)/.tensorflow

# What the tests need beside Python. Each of these says what it cannot get, and ends well: the tests that need it have then not run.
packages: setup
	@tools/packages

s3server:
	@tools/s3server

hadoop: packages
	@tools/hadoop

kubernetes: packages
	@tools/kubernetes

# Each Spark that the tests run on: an environment of its own with pyspark, its jars, and nothing else. Drivers and executors run on its Python,
# so a test fails where what runs there needs a package that a user's Spark has not got.
$(VENV)/spark-%/.installed: constraints/spark-%.txt | $(VENV)/.dev
	@start=$$(date +%s); $(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/spark-$*; \
	$(UV) pip install --quiet --compile-bytecode --no-deps --python $(VENV)/spark-$*/bin/python -r $<; touch $@; $(call took,spark-$*)

spark: packages $(VENV)/spark-3.5/.installed $(VENV)/spark-4/.installed

# The classes for Hadoop's formats, compiled into the package; a wheel built after it needs no javac where it runs.
java: setup
	@$(BIN)/python tools/formats

# It installs what a user needs, not the tools of `make setup`.
demo: $(VENV)/.pytorch
	@$(BIN)/python tools/pages $(SCRIPTS)
	$(BIN)/python examples/digits/data.py
	$(BIN)/tm run examples/digits/job.yaml
	@echo; find examples/digits/out -type f | sort | xargs ls -l
	@echo; $(BIN)/tm list -n 5
	@echo; echo 'Next: . $(VENV)/bin/activate, which puts tm on your path, then docs/tutorial.md'

# For newcomers: no Java, cluster, browser or framework is needed; tests that need one are listed as not run.
unit: setup
	$(PYTEST) $(SHORT_PARALLEL) tests/unit

# Where Kubernetes has still to be built, which takes long, the tests that need no cluster run before it.
test: frameworks s3server hadoop spark
	@echo "set up: $$(( $$(date +%s) - $(STARTED) )) s"
	@status=0; begun=; \
	if ! $(BIN)/python -c 'import sys; from trainmaster.clusters.kubernetes import binaries; sys.exit(not binaries.there())'; then \
	  $(PYTEST) $(SHORT_PARALLEL) $(NOT_CHECKS) $(ALONE) || status=$$?; begun=1; \
	fi; \
	tools/kubernetes; \
	$(PYTEST) $(SHORT_PARALLEL) $(NOT_CHECKS) $${begun:+$(addprefix --ignore=,$(ALONE))} tests || status=$$?; \
	exit $$status

# FULL_ARGS: .ci/run chooses some of them.
test-full: test
	$(PYTEST) $(PARALLEL) -m "full and not soak" $(FULL_ARGS) tests

soak: frameworks s3server hadoop kubernetes spark
	$(PYTEST) $(PARALLEL) -m "full or soak" tests

check: setup
	@tools/landing --check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(PYTEST) $(CHECKS)
	$(BIN)/python docs/generate.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# After a version in constraints/ was changed: the digests of the files of each.
pins: $(UV)
	@for file in $(filter-out %/pages.txt,$(wildcard constraints/*.txt)); do \
	  grep -oE '^[^ ]+==[^ ]+' $$file | \
	    $(UV) pip compile --quiet --no-deps --generate-hashes --no-header --no-annotate - --output-file $$file.new; \
	  if cmp -s $$file.new $$file; then rm $$file.new; else mv $$file.new $$file; fi; \
	done

format: setup
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: setup
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

record: setup $(VENV)/.pytorch
	$(BIN)/python examples/digits/data.py
	$(BIN)/python docs/record.py docs/run.svg
	$(BIN)/python docs/pictures.py docs/images

# What the benchmarks compare with, apart from what is ours: just what the file lists. torchft runs on the PyTorch that ours does.
$(VENV)/peers/.installed: $(VENV)/.dev constraints/peers.txt
	@start=$$(date +%s); $(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/peers; \
	$(UV) pip install --quiet --compile-bytecode --no-deps --python $(VENV)/peers/bin/python -r constraints/peers.txt; touch $@; $(call took,peers)

peers: $(VENV)/peers/.installed

# The last TensorFlow with Estimators, for a test that makes this when its turn comes.
$(VENV)/estimator/.installed: $(VENV)/.dev constraints/estimator.txt
	@start=$$(date +%s); $(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/estimator; \
	$(UV) pip install --quiet --compile-bytecode --no-deps --python $(VENV)/estimator/bin/python -r constraints/estimator.txt; \
	touch $@; $(call took,estimator)

estimator: $(VENV)/estimator/.installed

# Ours with the lowest versions that pyproject.toml allows, and with the newest, for a test that makes these when its turn comes.
$(VENV)/versions-%/.installed: $(VENV)/.dev pyproject.toml
	@start=$$(date +%s); $(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/versions-$*; \
	$(UV) pip install --quiet --compile-bytecode --upgrade --resolution $* --python $(VENV)/versions-$*/bin/python \
	  -e '.[s3,hdfs,parquet,sql,mlflow,otel]'; touch $@; $(call took,versions-$*)

versions: $(VENV)/versions-lowest-direct/.installed $(VENV)/versions-highest/.installed

bench: frameworks peers spark
	$(BIN)/python benchmarks/run.py

# The wheel, the sdist, their checksums and the list of what the wheel installs, in dist/. Nothing is published.
release: setup java $(VENV)/.release
	@tools/release

# Whether a version has a known hole, or a file is not the pinned one.
audit: setup $(VENV)/.audit
	@$(BIN)/python tools/audit

$(VENV)/.audit: $(VENV)/.dev
	@start=$$(date +%s); $(INSTALL) -e '.[audit]'; touch $@; $(call took,tools of an audit)

$(VENV)/.release: $(VENV)/.dev
	@start=$$(date +%s); $(INSTALL) -e '.[release]'; touch $@; $(call took,tools of a release)

clean:
	rm -rf $(VENV) site build dist .hypothesis .mypy_cache .ruff_cache .pytest_cache $(SCRIPTS)
