# make run: install and compare four methods on digits.   make test: install, lint, type-check, run all tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
DEMO := fedavg fedsol:perturb=all fedgf:rho=0.05,threshold=0.7 fedgloss

.PHONY: install run test lint browser clean

run: install
	$(BIN)/fedflat compare $(DEMO) --config examples/demo.yaml

test: lint browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(VENV)/installed

$(VENV)/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fedflat needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) $$(grep '^torch==' requirements.lock)
	$(PIP) --quiet -r requirements.lock
	$(PIP) --quiet --no-deps --no-build-isolation -e .
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
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
