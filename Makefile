# Each target sets up all it needs: a Rust toolchain, CPython 3.11 with pip and a C/C++ compiler are assumed.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
CARGO ?= cargo
RUSTC ?= rustc
MOCK_DIR := python_hooks/seqshift/_mock

RUST_SOURCES := $(shell find src ffi cann_shim/include cann_shim/src -type f) Cargo.toml build.rs pyproject.toml
MOCK_SOURCES := $(shell find cann_shim/mock cann_shim/include -type f)

.PHONY: build mock bed demo test test-mock-sanitized test-rust-sanitized bench fuzz faults soak lint clean

build: $(VENV)/extension.stamp mock

$(VENV)/tools.stamp: tests/bed/requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/bed/requirements.txt
	touch $@

# The test bed: a real vLLM 0.9.1 on the CPU. install.py has a stamp of its own.
bed: $(VENV)/tools.stamp
	$(BIN)/python tests/bed/install.py

$(VENV)/extension.stamp: $(VENV)/tools.stamp $(RUST_SOURCES)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --quiet --uv
	touch $@

mock: $(MOCK_DIR)/stamp

$(MOCK_DIR)/stamp: $(MOCK_SOURCES)
	mkdir -p $(MOCK_DIR)
	$(MAKE) --silent -C cann_shim/mock OUT=$(CURDIR)/$(MOCK_DIR) OBJ=$(CURDIR)/build/mock
	touch $@

demo: build bed
	$(BIN)/seqshift demo

test: build bed
	LIBCLANG_PATH="$$(echo $(CURDIR)/$(VENV)/lib/python3*/site-packages/clang/native)" $(CARGO) test --release --quiet --features mock-core
	$(BIN)/python -m pytest

# The mock's own tests with the mock under ASan + UBSan, then under TSan.
test-mock-sanitized: $(VENV)/tools.stamp
	for sanitize in address,undefined thread; do \
		directory=$(CURDIR)/build/mock-$${sanitize%%,*}; \
		$(MAKE) --silent -j2 -C cann_shim/mock OUT=$$directory SANITIZE=$$sanitize; \
		SEQSHIFT_TEST_SANITIZE=$$sanitize SEQSHIFT_TEST_MOCK_DIR=$$directory \
			$(BIN)/python -m pytest -q tests/test_mock_c.py; \
	done

# The unsafe parts of the Rust core under ASan, against the mock. RUSTC_BOOTSTRAP lets a stable
# compiler take the flag.
ASAN_TESTS := device collective control control_damage kv_copy kv_faults kv_given_up kv_kernels kv_layout kv_parts kv_path kv_producer kv_register kv_transfer

test-rust-sanitized: mock
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0 \
		$(CARGO) test --quiet --target $$($(RUSTC) -vV | sed -n 's/^host: //p') --target-dir target/asan \
		$(ASAN_TESTS:%=--test %)

bench: build bed
	missed=; \
	$(MAKE) --silent -C cann_shim/mock OUT=$(CURDIR)/$(MOCK_DIR) OBJ=$(CURDIR)/build/mock bench || missed=" mock"; \
	$(CARGO) bench --no-fail-fast || missed="$$missed cargo"; \
	for bench in router group_vector engine_step engine_kv engine_precopy; do \
		$(BIN)/python benches/$$bench.py || missed="$$missed $$bench"; \
	done; test -z "$$missed" || { echo "bounds missed:$$missed" >&2; exit 1; }

# Ten million mutated inputs; SEQSHIFT_FUZZ_SEED repeats a run.
fuzz:
	SEQSHIFT_FUZZ_INPUTS=$${SEQSHIFT_FUZZ_INPUTS:-10000000} \
		$(CARGO) test --release --quiet --test wire mutated_inputs -- --nocapture

# Every fault in every step on every rank; SEQSHIFT_FAULTS_SEED repeats the choice of ranks where there are many.
faults: build bed
	PYTHONPATH=tests $(BIN)/python -m bed.fault_matrix
	SEQSHIFT_FAULTS=all $(BIN)/python -m pytest tests/engine/test_killed.py

# Random rollouts; SEQSHIFT_SOAK_ROLLOUTS (200) says how many, SEQSHIFT_SOAK_SEED repeats a run.
soak: build bed
	PYTHONPATH=tests $(BIN)/python -m bed.soak_run

lint: $(VENV)/tools.stamp
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --all-targets --all-features --quiet -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf target $(MOCK_DIR) build
