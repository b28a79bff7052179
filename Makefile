# The doors of the project: `make run`, `make demo`, `make test`, `make check`, `make bench`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
CARGO ?= cargo
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))

.PHONY: run demo test test-langbot test-mcp test-e2b test-unprivileged test-vm check bench packages

## Builds, then serves boxes on loopback and prints a first command to paste into another terminal.
run:
	$(CARGO) build --release -p sandcrate
	SANDCRATE_HINT=1 exec $(TARGET)/release/sandcrate serve

## Builds, then shows a box at work: isolation, limits, timing.
demo:
	$(CARGO) build --release -p sandcrate
	tools/demo.sh $(TARGET)/release/sandcrate

## Installs what the tests need (Debian, as root) and runs all of them.
test: packages
	export SANDCRATE_TEST_REQUIRE="$${SANDCRATE_TEST_REQUIRE-$$(tools/test-features.sh)}"
	$(CARGO) test --workspace --no-fail-fast
	$(MAKE) --no-print-directory test-langbot
	$(MAKE) --no-print-directory test-mcp
	$(MAKE) --no-print-directory test-e2b
	$(MAKE) --no-print-directory test-unprivileged
	$(MAKE) --no-print-directory test-vm

## LangBot's own Box client and host, unmodified, against our server.
test-langbot:
	tests/langbot/run.sh "$$(tools/built-program.sh cli bin sandcrate false)"

## Servers of npm and PyPI in boxes, by the official MCP clients.
test-mcp:
	tests/mcp/run.sh "$$(tools/built-program.sh cli bin sandcrate false)"
	tests/mcp/conformance.sh "$$(tools/built-program.sh cli bin sandcrate false)"

## E2B's own SDKs, unmodified, against our server.
test-e2b:
	tests/e2b/run.sh "$$(tools/built-program.sh cli bin sandcrate false)"

## What needs no root, as an ordinary user.
test-unprivileged:
	tools/test-unprivileged.sh

## cgroup v2, project quota and another kernel, in a virtual machine.
test-vm:
	tests/vm/pack.sh $(TARGET)/vm/bin
	tests/vm/run.sh $(TARGET)/vm/bin

## The gate: format, lints, documentation, licences, layers.
check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	if command -v cargo-deny >/dev/null; then $(CARGO) deny check licenses bans sources; else echo "cargo-deny is not installed: licences not checked"; fi
	$(CARGO) test --workspace --test it -- layers
	test -z "$$(git status --porcelain)" || { git status --short; echo "the work tree is not clean"; exit 1; }

## One table: floors, peers, ours; in one run.
bench: packages
	$(CARGO) build --release -p sandcrate -p sandcrate-bench
	$(TARGET)/release/sandcrate-bench

packages:
	tools/install-packages.sh
