# Needs Go and make. Each target installs what else it needs, as root with
# apt-get; elsewhere it says what to install.

GO       ?= go
FUZZTIME ?= 60s

# Every module but the tools, entered one after the other: there is no go.work.
MODULES := $(patsubst %/go.mod,%,$(sort $(shell find . -name go.mod \
	-not -path './tools/*' -not -path '*/testdata/*' -not -path './.*/*')))

LINT := $(GO) tool -modfile=$(CURDIR)/tools/go.mod golangci-lint

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint bench soak fuzz fmt clean cc postgres pgbouncer

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

demo: postgres ## run the payments example; flags in ARGS="..."
	$(GO) run ./examples/payments $(ARGS)

test: cc postgres ## run the core suite, with the race detector
	@for module in $(MODULES); do \
		echo "==> go test $$module"; \
		(cd $$module && $(GO) test -race -shuffle=on ./...) || exit 1; \
	done

# What needs more than PostgreSQL carries the build tag testall.
test-all: test pgbouncer ## run the core suite, then PgBouncer and fault suites
	$(GO) test -race -shuffle=on -timeout=30m -tags=testall ./integration/...
	@for module in $(filter-out .,$(MODULES)); do \
		echo "==> go test -tags=testall $$module"; \
		(cd $$module && $(GO) test -race -shuffle=on -timeout=30m -tags=testall ./...) || exit 1; \
	done

lint: ## run golangci-lint over every module (the first run builds it)
	@for module in $(MODULES); do \
		echo "==> golangci-lint $$module"; \
		(cd $$module && $(LINT) run) || exit 1; \
	done

bench: postgres ## run the benchmarks; flags in ARGS="..."
	cd integration/bench && $(GO) run . $(ARGS)

soak: postgres ## look for doubled and lost effects under faults; flags in ARGS="..."
	$(GO) run ./integration/soak $(ARGS)

fuzz: postgres ## run each fuzz target for FUZZTIME (60s)
	@GO='$(GO)' sh scripts/fuzz.sh $(FUZZTIME)

fmt: ## format the Go code of every module
	@for module in $(MODULES); do (cd $$module && $(LINT) fmt) || exit 1; done

clean: ## remove built programs, profiles and coverage files
	rm -rf bin
	find . -path ./.git -prune -o -type f \
		\( -name '*.test' -o -name '*.out' -o -name '*.prof' \) -exec rm -f {} +

cc:
	@GO='$(GO)' sh scripts/ensure-cc.sh

postgres:
	@sh scripts/ensure-postgres.sh

pgbouncer:
	@sh scripts/ensure-pgbouncer.sh
