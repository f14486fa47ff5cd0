# Every target sets up .venv by itself; nothing happens where nothing changed.

PYTHON ?= python3
BIN := .venv/bin
PEER := nemo-gym==0.7.0

.PHONY: help setup peers gate test lint types tests bench soak mutation docs clean

help: ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: .venv/.ready .venv/.peers ## make .venv with everything that is needed

.venv/.ready: pyproject.toml constraints.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs,tq]'
	touch $@

peers: .venv/.peers ## install nemo-gym, the peer that the gate compares with

# It asks for a newer Python than its staging modules need, and for a server's worth of packages that they do not
# import: it is installed without its dependencies and without that marker.
.venv/.peers: .venv/.ready
	$(BIN)/python -m pip install --quiet --no-deps --ignore-requires-python $(PEER)
	touch $@

gate: setup ## check our implementation and nemo-gym against the spec
	$(BIN)/rollproof check impl nemo-gym --report build/gate

test: lint types tests ## everything: lint, types, tests with coverage

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

tests: setup
	$(BIN)/pytest -n 2 --dist loadgroup --cov --cov-report=
	$(BIN)/coverage report --include='spec/*' --fail-under=95
	$(BIN)/coverage report --include='impl/*' --fail-under=95

bench: setup ## measure against the peer and the physical limits, and write docs/evidence/speed.md (GPU=1: a device, too)
	$(BIN)/python -m benchmarks $(if $(GPU),--gpu)

MINUTES ?= 30

soak: setup ## groups through TransferQueue and the pool for MINUTES (30), with faults on
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

SAMPLE ?= 400

mutation: setup ## try SAMPLE (400) machine-made faults in spec and impl each, and write docs/evidence/mutation.md
	$(BIN)/python -m mutation spec --sample $(SAMPLE) --jobs 2
	$(BIN)/python -m mutation impl --sample $(SAMPLE) --jobs 2
	$(BIN)/python -m mutation report

docs: setup ## build the site, strictly
	$(BIN)/python -m rollproof.properties.rules docs/rules.md
	$(BIN)/python -m rollproof.properties.evidence docs/evidence.md
	$(BIN)/mkdocs build --strict --quiet

clean: ## remove what was built
	rm -rf .venv build site .coverage* .rollproof
