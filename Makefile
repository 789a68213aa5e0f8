# Everything a developer or CI runs. `make help` tells what each target does.
#
#   PYTHON=python3.12       the interpreter that makes the virtual environment (3.11 or newer)
#   TORCH_INDEX=https://…   one more package index, for example of CPU builds of torch:
#                           PyPI's own torch for Linux brings the CUDA libraries (3 GB more)
#   TEST_PROCESSES=2        how many processes `make test` spreads the test files over
#   MODEL=folder-or-hub-id  the model of `make demo`, `make demo-openai`, `make serve` and `make up`

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
MODEL ?=
TEST_PROCESSES ?= 2
COMPOSE ?= docker compose

BIN := $(CURDIR)/$(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_MODEL := .cache/models/SmolLM2-135M-Instruct
SOURCES := scheduler_svc worker_svc service telemetry model kernels clients/python tools deploy benchmarks tests
# Tests and benchmarks start many processes that use torch: on few cores, a thread each is fastest.
test test-long test-faults test-metrics test-openai test-node test-cpp test-go test-recipes bench: export OMP_NUM_THREADS ?= 1

.PHONY: help setup demo demo-openai serve proto fmt fmt-check lint type imports protos-check compose-check test \
	test-long test-faults test-fuzz test-metrics test-openai test-node test-cpp test-go test-compose test-recipes test-gpu \
	bench bench-kernels up down check clean

help: ## show this list
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1|/' | \
		while IFS='|' read -r target comment; do printf '  %-14s %s\n' "$$target" "$$comment"; done

setup: $(STAMP) ## make the virtual environment and install everything into it

$(STAMP): pyproject.toml constraints.txt clients/python/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Stepwire needs Python 3.11 or newer: make setup PYTHON=…")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e clients/python -e ".[dev]"
	touch $@

demo: $(STAMP) ## fetch a small model, start both services on the CPU, ask a question (MODEL=folder or hub id)
	$(BIN)/python -m tools.demo $(if $(MODEL),--model "$(MODEL)")

demo-openai: $(STAMP) ## the same behind the gateway smg, asked over OpenAI's HTTP API (MODEL=folder or hub id)
	$(BIN)/python -m tools.demo_openai $(if $(MODEL),--model "$(MODEL)")

serve: $(STAMP) ## start both services on the CPU and keep them running (MODEL=folder or hub id)
	$(if $(MODEL),,$(BIN)/python -m tools.fetch_smollm2 $(DEMO_MODEL))
	exec $(BIN)/stepwire serve --device cpu --model "$(or $(MODEL),$(DEMO_MODEL))"

proto: $(STAMP) ## regenerate protos/gen from protos/stepwire
	$(BIN)/python -m tools.generate_protos protos/gen

fmt: $(STAMP) ## format Python and protos, and fix what ruff can fix
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/buf format -w

fmt-check: $(STAMP) ## fail where `make fmt` would change the formatting
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/buf format --diff --exit-code

lint: $(STAMP) ## ruff on Python, buf on the protos
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/buf lint

type: $(STAMP) ## mypy, strict outside kernels/
	$(BIN)/mypy $(SOURCES)

imports: $(STAMP) ## the import rules of ARCHITECTURE.md
	$(BIN)/lint-imports

protos-check: $(STAMP) ## protos/gen is what `make proto` makes, and the contract breaks nothing that main promised
	$(BIN)/python -m tools.check_protos

compose-check: $(STAMP) ## the compose files fit their schema
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml docker-compose.gpu.yml

test: $(STAMP) ## the tests that need no GPU and little time
	$(BIN)/python -m pytest -m "not gpu and not long" -n $(TEST_PROCESSES) --dist worksteal

test-long: $(STAMP) ## all tests that need no GPU, the slow ones too
	$(BIN)/python -m pytest -m "not gpu" --timeout 1800

test-faults: $(STAMP) ## 200 random fault runs against running services, and what came of them
	$(BIN)/python -m pytest -m long tests/e2e/faults

test-node: $(STAMP) ## the example in Node.js, built and run against both services
	@command -v npm >/dev/null || sh tools/install_debian.sh nodejs npm
	$(BIN)/python -m pytest -m long tests/e2e/clients -k "[node]"

test-cpp: $(STAMP) ## the example in C++, likewise; installs gRPC's C++ packages where they are missing
	sh tools/install_debian.sh cmake g++ libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc
	$(BIN)/python -m pytest -m long tests/e2e/clients -k "[cpp]"

test-go: $(STAMP) ## the example in Go, likewise, with the toolchain and the gRPC that Debian packages
	sh tools/install_debian.sh golang-go golang-google-grpc-dev golang-github-golang-protobuf-1-5-dev \
		protoc-gen-go-1-5 protoc-gen-go-grpc protobuf-compiler
	$(BIN)/python -m pytest -m long tests/e2e/clients -k "[go]"

test-metrics: $(STAMP) ## every panel of the dashboard against a real Prometheus (Debian: apt-get install prometheus)
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || { echo "prometheus and promtool are not installed"; exit 1; }
	$(BIN)/python -m pytest -m long tests/e2e/test_e2e_prometheus.py

test-openai: $(STAMP) ## the openai package against smg in front: chat, completions, tool calls, reasoning
	$(BIN)/python -m pytest -m long tests/e2e/openai

test-compose: $(STAMP) ## build the images, run them with Docker or podman, kill the worker, see its streams go on (minutes)
	$(BIN)/python -m tools.compose_run

test-recipes: $(STAMP) ## the commands of docs/grpcurl.md with the demo's model: they answer to the letter
	$(BIN)/python -m pytest -m long tests/e2e/recipes

test-fuzz: $(STAMP) ## 10,000 hostile messages and 10,000 random byte strings at every method of every service
	$(BIN)/python -m pytest -m long tests/fuzz

test-gpu: ## the tests that need an NVIDIA GPU; where there is no .venv, with the machine's own Python
	PYTHONPATH=.:protos/gen:clients/python $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m pytest \
		-c tests/gpu/gpu.ini --rootdir . -m gpu tests/gpu tests/kernels

bench: $(STAMP) ## the benchmarks that need no GPU
	$(BIN)/python -m benchmarks.scheduler_core
	$(BIN)/python -m benchmarks.cpu_engine
	$(BIN)/python -m benchmarks.split_cost
	$(BIN)/python -m benchmarks.metrics_cost

bench-kernels: $(STAMP) ## each kernel against its roof; needs an NVIDIA GPU
	@for file in $(wildcard benchmarks/kernels/*.py); do $(BIN)/python $$file; done
	@test -n "$(wildcard benchmarks/kernels/*.py)" || { echo "there is no kernel with a benchmark yet"; exit 1; }

up: $(if $(MODEL),,$(STAMP)) ## build the images and start both services in containers (MODEL=folder, GPU=1, PROFILES="gateway monitoring")
	$(if $(MODEL),,$(BIN)/python -m tools.fetch_smollm2 $(DEMO_MODEL))
	$(if $(MODEL),MODEL_NAME="$(notdir $(abspath $(MODEL)))" )MODEL="$(or $(MODEL),./$(DEMO_MODEL))" \
		$(COMPOSE) -f docker-compose.yml $(if $(GPU),-f docker-compose.gpu.yml) $(PROFILES:%=--profile %) up --build --detach

down: ## stop the containers of `make up`
	$(COMPOSE) -f docker-compose.yml --profile gateway --profile monitoring down

check: fmt-check lint type imports protos-check compose-check test ## everything CI checks

clean: ## remove caches and build leftovers; .venv and fetched models stay
	rm -rf build dist *.egg-info clients/python/build clients/python/*.egg-info \
		.mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
