# make book [PRESET=smoke], make test, make lint, make clean. PYTHON=/path/to/python3.11 chooses the interpreter.
PRESET ?= paper
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))
# PyTorch's threads sleep while they wait: spinning is ten times slower once another process wants a core.
OMP_WAIT_POLICY ?= PASSIVE
export OMP_WAIT_POLICY

.PHONY: help install book linkcheck test lint clean

help:
	@head -1 Makefile | cut -c3-

install: $(STAMP)

# The lock holds every package, so pip resolves nothing. Only torch is installed a second time, with what it requires:
# nothing for the CPU build, the CUDA libraries for the build that the public index holds.
$(STAMP): requirements.lock pyproject.toml
	@for candidate in $(PYTHON) python3.11 python3.12 python3; do \
		if "$$candidate" -c '$(SUPPORTED)' 2>/dev/null; then found="$$candidate"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "make: Python 3.11 or 3.12 is needed and none was found; try make PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	if ! $(BIN)/python -c '$(SUPPORTED)' 2>/dev/null; then "$$found" -m venv --clear $(VENV); fi
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c requirements.lock torch
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@touch $@

book: $(STAMP)
	$(BIN)/mi book --preset $(PRESET)

linkcheck: $(STAMP)
	$(BIN)/jupyter-book build book --config _config.yml --path-output _build/links --builder linkcheck

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf _build book/executed book/_extra/mathjax .pytest_cache .hypothesis .ruff_cache .benchmarks
