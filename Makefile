# `make demo` and `make test` on a fresh machine: Python 3.11 or 3.12 and make are enough.
PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
READY := $(VENV)/.ready
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"

.PHONY: setup demo test check clean

setup: $(READY)

# A stage's data goes to DVC's cache, which wants to know where there is no git to work with.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("rulka needs Python 3.11 or 3.12: make PYTHON=/path/to/it" if not (3, 11) <= sys.version_info < (3, 13) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	test -e .git || printf '[core]\n    no_scm = true\n' > .dvc/config.local
	touch $(READY)

demo: $(READY)
	$(RUN) dvc repro
	@echo
	@echo 'The agent has raced. See'
	@echo '  report: data/evaluation/report.html'
	@echo '  plots:  data/evaluation/plots/'
	@echo '  video:  data/evaluation/race.mp4'

check: $(READY)
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) basedpyright
	$(RUN) lint-imports --no-cache --no-logo

test: check
	$(RUN) pytest

# What the pipeline and the tools made; recordings and the virtual environment stay.
clean:
	find data -mindepth 1 -maxdepth 1 ! -name recordings ! -name README.md -exec rm -rf {} +
	rm -rf runs dvc.lock .dvc/cache .dvc/tmp .prefect .pytest_cache .ruff_cache .import_linter_cache
	find flows tasks rulka models tests benchmarks -name __pycache__ -exec rm -rf {} +
