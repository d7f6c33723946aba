# Millrace: `make demo` to see it work, `make test` to check everything. Both install what is missing and say what they did.
CARGO ?= cargo
ARGS ?=
SHELL := /bin/bash
export CARGO
# Progress for a person at a terminal, no hundreds of lines in a log.
quiet := $(shell [ -t 2 ] || echo -q)

# Where rustup and Homebrew put what a shell only finds after a new login.
brewed := $(wildcard /opt/homebrew/bin /opt/homebrew/opt/postgresql@17/bin /opt/homebrew/opt/openjdk/bin \
	/usr/local/opt/postgresql@17/bin /usr/local/opt/openjdk/bin)
empty :=
space := $(empty) $(empty)
export PATH := $(if $(CARGO_HOME),$(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH):$(subst $(space),:,$(brewed))

.PHONY: help demo test fmt fmt-check lint docs deny build suites faults bench ratios

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r name what; do \
		printf '  make %-10s %s\n' "$$name" "$$what"; done

demo: ## real traffic becomes booked conversions; then it stays up (ARGS=--exit ends it, ARGS='--report FILE' writes the table)
	@.ci/install.sh demo
	@[ -d target/debug/deps ] || echo "building Millrace: a few minutes, the first time alone"
	@$(CARGO) build $(quiet) --locked -p millrace
	@$(CARGO) run -q --locked -p millrace -- demo $(ARGS)

test: ## format, lints, documentation, licences and all tests, on a real PostgreSQL and Apache Kafka
	@.ci/test.sh

fmt: ## format the sources
	@$(CARGO) fmt --all

fmt-check: ## are the sources formatted?
	@$(CARGO) fmt --all --check

# Twice: the workspace as the tests see it, and the program as it ships, without what only tests switch on.
lint: ## clippy, warnings are errors
	@$(CARGO) clippy $(quiet) --locked --workspace --all-targets -- -D warnings
	@$(CARGO) clippy $(quiet) --locked -p millrace -- -D warnings

docs: ## build the documentation, warnings are errors (target/doc)
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(quiet) --locked --workspace --no-deps

deny: ## licences, bans and sources of all dependencies
	@.ci/deny.sh

build: ## everything, as the tests use it
	@$(CARGO) build $(quiet) --locked --workspace --all-targets

# Most tests wait for a server most of the time, so two of them a core, but no more than eight: a container may be allowed fewer
# cores than it sees. RUST_TEST_THREADS, where it is set, has the word.
suites: ## the tests alone (ARGS='-- NAME' for some of them)
	@cores=$$(nproc 2>/dev/null || sysctl -n hw.ncpu); \
	  RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((cores < 4 ? 2 * cores : 8))} \
	  $(CARGO) test --locked --workspace --no-fail-fast $(ARGS)

faults: build ## eight runs of a whole deployment with faults, and two safeguards switched off
	@.ci/faults.sh

bench: ## which measurements there are and how to run them
	@$(CARGO) run -q --locked -p loadtest -- --help
	@echo
	@echo "Run one as: $(CARGO) run --release -p loadtest -- COMMAND"

ratios: build ## the product against the bare loop, short: is it still fast enough?
	@.ci/kafka.sh fetch
	@.ci/ratios.sh $(ARGS)
