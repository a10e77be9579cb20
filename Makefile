# Everything happens in one environment, .venv, made on first use and again whenever pyproject.toml changes.
#
#   make serve [ARGS="…"]   serve the demo model, or ARGS="MODEL --port 9000 …"
#   make test  [ARGS="…"]   the CPU tests; ARGS go to pytest
#   make check              formatting, lint, types, import borders
#   make bench [ARGS="…"]   load on the server that `make serve` started (ARGS="--help" says what can be asked)
#   make sim   [ARGS="…"]   the seeded simulation of scheduler, pages and prefix tree
#   make clean              remove .venv and caches (models stay)

.PHONY: install serve test check bench sim clean
.DEFAULT_GOAL := install

BIN := .venv/bin
STAMP := .venv/.installed
TOOLS := .venv/.tools

install: $(STAMP)

serve: $(STAMP)
	@exec $(BIN)/headwater serve $(ARGS)

# The tests that need the demo model or Redis are skipped without it, so a machine without a network can still run the others.
test: $(STAMP) $(TOOLS)
	@$(BIN)/headwater pull >/dev/null || echo "The demo model cannot be had here: its tests are skipped." >&2
	@command -v redis-server >/dev/null || echo "There is no redis-server here (on Debian and Ubuntu: apt-get install redis-server): its tests are skipped." >&2
	@$(BIN)/python -m pytest $(ARGS)

check: $(STAMP)
	@$(BIN)/ruff format --check --quiet . || { echo "Not formatted: run $(BIN)/ruff format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@borders=$$($(BIN)/lint-imports) || { echo "$$borders"; exit 1; }

bench: $(STAMP)
	@$(BIN)/headwater bench $(ARGS)

sim: $(STAMP)
	@$(BIN)/python -m tests.simulation $(ARGS)

clean:
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What reads the compose file besides us. Its tests are skipped where it cannot be had.
$(TOOLS): tests/deploy/tools.py tests/deploy/dclint/package-lock.json $(STAMP)
	@if $(BIN)/python -m tests.deploy.tools; then touch $@; \
	else echo "Compose or dclint cannot be had here: tests that need them are skipped." >&2; fi

# Whatever is missing is one line that says what to install. python3 comes first: the version that its owner chose.
$(STAMP): pyproject.toml
	@set -e; \
	python=$$(for name in python3 python3.13 python3.12 python3.11; do \
		if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$name; break; fi; \
	done); \
	if [ -z "$$python" ]; then \
		echo "Headwater needs Python 3.11 or newer, and python3 is $$(python3 -V 2>/dev/null || echo missing)." >&2; exit 1; \
	fi; \
	if ! $$python -c 'import venv, ensurepip' 2>/dev/null; then \
		echo "$$($$python -V) lacks its venv module: install it (on Debian and Ubuntu: apt-get install python3-venv)." >&2; exit 1; \
	fi; \
	if ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then $$python -m venv --clear .venv; fi; \
	echo "Installing Headwater and what it needs into .venv (minutes the first time) ..." >&2; \
	$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --root-user-action=ignore --editable '.[dev]'; \
	if ! command -v cc >/dev/null && ! command -v gcc >/dev/null && ! command -v clang >/dev/null; then \
		echo "No C compiler found: Headwater works, but slower on a CPU (on Debian and Ubuntu: apt-get install gcc)." >&2; \
	fi; \
	touch $@
