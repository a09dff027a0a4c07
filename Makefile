# `make demo` and `make test` on a fresh machine: Python 3.11 or 3.12 and make are enough.
PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
READY := $(VENV)/.ready
# Programs in it name its place: after a move it is made anew.
HERE := $(shell cd $(VENV) 2>/dev/null && pwd -P)
MOVED := $(subst $(HERE),,$(shell cat $(READY) 2>/dev/null))
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
# Where this is set, as in many containers, every process would compile all libraries anew: 5 s for torch alone.
unexport PYTHONDONTWRITEBYTECODE
# Of ROS or conda, it would put their numpy and yaml before ours.
unexport PYTHONPATH

# Tools that make and look at releases, in an environment of their own.
RELEASE := .venv-release
RELEASE_TOOLS := build cyclonedx-bom pip-audit pip-licenses

.PHONY: help setup demo test test-all check docs dist audit clean clean-results kernels

setup: $(READY)

help:
	@echo 'make setup          install into $(VENV)'
	@echo 'make demo           install, run the pipeline, print where report, plots and video are'
	@echo 'make test           install, check style, types and imports, run the fast tests'
	@echo 'make test-all       the same with all tests'
	@echo 'make check          style, types and imports alone'
	@echo 'make docs           build the site of docs/'
	@echo 'make dist           build wheel and source, with pins and licences; make audit looks for known faults'
	@echo 'make clean          delete what tools made; make clean-results lists, then deletes, what the pipeline made'

# Nothing is compiled to bytecode yet: what is imported will be, and that is a third. A stage's data goes to DVC's cache,
# which wants to know where there is no git to work with.
ifneq ($(MOVED),)
.PHONY: $(READY)
endif
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("rulka needs Python 3.11 or 3.12: make PYTHON=/path/to/it" if not (3, 11) <= sys.version_info < (3, 13) else 0)'
	$(if $(MOVED),rm -rf $(VENV))
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	test -e .git || printf '[core]\n    no_scm = true\n' > .dvc/config.local
	(cd $(VENV) && pwd -P) > $(READY)

# `dvc repro` succeeds also where DVC's cache cannot be written, as on a full disk.
NOT_STORED := 'error: what is "not in cache" is not stored, and lost once a stage runs again: make room where `dvc cache dir` says, then `dvc commit -f`'

demo: $(READY)
	$(RUN) dvc repro
	@$(RUN) dvc status --quiet || { $(RUN) dvc status; echo $(NOT_STORED) >&2; exit 1; }
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

# A file goes to one process, as its tests share what they set up.
PYTEST := pytest -n auto --dist loadfile --no-loadscope-reorder

# The simulator is compiled while types are checked, on the other core; else every process of the tests would do it.
kernels: $(READY)
	$(RUN) python -c 'import gymnasium, rulka; gymnasium.make("rulka/Race-v0").reset()'

test test-all: $(READY)
	$(MAKE) --no-print-directory -j2 check kernels
	$(RUN) $(PYTEST)$(if $(filter test-all,$@), -m 'slow or not slow')

docs: $(READY)
	$(RUN) NO_MKDOCS_2_WARNING=1 mkdocs build --strict
	@echo 'The site is built: site/index.html'

$(RELEASE)/.ready: constraints.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --disable-pip-version-check -c constraints.txt $(RELEASE_TOOLS)
	touch $@

# Wheel and source, the pins to install them with, and what the environment here is made of: a bill of materials
# (CycloneDX) and the licences, development tools included.
dist: $(READY) $(RELEASE)/.ready
	rm -rf dist
	$(RELEASE)/bin/python -m build --outdir dist
	cp constraints.txt dist/
	$(RELEASE)/bin/cyclonedx-py environment --output-file dist/sbom.cdx.json $(VENV)/bin/python
	$(RELEASE)/bin/pip-licenses --python $(VENV)/bin/python --format markdown --with-urls --output-file dist/licences.md

# Known faults of the pinned versions; asks the package index.
audit: $(RELEASE)/.ready
	$(RELEASE)/bin/pip-audit --no-deps --disable-pip -r constraints.txt

# What the tools made, and make again. Data, runs and DVC's cache stay.
clean:
	rm -rf dist .pytest_cache .ruff_cache .import_linter_cache dvc_plots site
	find flows tasks rulka models tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# By find, as a name may hold spaces.
MADE = $(wildcard runs dvc.lock .dvc/cache .dvc/tmp .prefect data/.*-*)
RESULTS = find $(MADE) data/* -maxdepth 0 ! -path 'data/recordings*' ! -path 'data/takeovers*' ! -path 'data/backbones*' \
	! -path 'data/agents*' ! -path 'data/nights*' ! -name README.md

# What the pipeline made. What no run can make again stays: recordings, takeovers, backbones, promoted agents, the history of nights.
clean-results:
ifeq ($(SURE),yes)
	$(RESULTS) -exec rm -rf {} +
else
	@echo 'This deletes for good every agent, dataset and run of this folder:'
	@$(RESULTS) -exec du -sh {} +
	@echo 'Kept: data/recordings, data/takeovers, data/backbones, data/agents, data/nights. docs/data.md says how to make room.'
	@echo 'If that is what you want: make clean-results SURE=yes'
	@exit 1
endif
