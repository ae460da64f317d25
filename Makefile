# make run: install and compare four methods on digits.   make test: install, lint, type-check, run all tests.
# make test-flower: federations of real processes, in an environment of their own.
# make soak MINUTES=30: kill runs and feed wrong input, and count the failures.
# make mutants: plant wrong changes one at a time and count those that the tests notice. Some of them: make mutants ONLY=runs/
# make audit: known vulnerabilities of the locked packages.   make lock: write the hashes of the lock files anew (needs uv).
# make docs: the site from docs/, in build/site; fails on a broken link.   make docs-serve: the same while you write.
# make reference: write docs/reference anew from the code.   make pictures: draw those of docs/methods anew.
# make wheel: the package as wheel and source archive in dist/.   make wheel-test: the same, and a run in an environment of its own.
# make bench: the tables of docs/performance.md that need no GPU, beside Flower and pfl where they can be installed.
PYTHON ?= python3
MINUTES ?= 30
VENV := .venv
FLOWER := .venv-flower
BENCH := .venv-bench
AUDIT := .venv-audit
DOCS := .venv-docs
BIN := $(VENV)/bin
PIP := python -m pip install --disable-pip-version-check
LOCKED := --quiet --require-hashes --no-deps --only-binary :all:
# torch is built for every GPU and for CPUs under one version, so its hash depends on where it is installed.
TORCH := torch==2.13.0
DEMO := fedavg fedsol:perturb=all fedgf:rho=0.05,threshold=0.7 fedgloss

.PHONY: install run test test-flower bench lint browser docs docs-serve reference pictures wheel wheel-test audit lock soak mutants clean

run: install
	$(BIN)/fedflat compare $(DEMO) --config examples/demo.yaml

test: lint browser $(VENV)/triton
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

# The page about participation shows an ε of dp-accounting, which is installed there.
test-flower: $(FLOWER)/installed
	OMP_NUM_THREADS=1 $(FLOWER)/bin/pytest -n 2 --dist loadfile tests/flower tests/api/test_docs_participation.py

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

$(VENV)/installed: requirements.lock requirements-dev.lock
$(FLOWER)/installed: requirements-flower.lock
$(BENCH)/installed: requirements-bench.lock

# Every file is checked against its hash, but for torch, whose requirements are there before it.
%/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fedflat needs Python 3.11 or newer")'
	$(PYTHON) -m venv $*
	$*/bin/$(PIP) $(LOCKED) $(addprefix -r ,$(filter %.lock,$^))
	$*/bin/$(PIP) $(TORCH)
	$*/bin/$(PIP) --quiet --no-deps --no-build-isolation -e .
	@touch $@

# The GPU kernels are tested in Triton's interpreter; GPU builds of torch bring Triton, others do not.
$(VENV)/triton: $(VENV)/installed
	@$(BIN)/$(PIP) $(LOCKED) -r requirements-triton.lock \
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

# Warnings are failures, but not with --quiet, which hides them from --strict.
docs: $(DOCS)/packages
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo "the site is in build/site; its search needs a server: $(PYTHON) -m http.server -d build/site"

docs-serve: $(DOCS)/packages
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs serve

# The site is built from text alone: its environment has neither torch nor fedflat.
$(DOCS)/packages: requirements-docs.lock
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/$(PIP) $(LOCKED) -r requirements-docs.lock
	@touch $@

reference: install
	$(BIN)/python docs/generate_reference.py

pictures: install
	$(BIN)/python docs/draw_methods.py

wheel: install
	rm -rf dist
	$(BIN)/python -m build --no-isolation

# An environment with the wheel and what it needs, and nothing else; outside src, so that the wheel's files are used.
wheel-test: wheel
	rm -rf build/wheel-test && mkdir -p build/wheel-test
	$(PYTHON) -m venv build/wheel-test/venv
	build/wheel-test/venv/bin/$(PIP) $(LOCKED) -r requirements.lock
	build/wheel-test/venv/bin/$(PIP) --quiet $(TORCH)
	build/wheel-test/venv/bin/$(PIP) --quiet --no-deps dist/fedflat-*.whl
	build/wheel-test/venv/bin/python -m pip check
	cd build/wheel-test && venv/bin/fedflat run fedsol --rounds 2 --local-epochs 1 --out run

soak: install
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/soak.py --minutes $(MINUTES)

# Changes of the Flower part need the environment of make test-flower, the others that of make test.
mutants: install $(FLOWER)/installed
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants/run_mutants.py $(ONLY)
	@test -n "$(ONLY)" || OMP_NUM_THREADS=1 $(FLOWER)/bin/python tests/mutants/run_mutants.py flower/

# No answer is a failure too: pip-audit has to reach its database, and every package has to be in it.
audit:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/$(PIP) $(LOCKED) -r requirements-audit.lock
	@for lock in $(wildcard requirements*.lock); do echo "$$lock"; \
	  $(AUDIT)/bin/pip-audit --strict --disable-pip --progress-spinner off -r $$lock || failed=1; done; \
	test -z "$$failed" || { echo "vulnerable packages, or the database could not be asked"; exit 1; }

# A new package is a line NAME==VERSION in a lock file; this adds the hashes of its published files.
lock:
	for lock in $(wildcard requirements*.lock); do grep '^#' $$lock > $$lock.new \
	  && uv pip compile $$lock --quiet --generate-hashes --no-deps --no-annotate --no-header --python-version 3.11 \
	    >> $$lock.new && mv $$lock.new $$lock || exit 1; done

clean:
	rm -rf $(VENV) $(FLOWER) $(BENCH) $(AUDIT) $(DOCS) build .mypy_cache .pytest_cache .ruff_cache
