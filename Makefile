# Every target makes what it needs: `make demo` and `make test` work on a fresh machine with Python 3.11, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two cores: two test processes with one torch thread each, which is faster than one process with two.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test test-learning check mutants lock clean

$(VENV)/user: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		|| { echo "Recollect needs Python 3.11 to 3.13; try: make PYTHON=python3.11 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

$(VENV)/dev: requirements-dev.lock $(VENV)/user
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	touch $@

demo: $(VENV)/user
	$(BIN)/recollect train pong-blind-transformer --capture-video

test: $(VENV)/dev
	$(PYTEST) -m "not learning"

test-learning: $(VENV)/dev
	$(PYTEST) -m learning

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(PYTEST) -q -m "not learning and not slow"

mutants: $(VENV)/dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py

# The exact versions of everything, from a fresh environment; torch's own line stays as it is (see README).
lock:
	tools/lock.sh

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
