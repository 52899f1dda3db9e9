# `make demo` shows scopegate at work, `make test` runs everything that CI runs. Both do their own set-up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINE := .venv-engine
CLIENTS := .venv-clients
SUDO := $(shell [ "$$(id -u)" = 0 ] || command -v sudo)

.PHONY: demo serve test unit lint services bench quality wheel clean

demo: $(VENV)/.runtime  ## a service, sample knowledge, a check, an answer, a refusal
	$(BIN)/python demo/demo.py

serve: $(VENV)/.runtime  ## a service that keeps running, on http://127.0.0.1:8080
	$(BIN)/scopegate serve

test: $(VENV)/.test $(ENGINE)/.ready $(CLIENTS)/.ready services lint  ## everything that CI runs
	$(BIN)/pytest

unit: $(VENV)/.test  ## the fast tests
	$(BIN)/pytest tests/unit

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test $(ENGINE)/.ready  ## every figure that the README claims; takes about an hour
	$(BIN)/pip install -q -c constraints.txt --group bench
	$(BIN)/python -m benchmarks.all

quality: $(VENV)/.test  ## what the gates get right; DATA=folder with the labelled questions
	$(BIN)/python -m benchmarks.quality $(DATA)

services:  ## the servers that tests start: installs what is missing
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1 || $(MAKE) --no-print-directory install-postgres
	@command -v redis-server >/dev/null 2>&1 || $(MAKE) --no-print-directory install-redis

.PHONY: install-postgres install-redis
install-postgres:
	@if command -v apt-get >/dev/null; then $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq postgresql; \
	elif command -v dnf >/dev/null; then $(SUDO) dnf install -y -q postgresql-server; \
	elif command -v brew >/dev/null; then brew install -q postgresql; \
	else echo "install Postgres for the tests in tests/services" >&2; exit 1; fi
install-redis:
	@if command -v apt-get >/dev/null; then $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq redis-server; \
	elif command -v dnf >/dev/null; then $(SUDO) dnf install -y -q redis; \
	elif command -v brew >/dev/null; then brew install -q redis; \
	else echo "install Redis for the tests in tests/services" >&2; exit 1; fi

wheel: $(VENV)/.runtime
	$(BIN)/pip wheel -q --no-deps -w dist .

clean:
	rm -rf $(VENV) $(ENGINE) $(CLIENTS) dist

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

$(VENV)/.runtime: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install -q -e .
	touch $@

# torch comes first and pinned, so that the extras `local` and `train` find it and nothing fetches a GPU build for the tests.
$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/.runtime
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[data,evaluate,local,postgres,redis,train]' --group test
	touch $@

# vLLM pins packages that scopegate does not, so it lives in an environment of its own, and scopegate's plugin with it.
# Its torchvision and the like are built for another torch, and text models need none.
$(ENGINE)/.vllm: tests/engine/requirements.txt constraints.txt
	$(PYTHON) -m venv $(ENGINE)
	$(ENGINE)/bin/pip install -q --upgrade pip
	$(ENGINE)/bin/pip install -q -c constraints.txt torch
	$(ENGINE)/bin/pip install -q -c constraints.txt -r tests/engine/requirements.txt
	$(ENGINE)/bin/pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

$(ENGINE)/.ready: pyproject.toml $(ENGINE)/.vllm
	$(ENGINE)/bin/pip install -q --no-deps -e .
	touch $@

# LlamaIndex holds the openai library back, so the frameworks that tests point at the service live apart from it.
$(CLIENTS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install -q --upgrade pip
	$(CLIENTS)/bin/pip install -q --group clients
	touch $@
