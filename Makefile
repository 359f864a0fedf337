# Everything that a developer does; `make` alone says what there is.
.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "make %-12s %s\n", $$1, $$2 }'

.PHONY: setup
setup: ## Packages of the system: says which are missing and, as root, installs them
	@hack/setup.sh

.PHONY: images
images: setup ## Container images and programs that are missing, into the cache
	@cargo xtask images --missing

.PHONY: build
build: setup ## The programs, and beside them the images
	@hack/build.sh

.PHONY: agent-static
agent-static: setup ## The agent as it is shipped, without shared libraries: target/dist
	@cargo xtask agent

.PHONY: test
test: setup ## Every check and every test
	@hack/test.sh

.PHONY: demo
demo: build ## A highly available cluster on five local hypervisors, left running
	@hack/demo.sh

.PHONY: demo-clean
demo-clean: ## Takes the demo away
	@hack/demo-clean.sh

.PHONY: lint
lint: setup ## Formatting, lints, rules of the house
	@hack/lint.sh

.PHONY: lint-deny
lint-deny: ## All that cargo-deny checks, advisories included; installs it where it is missing
	@command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	@cargo deny --log-level error --workspace check

.PHONY: soak
soak: build fuzz conformance upgrades ## The long runs: tests that are marked as ignored
	@hack/release.sh v0.1.0 423c4ae
	@cargo test --workspace -- --ignored --skip conformance --skip from_the_oldest_minor_version --skip beside_kubeadm

.PHONY: conformance
conformance: build ## The conformance tests of Kubernetes; writes docs/conformance.md
	@hack/conformance.sh

.PHONY: upgrades
upgrades: build ## Every minor version of Kubernetes, and every rotation, while clients send requests; kubeadm beside it
	@cargo xtask images --earlier-minors --missing
	@cargo test --workspace --test upgrades -- --ignored --nocapture --test-threads 1

.PHONY: fuzz
fuzz: setup ## Inputs that libFuzzer makes up, for a minute of each kind
	@hack/fuzz.sh lib/api documents 60
	@hack/fuzz.sh vpn datagram 60
