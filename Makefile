# Two commands for a newcomer: `make demo` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n auto --dist loadgroup

.PHONY: demo test lint bench soak protocols manifests lock clean

demo: $(VENV)/ready
	@$(BIN)/gpuplane demo

test: $(VENV)/ready
	$(PYTEST)

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: $(VENV)/ready
	@$(BIN)/python -m compileall -q src  # a process that compiles a module as it starts is the larger for it
	@$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json) $(if $(MARKDOWN),--markdown)

soak: $(VENV)/ready
	$(PYTEST) --soak --timeout 3000

# Compiled once here, bytecode of ours and of what we use: a start without it costs four times as long.
$(VENV)/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "needs Python 3.11 or newer with venv (Debian: apt install python3-venv); make PYTHON=... takes another" >&2; exit 1; }
	@echo "setting up $(VENV), by $(PYTHON) and PyPI ..." >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src
	@touch $@

protocols: $(VENV)/ready
	cd src && ../$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --grpc_python_out=. \
		--plugin=protoc-gen-mypy=../$(BIN)/protoc-gen-mypy --mypy_out=quiet:. \
		--plugin=protoc-gen-mypy_grpc=../$(BIN)/protoc-gen-mypy_grpc --mypy_grpc_out=quiet:. $$(find gpuplane -name "*.proto")

manifests: $(VENV)/ready
	$(BIN)/python -m tests.deploy.test_sandbox_agents > src/gpuplane/sandbox/manifests/agents.yaml

lock:
	uv pip compile --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group dev pyproject.toml -o requirements.lock
	uv pip compile --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -c requirements.lock pyproject.toml -o deploy/requirements.lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
