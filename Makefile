# make demo   set up and run a federation of real client processes over gRPC on this machine
# make test   set up and run the tests, all but those below
# make test-ray    set up and run the tests that start a Ray cluster
# make test-newest  set up the newest Flower that this runs on in .venv-newest, and run what speaks to Flower there
# make test-wheel    set up, build the wheel, and run the notebook in a clean environment with it
# make test-hostile  set up and attack federations of real processes, as one member, neighbour or server could
# make test-docker   set up and run the tests with real containers (needs Docker with Compose)
# make soak   set up and soak: 500 rounds of 30 clients, one of which is killed or cut off every 10 s (half an hour); then
#             runs killed at every point at which they write a file, and signals in each stage (an hour)
# make mutants      set up and try small changes of the code against the tests of their lines (under an hour on two cores)
# make audit  set up and look for known flaws: bandit over the code, advisories of every package (needs a network)
# make sbom   set up and write what is installed, as CycloneDX: dist/
# make docs   set up and build the docs site: site/index.html
# make setup  the setting up alone, into .venv

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NEWEST := .venv-newest
READY := $(VENV)/ready

TASK ?= digits
STRATEGY ?= maxfl
AGAINST ?= $(if $(filter fedavg,$(STRATEGY)),maxfl,fedavg)
CLIENTS ?= 10
ROUNDS ?= 20
SEED ?= 0
ARGS ?=
WORKERS ?= 4
# Processes of `make mutants`.
PROCESSES ?= 2
SOAK_ROUNDS ?= 500
# Points at which each kind of simulated run is killed (0: all), and local runs that are killed.
SOAK_KILLS ?= 0
SOAK_LOCAL_KILLS ?= 50
# Signals in the stages of runs: 1: each in each stage; empty: none (`make test-hostile` has a sample).
SOAK_SIGNALS ?= 1
MUTANTS ?= 300

.PHONY: setup newest demo test test-ray test-newest test-docker test-reproduce test-wheel test-hostile soak mutants lint types check docs audit sbom requirements clean

setup: $(READY)

# Every file that is installed must have the hash that a file of this repository says; what builds the project too.
$(READY): requirements.txt docker/installer.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedappeal needs Python 3.11 or newer; name it with: make PYTHON=python3.12" >&2; exit 2; }
	@echo "setting up $(VENV) (a few minutes the first time: PyTorch is large)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r docker/installer.txt
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --no-build --require-hashes -r requirements.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $(READY)

# A second environment, with the newest Flower; what both have comes from uv's cache.
newest: $(NEWEST)/ready

$(NEWEST)/ready: $(READY) requirements-newest.txt
	@test -x $(NEWEST)/bin/python || $(PYTHON) -m venv --without-pip $(NEWEST)
	@$(BIN)/uv pip install --quiet --python $(NEWEST)/bin/python --no-build --require-hashes -r requirements-newest.txt
	@$(BIN)/uv pip install --quiet --python $(NEWEST)/bin/python --no-deps --no-build-isolation --editable .
	@touch $(NEWEST)/ready

demo: setup
	@$(BIN)/fedappeal local --strategy $(STRATEGY) --task $(TASK) --clients $(CLIENTS) --rounds $(ROUNDS) --seed $(SEED) --page 0 --against $(AGAINST) $(ARGS)

# Compiled modules are kept: each worker would compile all tests, and each process that a test starts all of our modules.
export PYTHONDONTWRITEBYTECODE :=

# Many tests wait for real processes: more workers than cores. Files stay in their order, which is the alphabet's: by the
# number of tests those with one test of a minute would be last.
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
test: setup
	@$(BIN)/python -m pytest $(SPREAD) -m "not ray" $(ARGS)

# Ray starts a dozen processes a cluster, and gives them half a minute.
test-ray: setup
	@$(BIN)/python -m pytest -m ray tests $(ARGS)

# What meets Flower, where fedappeal finds a Flower that has no gRPC; `make test-newest` runs this sample of it. All that
# can: PYTHONPATH=$PWD/tests/http_alone .venv-newest/bin/python -m pytest tests/federation tests/e2e -m "not grpc"
HTTP_ALONE := tests/federation/test_superlink.py tests/e2e/test_volunteer_app.py -k "transport or scikit"

# Both environments' Flowers meet in some of these tests. Those that start Ray come after the others: see test-ray.
AT_FLOWER := tests/flower tests/federation tests/e2e
test-newest: export FEDAPPEAL_OTHER_FLOWER := $(abspath $(BIN)/python)
test-newest: newest
	@$(NEWEST)/bin/python -m pytest $(AT_FLOWER) $(SPREAD) -m "not ray" $(ARGS)
	@$(NEWEST)/bin/python -m pytest $(AT_FLOWER) -m ray $(ARGS)
	@PYTHONPATH=$(abspath tests/http_alone) $(NEWEST)/bin/python -m pytest $(HTTP_ALONE) -m "not ray"

# Every experiment in its short form.
test-reproduce: setup
	@$(BIN)/python -m pytest -m reproduce tests/reproductions $(ARGS)

# The notebook, from the built wheel in a clean environment.
test-wheel: setup
	@FEDAPPEAL_WHEEL_TESTS=1 $(BIN)/python -m pytest tests/docs/test_wheel.py $(ARGS)

# What one member, a neighbour on the machine, or a server can do to others: each file is a promise.
test-hostile: setup
	@$(BIN)/python -m pytest tests/hostile $(SPREAD) $(ARGS)

# A long run whose clients are killed, stopped and cut off: rounds, memory, processes and the model must be right. Then
# many short runs that are killed while they write a file, and end as undisturbed ones.
soak: setup
	@$(BIN)/python -m tests.soak.soak --rounds $(SOAK_ROUNDS) --seed $(SEED) $(ARGS)
	@$(BIN)/python -m tests.soak.kills --at-most $(SOAK_KILLS) --local $(SOAK_LOCAL_KILLS)
	$(if $(SOAK_SIGNALS),@FEDAPPEAL_ALL_FAULTS=1 $(BIN)/python -m pytest tests/hostile/test_signals.py -n $(WORKERS))

# Whether the tests notice a seeded sample of small changes of the code; those that they miss are printed.
mutants: setup
	@$(BIN)/python -m tests.mutants.run --number $(MUTANTS) --seed $(SEED) --processes $(PROCESSES) $(ARGS)

test-docker: setup
	@FEDAPPEAL_DOCKER_TESTS=1 $(BIN)/python -m pytest tests/docker $(ARGS)

CODE := fedappeal client server strategies benchmarks .ci
lint: setup
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/bandit --quiet --configfile pyproject.toml --recursive $(CODE)

types: setup
	@$(BIN)/mypy

check: lint types test

# A link, an anchor or a page without a place in the navigation that is wrong fails it; tests/docs checks what was built.
docs: setup
	@$(BIN)/sphinx-build --quiet --fail-on-warning -c docs/site -d $(VENV)/doctrees . site
	@echo "the site: site/index.html"

# bandit over the code, and the advisories of every pinned package, for which it needs a network. Exit code 1: something
# was found; 3: advisories could not be read (`make` itself prints the 3, and ends with 2).
audit: setup
	@$(BIN)/python .ci/audit.py

# What is in .venv with licences and who needs what, and what is in the image with hashes, as CycloneDX; each is checked
# against its schema before it is written. And files of others that lie in this repository; the audit knows none of them.
sbom: setup
	@mkdir -p dist
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/sbom.cdx.json $(BIN)/python
	@$(BIN)/python -W ignore -m cyclonedx_py requirements --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/sbom-image.cdx.json docker/requirements.txt
	@cp .ci/vendored.cdx.json dist/sbom-vendored.cdx.json
	@echo "written: dist/sbom.cdx.json dist/sbom-image.cdx.json dist/sbom-vendored.cdx.json"

# Pins every package's version and its files' hashes, for every platform, without addresses: all that there is; for the
# image, what it needs; and what installs these. Versions stay unless asked:
# ARGS="--upgrade-package torch", ARGS=--upgrade.
PIN = $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
  --no-annotate --quiet $(ARGS)
requirements: setup
	@echo "flwr==1.39.*" | $(PIN) pyproject.toml - --extra dev --group build --output-file requirements.txt
	@echo "flwr==1.42.*" | $(PIN) pyproject.toml - --extra dev --group build --output-file requirements-newest.txt
	@$(PIN) pyproject.toml --extra data --extra metrics --constraint requirements-newest.txt --output-file docker/requirements.txt
	@$(PIN) --group build --constraint requirements.txt --output-file docker/installer.txt

clean:
	rm -rf $(VENV) $(NEWEST) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
