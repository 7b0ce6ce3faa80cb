# Everything runs in .venv/, which `make setup` creates once and again when pyproject.toml or constraints.txt change.
# CONSTRAINTS= (empty) takes current versions instead of the pinned ones, for example on a machine with a GPU.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
WORKERS ?= 2
BUDGET ?= 45s

BIN := .venv/bin
STAMP := .venv/.complete
MAKEFLAGS += --no-print-directory

.PHONY: setup run test lint bench soak
.DEFAULT_GOAL := test

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check $(addprefix -c ,$(CONSTRAINTS)) -e '.[dev]'
	@touch $@

run: $(STAMP)
	@$(BIN)/moeguard selftest --workers $(WORKERS)
	@$(BIN)/moeguard run --profile smoke --budget $(BUDGET) --workers $(WORKERS)

# In the order of the folders: xdist would keep files of few tests, the longest ones, for the end, where nobody shares them.
test: lint
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(STAMP)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > .venv/lint-imports.txt || { cat .venv/lint-imports.txt; exit 1; }

# Executions per second of a campaign on the CPU; checked beside bare calls on what this machine has. Left in reports/.
bench: $(STAMP)
	@mkdir -p reports
	@$(BIN)/python -m moeguard run --profile smoke --budget 30s --device cpu --backend torch_reference --workers $(WORKERS) --json \
	> reports/bench.json
	@$(BIN)/python -c 'import json; r = json.load(open("reports/bench.json")); \
	print("{:.1f} executions/s ({} executions of {} cases in {:.1f} s): reports/bench.json".format( \
	r["executions"] / r["seconds"], r["executions"], r["cases"], r["seconds"]))'
	@$(BIN)/moeguard bench --throughput > reports/throughput.txt; code=$$?; cat reports/throughput.txt; exit $$code

soak: $(STAMP)
	@$(BIN)/python -m pytest -q -m soak
	@$(BIN)/moeguard selftest --profile nightly --workers $(WORKERS)
