# Every target sets up .venv by itself; nothing happens where nothing changed.

PYTHON ?= python3
BIN := .venv/bin
PEER := nemo-gym==0.7.0
PYTEST := $(BIN)/pytest -n 2 --dist loadgroup

.PHONY: help setup peers peer field gate test test-deep lint types tests bench soak mutation seeds docs clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

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

peer: setup ## make the environment of one peer: NAME=verl (NEWEST=1: of its newest release; NAME=--all: of every peer)
	$(BIN)/python -m tools.peers setup $(NAME) $(if $(NEWEST),--newest)

field: setup ## put every peer through the gate, and write docs/field.json and docs/field.md
	$(BIN)/python -m tools.field run --set-up

CAPABILITY ?=

gate: setup ## check our implementation and nemo-gym against the spec (CAPABILITY=boundary,sampler,cuts: ours, with these)
	$(BIN)/rollproof check impl $(if $(CAPABILITY),--capability $(CAPABILITY),nemo-gym) --requests build/requests --report build/gate

test: lint types tests ## lint, types, and every test but the deep ones

# At size what runs small in `make test`: 20,000 receipts, every mutant, every proof, the kernels, profile ci. These
# run untraced: tracing makes a test half as slow again, and the small ones alone reach every bar.
test-deep: setup ## every test: the deep ones, then the others with their coverage
	$(PYTEST) -m deep
	$(PYTEST) -m 'not deep' --cov --cov-report=
	$(BIN)/coverage report --include='spec/*' --fail-under=95
	$(BIN)/coverage report --include='impl/*' --fail-under=95
	$(BIN)/coverage report --include='properties/*' --fail-under=90

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

tests: setup
	$(PYTEST) -m 'not deep'

bench: setup ## measure against the peer and the physical limits, and write docs/evidence/speed.md (GPU=1: a device, too; AGAIN=1: a second run)
	$(BIN)/python -m benchmarks $(if $(GPU),--gpu) $(if $(AGAIN),--again)

MINUTES ?= 30

soak: setup ## groups through TransferQueue and the pool for MINUTES (30), with faults, and with CAPABILITY=boundary,sampler on
	$(BIN)/python -m reliability.soak --minutes $(MINUTES) $(if $(CAPABILITY),--capability $(CAPABILITY))

SAMPLE ?= 400

mutation: setup ## check the recorded mutants, try SAMPLE (400) machine-made faults in spec and impl each, and write docs/evidence/mutation.md
	$(BIN)/python -m tools.mutation_testing confirm
	$(BIN)/python -m tools.mutation_testing spec --sample $(SAMPLE) --jobs 2
	$(BIN)/python -m tools.mutation_testing impl --sample $(SAMPLE) --jobs 2
	$(BIN)/python -m tools.mutation_testing report

SEEDS ?= 20

seeds: setup ## try every mutant and right variant at SEEDS (20) seeds, and write docs/evidence/seeds.md (an hour)
	$(BIN)/python -m tools.seeds run --seeds $(SEEDS)
	$(BIN)/python -m tools.seeds report

docs: setup ## build the site, strictly
	$(BIN)/python -m rollproof.properties.evidence.rules_page docs/rules.md
	$(BIN)/python -m rollproof.properties.evidence.evidence_page docs/evidence.md
	$(BIN)/mkdocs build --strict --quiet

clean: ## remove what was built
	rm -rf .venv build site docs/evidence/speed .coverage* .rollproof
