# Two commands matter: `make run` and `make check`. Both make .venv when it is absent.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 2
TARGET ?= host
BUNDLE ?= build/mobilenet/mobilenet.bundle.tar
RECIPE ?= configs/mobilenet.yaml
# An earlier bundle, and how much slower than it the new one may be.
BASELINE    ?=
MAX_RATIO   ?= 1.05
BESIDE = $(if $(BASELINE),--set 'gates.latency.baseline.path=$(abspath $(BASELINE))' \
    --set gates.latency.max_ratio_to_baseline=$(MAX_RATIO))

ifneq ($(wildcard ../shared/data),)
export EDGEFUSE_DATA ?= $(abspath ../shared/data)
endif

# Without its compiled files every child process would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run check lint types imports test docs-check fix docs bench bench-cuda bench-int8 bench-memory bench-push bench-gates gpu release gate push rollback status clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,cuda,dev]'
	$(BIN)/python -m pip check
	@touch $@

run: $(STAMP)  ## install, then run the main recipe: gated int8 MobileNetV2 in build/mobilenet/
	$(BIN)/edgefuse run configs/mobilenet.yaml

check: lint types imports docs-check test  ## everything that CI runs

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

docs-check: $(STAMP)
	$(BIN)/python -m edgefuse.docs --check

test: $(STAMP)  ## the tests
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

fix: $(STAMP)  ## format and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)  ## write the generated documentation
	$(BIN)/python -m edgefuse.docs

bench: $(STAMP)  ## 2,000 random graphs, the table of what fusion does, wall time against onnx2tf
	$(BIN)/python tests/benchmarks/random_graphs.py
	$(BIN)/python tests/benchmarks/fusion_table.py
	$(BIN)/python tests/benchmarks/against_onnx2tf.py

bench-int8: $(STAMP)  ## int8 accuracy against other producers, with EDGEFUSE_DATA
	$(BIN)/python tests/benchmarks/int8_accuracy.py

bench-memory: $(STAMP)  ## 11 allocation problems (with EDGEFUSE_DATA), arenas of 31 networks, a training step
	$(BIN)/python tests/benchmarks/minimalloc.py
	$(BIN)/python tests/benchmarks/arena_plans.py
	$(BIN)/python tests/benchmarks/training_memory.py

bench-cuda: $(STAMP)  ## MobileNetV2's kernels compiled for five GPU architectures, and their machine code
	$(BIN)/python tests/benchmarks/cubins.py

gpu: $(STAMP)  ## what needs an NVIDIA GPU: every kernel, captured programs, times beside torch
	test -d build/gpu || $(BIN)/python tests/benchmarks/gpu.py --prepare build/gpu
	$(BIN)/python tests/benchmarks/gpu.py --programs build/gpu

release: $(STAMP)  ## every recipe with release: true to dist/, stopping at the first that fails
	$(BIN)/edgefuse release configs/*.yaml --out dist

gate: $(STAMP)  ## measure RECIPE anew on TARGET; beside a released bundle with BASELINE=
	$(BIN)/edgefuse run $(RECIPE) --target $(TARGET) --measure $(BESIDE)

push: $(STAMP)  ## install BUNDLE on TARGET
	$(BIN)/edgefuse push $(BUNDLE) --target $(TARGET)

rollback: $(STAMP)  ## make the version before the current one current again on TARGET
	$(BIN)/edgefuse rollback --target $(TARGET)

status: $(STAMP)  ## which versions lie on TARGET, and whether they are whole
	$(BIN)/edgefuse status --target $(TARGET)

bench-push: $(STAMP)  ## cuts, kills and corruptions of pushes over ssh and adb
	$(BIN)/python tests/benchmarks/push_faults.py

bench-gates: $(STAMP)  ## whether the latency gate sees a planted slowdown, on this machine and emulated
	$(BIN)/edgefuse setup emu-cortex-a53
	$(BIN)/edgefuse run configs/mobilenet.yaml
	$(BIN)/python tests/benchmarks/regression_gates.py build/mobilenet/mobilenet.bundle.tar

clean:  ## remove what was built; the cache and .venv stay
	rm -rf build dist
