PYTHON ?= python3
BIN := .venv/bin
SHELL := bash
MAIN := .[record,report]
DEV := .[dev]
FEDERATION := .[flower,record,report]
DOCS := .[docs,record,report]

.PHONY: run federation docs test lint release-check planted-bugs mutants crash-test test-federation crash-federation ledger-test ray-test \
	reproduction reproduction-all install install-docs install-federation install-dev clean help \
	bench bench-planner bench-records bench-per-example bench-tasks bench-stacking bench-search bench-noise bench-algorithms \
	bench-federation bench-audit bench-persons bench-hospitals bench-optimisers bench-encoders

run: install  ## the main job: plan, sweep and report on embedded data (under a minute); writes the folder study
	@echo "== running examples/study.py"
	@$(BIN)/python examples/study.py

federation: install-federation  ## three silos, a link and a lead as real processes with TLS on this machine (minutes); writes the folder federation
	@echo "== running examples/federation.py"
	@$(BIN)/python examples/federation.py

docs: install-docs  ## the site of docs, README and docstrings, in the folder site (half a minute; needs no network)
	$(BIN)/python website/build.py

test: install-dev lint  ## lint, types, tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto

lint: install-dev  ## style and types alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

release-check:  ## build sdist and wheel, check what is in them, and try the wheel without extras in a new environment
	PYTHON=$(PYTHON) .ci/release-check

planted-bugs: install-dev  ## plant privacy bugs one by one and see a test catch each (hours)
	$(BIN)/python tests/planted_bugs.py

mutants: install-dev  ## change the source of what protects records in 120 random places, and see a test notice each (under an hour)
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py

crash-test: install-dev  ## kill a training and a sweep twenty times each; nothing may be lost or doubled (about ten minutes)
	$(BIN)/python tests/crash.py

test-federation: install-dev  ## every combination of algorithm, schedule, unit and trust between real processes (ten minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/every_federation.py

crash-federation: install-dev  ## ten runs between real processes, of which each is killed now and then (fifteen minutes)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/crash_federation.py

ledger-test: install-dev  ## ten thousand ledgers whose processes are killed at random; nothing may be overspent (about fifteen minutes)
	PYTHONPATH=tests $(BIN)/python tests/ledger_worlds.py

ray-test: install-dev  ## a sweep on two Ray nodes, one of which is killed (about four minutes)
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python ray_cluster.py

bench: install-dev  ## how long a round takes, over a bare PyTorch loop (a few minutes)
	$(BIN)/python benchmarks/speed.py

bench-planner: install-dev  ## planners against brute force (resumable, up to two hours)
	$(BIN)/python benchmarks/planner.py
	$(BIN)/python benchmarks/held_out.py --best --plans --table

bench-records: install-dev  ## what protecting one record costs, on real data (resumable, about an hour)
	$(BIN)/python benchmarks/records.py

bench-persons: install-dev  ## what clipping whole persons gains over group accounting (resumable, about ten minutes)
	$(BIN)/python benchmarks/persons.py

bench-hospitals: install-dev  ## what training together is worth to five unlike hospitals (resumable, about ten minutes)
	$(BIN)/python benchmarks/hospitals.py

bench-encoders: install-dev  ## what public encoders are worth to images; needs data (resumable, about half an hour)
	$(BIN)/python benchmarks/encoders.py

bench-per-example: install-dev  ## the cost of clipping single examples, beside Opacus and torch.func
	$(BIN)/python benchmarks/per_example.py

bench-tasks: install-dev  ## do the paper's tasks learn? Needs their data (resumable, about two hours)
	$(BIN)/python benchmarks/tasks.py

bench-stacking: install-dev  ## what training runs together gains
	$(BIN)/python benchmarks/stacking.py

bench-algorithms: install-dev  ## every algorithm planned and trained, on ten problems (resumable, about an hour)
	$(BIN)/python benchmarks/algorithms.py

bench-optimisers: install-dev  ## momentum, Adam and falling step sizes beside plain steps (resumable, a quarter of an hour; needs data)
	$(BIN)/python benchmarks/optimisers.py

bench-noise: install-dev  ## what secret, exactly sampled noise costs a number (seconds)
	$(BIN)/python benchmarks/noise.py

bench-federation: install-dev  ## a round between three silos: seconds, processor time, processes; beside Flower's own ways (ten minutes)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python benchmarks/federation.py --large --stock

bench-audit: install-dev  ## lower bounds of epsilon by experiment, for every mechanism (half an hour; needs data)
	$(BIN)/python benchmarks/audit.py

bench-search: install-dev  ## does the search find what the whole grid finds (resumable, about ten minutes)
	$(BIN)/python benchmarks/search.py

reproduction: install-dev  ## the paper's experiments on FEMNIST and CIFAR-10, reduced (resumable, about an hour on two cores; needs the data)
	$(BIN)/equipoise sweep examples/femnist.toml --store reproduction/femnist.sqlite
	$(BIN)/equipoise sweep examples/cifar10.toml --store reproduction/cifar10.sqlite
	$(BIN)/equipoise report reproduction/femnist.sqlite --out reproduction/femnist
	$(BIN)/equipoise report reproduction/cifar10.sqlite --out reproduction/cifar10

reproduction-all: install-dev  ## the same on all five tasks, with more of everything (resumable, about twelve core-hours; needs the data)
	$(BIN)/python benchmarks/reproduction.py

install: .venv/installed-main  ## the product, and what the main job needs

install-docs: .venv/installed-docs  ## the product, and what the site is made with

install-federation: .venv/installed-federation  ## the product, and what runs between machines need

install-dev: .venv/installed-dev  ## the product, and all that tests and benchmarks need

# pip prints hundreds of lines. Of these, what is fetched, with its size, tells a reader that something
# goes on; errors and warnings come through, since they are not on standard output.
# The variables, unlike the option --constraint, pin what builds the package, too.
PIP_INSTALL = set -o pipefail; PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --editable '$(1)' | \
	while read -r verb file size; do \
	case "$$verb $$file" in \
	"Downloading "*.whl | "Downloading "*.tar.gz | "Processing "*.whl) \
		size=$${size\#\#*from*}; file=$${file\#\#*/}; file=$${file%%-cp[0-9]*}; echo "   $${file%%-py[0-9]*} $$size" ;; \
	"Installing collected") echo "   unpacking (silent for up to a minute)" ;; \
	esac; done

.venv/installed-main: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed, and $(PYTHON) is %d.%d; name another: make PYTHON=python3.12" % sys.version_info[:2])'
	@echo "== making .venv, with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@echo "== installing Equipoise and what the main job needs into .venv (once; a few minutes)"
	@$(call PIP_INSTALL,$(MAIN))
	@touch $@

.venv/installed-docs: .venv/installed-main
	@echo "== installing what the site is made with into .venv (once)"
	@$(call PIP_INSTALL,$(DOCS))
	@touch $@

.venv/installed-federation: .venv/installed-main
	@echo "== installing what runs between machines need into .venv (once)"
	@$(call PIP_INSTALL,$(FEDERATION))
	@touch $@

.venv/installed-dev: .venv/installed-main
	@echo "== installing what tests and benchmarks need into .venv (once)"
	@$(call PIP_INSTALL,$(DEV))
	@touch $@

clean:  ## remove .venv and the caches of the tools
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do printf '%-18s %s\n' "$$name" "$$text"; done
