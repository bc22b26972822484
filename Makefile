# Everything this project needs is installed into .venv from the package registries this machine is set up for.
# Wanted beforehand: python3 (3.11 or later), make, gcc.
SHELL := /bin/bash
PYTHON ?= python3
UV := .venv/bin/uv
BIN := .venv/bin
# Compiled modules are kept even where the caller's environment forbids it: the tests start Python thousands of times, and
# a program that compiles all it imports takes twice the processor time to start.
unexport PYTHONDONTWRITEBYTECODE
SOURCES := $(addsuffix /pyproject.toml,. lab) $(addsuffix /CMakeLists.txt,. lab) uv.lock \
  $(shell find native -type f -not -name '*.md')

.PHONY: help setup dev demo demo-cluster check test test-slow test-kubernetes test-frameworks test-sanitizers lint conformance bench bench-cluster bench-node cluster wheel image release clean
help:
	@echo "make setup   install into .venv; leaves a working .venv/bin/aliquot (EXTRAS=cluster adds a part)"
	@echo "make demo    KubeShare's Fig. 6 on this machine in under five minutes"
	@echo "make check   lint, unit and property tests"
	@echo "make test    lint and all tests"
	@echo "make prepare fetch and build what the tests need, once"
	@echo "make conformance   the published FGD benchmark, every run, every column"
	@echo "make test-slow  the long forms of some tests"
	@echo "make test-kubernetes  tests with Kueue, JobSet, LeaderWorkerSet, KServe and Karpenter, built once (root)"
	@echo "make test-sanitizers  hook and emulated driver under ThreadSanitizer and AddressSanitizer"
	@echo "make test-frameworks  PyTorch, CuPy and JAX as tenants (15 GB from the package registry, once)"
	@echo "make lint    ruff, clang-format, mypy --strict, the layers of the package and of the hook"
	@echo "make cluster real Kubernetes on this machine, kubectl ready (root; ARGS='--nodes 8 --profile h100', --help)"
	@echo "make demo-cluster   Fig. 6 as SharePods in containers of a real node (root; under two minutes)"
	@echo "make bench   the benchmarks, written to build/bench/"
	@echo "make bench-cluster  what the scheduler costs a real cluster of fake nodes (root; half an hour)"
	@echo "make bench-node  what Aliquot adds to the start of pods on a real kubelet, what its agent takes (root)"
	@echo "make wheel   release wheels against glibc 2.17, in dist/ (ARCH=aarch64 for that processor)"
	@echo "make image   the container image, and its archive in build/ (docker, podman or buildah)"
	@echo "make release all that a release hands out, checked, in dist/"
	@echo "make clean   remove what was built"

$(UV):
	@tools/bootstrap $(PYTHON)

.venv/.setup: $(UV) $(SOURCES)
	$(UV) sync --frozen --inexact --all-packages --no-default-groups --extra top
	@touch $@

.venv/.dev: $(UV) $(SOURCES)
	$(UV) sync --frozen --inexact --all-packages --all-extras
	@touch $@ .venv/.setup

# EXTRAS='cluster otel' adds optional parts of the package; those that are there stay.
setup: .venv/.setup
	$(if $(EXTRAS),$(UV) sync --frozen --inexact --all-packages --no-default-groups $(addprefix --extra ,$(EXTRAS)))
dev: .venv/.dev

demo: setup
	$(BIN)/aliquot demo fig6 --fast --out demo-out

# All C but what is generated and the assembler's header.
C_FILES := $(shell find native tests/native -name '*.[ch]' -not -path '*/gen/*' -not -path 'native/include/*' -not -name trampoline.h)

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tools/native_layers.py
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	$(BIN)/mypy

# First what tests fetch and build, beside lint and the tests of pure code. Then the tests marked real_time, which assert
# on time: one after the other, with nothing else beside them, before other programs where this user may ask for that.
# Then all others: each file of tests/e2e has a cluster of its own. No test is run again.
AHEAD := $(if $(filter -10,$(shell nice -n -10 nice 2> /dev/null)),nice -n -10)
test: dev
	@mkdir -p build
	$(MAKE) -j2 prepare test-pure
	$(MAKE) test-measured
	$(MAKE) -j2 test-clusters test-programs
	@echo "not run: the tests with Kueue, JobSet, LeaderWorkerSet, KServe and Karpenter (make test-kubernetes), the long forms (make test-slow)"

.PHONY: prepare test-pure test-measured test-clusters test-programs
prepare: dev
	@PYTHONPATH=tests/e2e:tests/e2e/node $(BIN)/python -m cluster.prepare

test-pure: lint
	$(BIN)/pytest -q -n auto tests/unit tests/property $(PYTEST_ARGS)

test-measured:
	$(AHEAD) $(BIN)/pytest -v -m "real_time and not slow" tests/integration tests/e2e_web $(PYTEST_ARGS)
	$(AHEAD) $(BIN)/pytest -v -m "real_time and not slow" tests/e2e/containers $(PYTEST_ARGS)

test-clusters:
	$(BIN)/pytest -q -n 2 --dist loadfile -m "not real_time and not slow and not kubernetes" tests/e2e $(PYTEST_ARGS)

# Its words come in one piece, at its end.
test-programs:
	@$(BIN)/pytest -q -n 2 --dist loadfile -m "not real_time and not slow" tests/integration tests/e2e_web $(PYTEST_ARGS) \
	  > build/programs.log 2>&1; status=$$?; cat build/programs.log; exit $$status

# What a change of the pure parts has to pass, in a few minutes.
check: lint
	$(BIN)/pytest -n auto tests/unit tests/property $(PYTEST_ARGS)

# The long forms of some tests (an hour of virtual time, ten thousand tenants, a whole chart installed), and other random
# examples in every run.
test-slow: dev
	HYPOTHESIS_PROFILE=explore $(BIN)/pytest -n auto tests/unit tests/property $(PYTEST_ARGS)
	$(BIN)/pytest -m slow $(PYTEST_ARGS)

# Tests with other projects' controllers, each built once into the cache.
test-kubernetes: dev
	$(BIN)/pytest -v -m kubernetes tests/e2e $(PYTEST_ARGS)

# Two builds of the native parts, kept in build/sanitize-*; the second run compiles only what has changed.
test-sanitizers: dev
	$(BIN)/pytest -m slow tests/integration/faults/test_sanitizers.py $(PYTEST_ARGS)

# Unmodified frameworks alone and as tenants, in environments of their own (~/.cache/aliquot/frameworks). What was seen
# goes to build/frameworks/results.json; tools/gen_compatibility.py puts it into docs/compatibility.md.
test-frameworks: dev
	$(BIN)/pytest tests/frameworks $(PYTEST_ARGS)

# Every published run of the deterministic policies, all columns, no tolerance; then the mean of Random over its seeds.
OPENB := tests/data/openb
conformance: setup
	$(BIN)/aliquot sim openb --nodes $(OPENB)/openb_node_list_gpu_node.csv --seeds 42..51 \
	  $(foreach trace,$(wildcard $(OPENB)/openb_pod_list_*.csv.gz),--trace $(trace)) \
	  --policy dotprod,clustering,packing,bestfit,fgd --expected $(OPENB)/expected_results --out build/conformance
	$(BIN)/aliquot sim paper fgd --policy random --within 0.2 --out build/conformance-random

bench: dev
	@mkdir -p build/bench
	@for name in gate handover shares slowdown inference fig5 fig12 memory storm filter; do \
	  echo "bench $$name"; $(BIN)/aliquot bench $$name -o json > build/bench/$$name.json || exit 1; cat build/bench/$$name.json; done

bench-cluster: dev
	@mkdir -p build/bench
	PYTHONPATH=tests/e2e $(BIN)/python bench/kubernetes.py $(ARGS) > build/bench/kubernetes.json; cat build/bench/kubernetes.json

bench-node: dev
	@mkdir -p build/bench
	PYTHONPATH=tests/e2e $(BIN)/python bench/node.py $(ARGS) > build/bench/node.json; cat build/bench/node.json

# Real control plane, fake GPU nodes and a real node with emulated GPUs; the parts are built once into the cache (six
# minutes). In it kubectl apply -f examples/... gives a container its part of a GPU.
cluster: dev
	@PYTHONPATH=tests/e2e $(BIN)/python -m cluster $(ARGS)

# ARGS='--paper' takes the paper's 800 s.
demo-cluster: dev
	@PYTHONPATH=tests/e2e $(BIN)/python -m cluster.demo $(ARGS)

# ARCH=aarch64 builds for that processor, from here. ARGS=--without-cuda-runtime leaves a part of the emulated driver out.
wheel: $(UV)
	$(BIN)/python tools/build_wheel.py $(if $(ARCH),--arch $(ARCH)) $(ARGS)

# With docker, podman or buildah, whichever is here; the archive is for nodes that no registry reaches.
# ARGS='--image MY/PYTHON --build-image MY/PYTHON' takes other bases than the registry's python.
image:
	$(PYTHON) tools/image.py --archive build/aliquot-image.tar $(ARGS)

HELM ?= $(shell command -v helm)
# Everything that a release hands out, in dist/, with its sums; nothing is made where something is amiss. What `make
# image` left is taken along.
release: dev
	$(BIN)/python tools/release.py --check --helm "$(HELM)"
	rm -rf dist
	$(MAKE) wheel ARCH=x86_64
	$(MAKE) wheel ARCH=aarch64
	$(UV) build --sdist --quiet --out-dir dist
	$(BIN)/python tools/release.py --helm "$(HELM)"

clean:
	rm -rf build dist demo-out .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
