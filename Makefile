# Every target sets up what it needs in .venv, so a fresh clone needs only Python 3.11+, make and g++.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?=
CUDA ?= 12
DATA_FLAG := $(if $(DATA),--data $(DATA),)
JOBS ?= 2
FLAGS ?=

.PHONY: demo serve ui test test-gpu chaos siege fuzz machines-net lint docs proto studio format audit bench image-test image-lock clean
.DEFAULT_GOAL := demo

$(VENV)/.dev: pyproject.toml client/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable client --editable '.[dev]'
	$(BIN)/python -m homophily_service.jobs.warm
	touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable client --editable '.[bench]'
	touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable client --editable '.[docs]'
	touch $@

demo: $(VENV)/.dev  ## starts a service that labels scikit-learn's digits from 50 labels; table, and picture in demo.png
	$(BIN)/homophily demo

serve: $(VENV)/.dev  ## the service on 127.0.0.1:50051, with all data in ./homophily-data; Ctrl-C stops it
	$(BIN)/homophily serve

ui: $(VENV)/.dev  ## MLflow's pages about the runs in ./homophily-data, on http://127.0.0.1:5000; Ctrl-C stops it
	$(BIN)/homophily ui

# Only one CuPy may be installed: remove the one that `make test-gpu` may have installed.
$(VENV)/.gpu-tests: $(VENV)/.dev
	$(BIN)/python -m pip uninstall --quiet --yes cupy-cuda13x
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable client --editable '.[gpu-tests]'
	touch $@

# For the test that opens MLflow's pages. If it cannot be installed, that test is skipped with a reason, or fails if CI is
# set; `make test` tries again the next time.
$(VENV)/.chromium: $(VENV)/.dev
	@if command -v chromium || command -v chromium-browser || \
		{ apt-get update && apt-get install --yes --no-install-recommends chromium; } > $(VENV)/chromium.log 2>&1; \
	then touch $@; fi

# The siege measures times, so it runs beside nothing but the tests that only compute, which the kernel schedules only on
# idle cores until no other tests are left. They continue beside the other tests, which run four at once, as the slowest
# ones mostly wait. Each file stays in one process, which has its fixtures, and tests/conftest.py puts the slowest files
# first.
SIEGE = tests/system/test_siege.py
COMPUTING = tests/core tests/gpu tests/benchmarks
WHEN_IDLE := $(if $(shell command -v chrt),chrt --idle 0,nice -n 19)
COMPUTING_LOG = $(VENV)/computing-tests.log

# Tests start a hundred processes, each of which would compile our modules.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.dev $(VENV)/.gpu-tests $(VENV)/.chromium
	@$(WHEN_IDLE) $(BIN)/python -m pytest -n 2 --dist loadfile $(COMPUTING) > $(COMPUTING_LOG) 2>&1 & computing=$$!; \
	failed=0; \
	$(BIN)/python -m pytest -s $(SIEGE) || failed=1; \
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --durations 15 \
		$(addprefix --ignore ,$(SIEGE) $(COMPUTING)) || failed=1; \
	$(BIN)/python tests/hurry.py $$computing; \
	wait $$computing || failed=1; \
	cat $(COMPUTING_LOG); \
	exit $$failed

siege: $(VENV)/.dev  ## one tenant attacks for half an hour, another works as usual; `make test` does so for two minutes
	$(BIN)/python -m pytest -s --long $(SIEGE)

# The files of the core suite whose subject takes a backend; tests/conftest.py lists the tests in them that need the CPU.
ON_GPU = answers calibration classifiers_graph classifiers_input classifiers_labels clustering knn_graph relationship repulsion spectral

test-gpu: $(VENV)/.dev  ## on a machine with a GPU; make test-gpu CUDA=13 with CUDA 13
	rm -f $(VENV)/.gpu-tests
	$(BIN)/python -m pip uninstall --quiet --yes cupy-cuda12x cupy-cuda13x
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable client --editable '.[$(if $(filter 13,$(CUDA)),gpu-cuda13,gpu)]'
	$(BIN)/python -m pytest -m gpu
	$(BIN)/python -m pytest --on-gpu $(addprefix tests/core/test_,$(addsuffix .py,$(ON_GPU)))

# The files of the service's suite about reliability; tests/system is about little else.
RELIABILITY = api_datasets api_embed api_errors api_fuzz api_jobs api_server blobs cli_files pictures

chaos: $(VENV)/.dev  ## the long form of the reliability tests: 200 kills on each database, 1,000 flipped bits, 10⁵ garbled messages, 10 minutes of pings; an hour
	$(BIN)/python -m pytest --long tests/system --ignore $(SIEGE) $(addprefix tests/service/test_,$(addsuffix .py,$(RELIABILITY)))

MESSAGES ?= 1000000
fuzz: $(VENV)/.dev  ## 10⁶ random and garbled messages to every call, hours; make fuzz MESSAGES=10000
	$(BIN)/python -m tests.service.fuzz --count $(MESSAGES)

machines-net: $(VENV)/.dev  ## cuts off a worker in its own network namespace, and reconnects it; as root, with iproute2
	$(BIN)/python -m pytest tests/system/cut_off.py

STUDIO = service/homophily_service/studio/web/bundle.py

lint: $(VENV)/.dev
	$(BIN)/buf lint proto
	$(BIN)/buf breaking proto --against proto/released.binpb
	$(BIN)/python client/generate.py --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/check_docstrings.py
	$(BIN)/hadolint deploy/docker/Dockerfile
	$(BIN)/python deploy/kubernetes/check.py
	$(BIN)/python deploy/helm/chart.py
	$(BIN)/python deploy/compose/check.py
	$(BIN)/python $(STUDIO) --check

# -n: a reference to a name that is not there is a warning, and -W makes every warning fail the build.
docs: $(VENV)/.docs  ## the documentation, docs/_build/html/index.html
	$(BIN)/python -m sphinx -n -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html

proto: $(VENV)/.dev  ## generate the client's stubs, options and blocking form
	$(BIN)/python client/generate.py

studio: $(VENV)/.dev  ## bundle the page of `homophily studio` from its TypeScript; needs npm
	$(BIN)/python $(STUDIO)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: table1 table2 table3 table4 table5 figures page
table1 table2 table3 table4 table5 figures: $(VENV)/.bench  ## one of the paper's tables, and the page benchmarks/RESULTS.md; make table1 DATA=folder FLAGS=--quick
	$(BIN)/python -m benchmarks $@ $(DATA_FLAG) --jobs $(JOBS) $(FLAGS)

page: $(VENV)/.dev  ## benchmarks/RESULTS.md from the records of all tables
	$(BIN)/python -m benchmarks page

AUDIT_FLAGS ?=
audit: $(VENV)/.dev  ## known vulnerabilities of the packages installed here and in the images; needs the network
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.7,<3'
	$(BIN)/python -m pip freeze --exclude-editable > $(VENV)/installed.txt
	$(BIN)/pip-audit --strict --disable-pip --no-deps --desc off -r $(VENV)/installed.txt $(AUDIT_FLAGS)
	$(BIN)/pip-audit --strict --disable-pip --no-deps --desc off -r deploy/docker/requirements.txt -r deploy/docker/requirements-cuda.txt $(AUDIT_FLAGS)

bench: $(VENV)/.bench  ## make bench DATA=folder runs on the real sets, otherwise on synthetic stand-ins
	$(BIN)/python -m benchmarks all $(DATA_FLAG)

image-test: $(VENV)/.dev  ## builds the image with buildah on a base from debootstrap, and runs a fit in it; as root
	$(BIN)/python deploy/docker/test_image.py

image-lock: $(VENV)/.dev  ## newest versions that pyproject.toml allows, for the images
	$(BIN)/python deploy/docker/lock.py

clean:
	rm -rf $(VENV) docs/_build docs/reference/api .pytest_cache .mypy_cache .ruff_cache
