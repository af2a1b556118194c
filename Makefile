PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test planted-bugs crash-test bench-planner bench-records bench-per-example bench-tasks bench-stacking bench-search reproduction install lint clean

run: install  ## the main job: plan, sweep and report on embedded data (under a minute); writes the folder study
	$(BIN)/python examples/study.py

test: install lint  ## lint, types, tests
	$(BIN)/python -m pytest

planted-bugs: install  ## plant privacy bugs one by one and see a test catch each (about half an hour)
	$(BIN)/python tests/planted_bugs.py

bench-planner: install  ## planners against brute force (resumable, up to two hours)
	$(BIN)/python benchmarks/planner.py

bench-records: install  ## what protecting one record costs, on real data (resumable, about an hour)
	$(BIN)/python benchmarks/records.py

bench-per-example: install  ## the cost of clipping single examples, beside Opacus and torch.func
	$(BIN)/python benchmarks/per_example.py

bench-tasks: install  ## do the paper's tasks learn? Needs their data (resumable, about two hours)
	$(BIN)/python benchmarks/tasks.py

bench-stacking: install  ## what training runs together gains
	$(BIN)/python benchmarks/stacking.py

bench-search: install  ## does the search find what the whole grid finds (resumable, about ten minutes)
	$(BIN)/python benchmarks/search.py

reproduction: install  ## the paper's experiments on FEMNIST and CIFAR-10, reduced (resumable, about an hour on two cores; needs the data)
	$(BIN)/equipoise sweep examples/femnist.toml --store reproduction/femnist.sqlite
	$(BIN)/equipoise sweep examples/cifar10.toml --store reproduction/cifar10.sqlite
	$(BIN)/equipoise report reproduction/femnist.sqlite --out reproduction/femnist
	$(BIN)/equipoise report reproduction/cifar10.sqlite --out reproduction/cifar10

crash-test: install  ## kill a sweep twenty times; nothing may be lost or doubled
	$(BIN)/python tests/crash.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis
