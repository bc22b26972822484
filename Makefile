# Everything this project needs is installed into .venv from the package registries this machine is set up for.
# Wanted beforehand: python3 (3.11 or later), make, gcc.
SHELL := /bin/bash
PYTHON ?= python3
UV := .venv/bin/uv
BIN := .venv/bin
SOURCES := pyproject.toml uv.lock CMakeLists.txt $(shell find native -type f -not -name '*.md')

.PHONY: help setup dev demo test test-slow lint conformance bench cluster wheel clean
help:
	@echo "make setup   install into .venv; leaves a working .venv/bin/aliquot"
	@echo "make demo    KubeShare's Fig. 6 on this machine in under five minutes"
	@echo "make test    lint and all tests"
	@echo "make conformance   the published FGD benchmark, every run, every column"
	@echo "make test-slow  the long forms of some tests"
	@echo "make lint    ruff, mypy --strict, the layers"
	@echo "make cluster real Kubernetes on this machine, kubectl ready (root; ARGS='--nodes 8 --profile h100', --help)"
	@echo "make bench   the benchmarks, written to build/bench/"
	@echo "make wheel   release wheel against glibc 2.17, in dist/"
	@echo "make clean   remove what was built"

$(UV):
	@tools/bootstrap $(PYTHON)

.venv/.setup: $(UV) $(SOURCES)
	$(UV) sync --frozen --inexact --no-default-groups --extra demo --extra top
	@touch $@

.venv/.dev: $(UV) $(SOURCES)
	$(UV) sync --frozen --inexact --all-extras
	@touch $@ .venv/.setup

setup: .venv/.setup
dev: .venv/.dev

demo: setup
	$(BIN)/aliquot demo fig6 --fast --out demo-out

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# What is about logic runs on all cores; what starts engines and clusters and measures real time runs alone, and once more
# when it failed, for a busy machine is no defect (the summary names what was run twice).
test: lint
	$(BIN)/pytest -n auto tests/unit tests/property $(PYTEST_ARGS)
	$(BIN)/pytest --reruns 1 tests/integration tests/e2e_web $(PYTEST_ARGS)
	$(BIN)/pytest --reruns 1 tests/e2e $(PYTEST_ARGS)

# The long forms of some tests (an hour of virtual time, ten thousand tenants, a whole chart installed), and other random
# examples in every run.
test-slow: dev
	HYPOTHESIS_PROFILE=explore $(BIN)/pytest -n auto tests/unit tests/property $(PYTEST_ARGS)
	$(BIN)/pytest -m slow $(PYTEST_ARGS)

# Every published run of the deterministic policies, all columns, no tolerance; then the mean of Random over its seeds.
OPENB := tests/data/openb
conformance: setup
	$(BIN)/aliquot sim openb --nodes $(OPENB)/openb_node_list_gpu_node.csv --seeds 42..51 \
	  $(foreach trace,$(wildcard $(OPENB)/openb_pod_list_*.csv.gz),--trace $(trace)) \
	  --policy dotprod,clustering,packing,bestfit,fgd --expected $(OPENB)/expected_results --out build/conformance
	$(BIN)/aliquot sim paper fgd --policy random --within 0.2 --out build/conformance-random

bench: setup
	@mkdir -p build/bench
	@for name in gate handover shares slowdown memory storm; do \
	  echo "bench $$name"; $(BIN)/aliquot bench $$name -o json > build/bench/$$name.json || exit 1; cat build/bench/$$name.json; done

# Real control plane, fake GPU nodes and a real node; the parts are built once into the cache (six minutes).
cluster: dev
	@PYTHONPATH=tests/e2e $(BIN)/python -m cluster $(ARGS)

# zig carries the old glibc's symbol versions, so the wheel runs on every distribution since CentOS 7.
wheel: $(UV)
	$(UV) sync --frozen --inexact --extra demo --group release
	CC="$(CURDIR)/tools/zigcc" $(UV) build --wheel
	$(BIN)/python tools/check_glibc.py dist/*.whl

clean:
	rm -rf build dist demo-out .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
