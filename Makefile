# Everything runs in an environment inside the checkout, made on first use: .venv/$(LANE).
#
#   make demo       install what is missing, extract from a tiny model on a real vLLM, verify
#   make test       install what is missing, run the tests but the slow: under 30 minutes on 2 cores
#   make PYTHON=python3.12 ...   make the environment with another Python (3.11 or newer)

PYTHON ?= python3
LANE ?= gen2

BIN := .venv/$(LANE)/bin
SETUP := $(PYTHON) ci/lanes/setup.py
PYTEST := $(BIN)/python -m pytest

# What Python compiles on the first run, later runs must find.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-unit test-engine test-slow lint gen1 gen2 clean
.DEFAULT_GOAL := demo

gen1 gen2:
	@$(SETUP) $@

demo: $(LANE)
	@$(BIN)/harness demo

# Both environments first: some unit tests read what is installed in them.
test: gen2 gen1 test-unit test-engine

# What a file's tests share is made once, so a file stays with one process. Tests that hold times
# run alone, behind the others.
TIMED := $(addprefix tests/unit/,test_host_*.py test_supervis*.py test_fault_matrix.py \
	test_preflight_probe.py test_preflight_states.py)

test-unit: $(LANE)
	$(PYTEST) tests/unit -m "not slow" -n 2 --dist loadfile $(patsubst %,--ignore-glob='%',$(TIMED))
	$(PYTEST) $(TIMED) -m "not slow"

test-engine: gen2 gen1
	$(PYTEST) tests/engine -m "engine and not slow"

test-slow: gen2 gen1
	$(PYTEST) tests/unit tests/engine -m slow

lint: $(LANE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict ci/lanes/*.py
	$(BIN)/mypy --strict ci/gpu/*.py
	$(BIN)/lint-imports

clean:
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
