# make run: install and compare four methods on digits.   make test: install, lint, type-check, run all tests.
# make test-flower: federations of real processes, in an environment of their own.
# make bench: the tables of docs/performance.md that need no GPU, beside Flower and pfl where they can be installed.
PYTHON ?= python3
VENV := .venv
FLOWER := .venv-flower
BENCH := .venv-bench
BIN := $(VENV)/bin
PIP := python -m pip install --disable-pip-version-check
DEMO := fedavg fedsol:perturb=all fedgf:rho=0.05,threshold=0.7 fedgloss

.PHONY: install run test test-flower bench lint browser clean

run: install
	$(BIN)/fedflat compare $(DEMO) --config examples/demo.yaml

test: lint browser $(VENV)/triton
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

test-flower: $(FLOWER)/installed
	OMP_NUM_THREADS=1 $(FLOWER)/bin/pytest -n 2 --dist loadfile tests/flower

bench: install
	-$(MAKE) $(BENCH)/installed
	$(BIN)/python benchmarks/compare_cpu.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/engines.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/scaling.py --device cpu

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(VENV)/installed

$(VENV)/installed: requirements.lock
$(FLOWER)/installed: requirements-flower.lock
$(BENCH)/installed: requirements-bench.lock

%/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fedflat needs Python 3.11 or newer")'
	$(PYTHON) -m venv $*
	$*/bin/$(PIP) $$(grep '^torch==' $(filter %.lock,$^))
	$*/bin/$(PIP) --quiet -r $(filter %.lock,$^)
	$*/bin/$(PIP) --quiet --no-deps --no-build-isolation -e .
	@touch $@

# The GPU kernels are tested in Triton's interpreter; GPU builds of torch bring Triton, others do not.
$(VENV)/triton: $(VENV)/installed
	@$(BIN)/$(PIP) --quiet triton==3.9.0 \
	  || echo "triton could not be installed: the tests of the GPU kernels will be skipped"
	@touch $@

# Some tests open the report in a browser; without one they are skipped.
browser:
	@if command -v chromium > /dev/null && command -v chromedriver > /dev/null; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then \
	  echo "no chromium and chromedriver here: the browser tests will be skipped"; exit 0; fi; \
	echo "installing chromium and chromium-driver for the browser tests"; \
	(apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver) > /dev/null \
	  || echo "chromium could not be installed: the browser tests will be skipped"

clean:
	rm -rf $(VENV) $(FLOWER) $(BENCH) .mypy_cache .pytest_cache .ruff_cache
