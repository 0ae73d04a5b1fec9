# Everything people run, and CI with them. Each target installs the Debian packages it needs and
# says so; what is there already is left alone.

# rustup puts cargo here; a fresh login shell may not have it in PATH yet.
export PATH := $(PATH):$(HOME)/.cargo/bin
# demo/mesh.yaml and the scripts name the programs by this place.
export CARGO_TARGET_DIR := $(CURDIR)/target

PACKAGES := scripts/install-packages.sh
RUST := scripts/require-rust.sh
ROOT := $(filter 0,$(shell id -u))
# A C compiler for aws-lc and jemalloc. protobuf is compiled without protoc.
BUILD_PACKAGES := gcc libc6-dev make
# What makes packages and signatures; Debian's own tools.
RELEASE_PACKAGES := dpkg rpm openssh-client
# Other people's proxies, measured beside ours. Envoy is a Python wheel.
PEER_PACKAGES := nginx haproxy python3 python3-venv
# What people put behind sidecars or ask them with, for the tests. No mail server that would replace the host's.
SERVER_PACKAGES := postgresql mariadb-server-core mariadb-client-core redis-server python3-aiosmtpd bind9-dnsutils prometheus
# What the Spring applications and JMeter are built of and run by.
JAVA_PACKAGES := maven openjdk-17-jdk-headless
# Other people's suites of tests, and what makes their certificates.
SUITE_PACKAGES := python3 openssl slowhttptest testssl.sh

# What a node of Kubernetes is made of; the rest is built from sources (tests/kube/cluster).
CLUSTER_PACKAGES := containerd runc containernetworking-plugins conntrack iptables nftables iproute2 python3 openssl curl tcpdump \
	prometheus

# By itself: built with the others it would have the features of their libraries, too, and 1 MB more.
PROXY := cargo build --release --locked --package tulle-proxy
# All programs as the tests have them: with the features that a test asks of a library, or 200 are built twice.
PROGRAMS := cargo build --workspace --locked --bins --tests
# What images are made of where a real Kubernetes runs them, and a test for the same features.
IN_IMAGES := cargo build --workspace --locked --bin tulle --bin tulle-proxy --bin tulle-cni --bin bookinfo --test crds
# Link-time optimisation is for the proxy. Even a thin one costs whoever builds these for the first time five
# minutes on two processors. Images are built with it, and what `make bench` measures with. More parts of a library
# at once would have more copies of the same code in them.
LTO ?= off
QUICKLY := CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=4
TOOLS := $(if $(filter off,$(LTO)),$(QUICKLY),CARGO_PROFILE_RELEASE_LTO=$(LTO)) \
	cargo build --release --locked --package tulle-cli --package tulle-bench --package tulle-cni --package tulle-envoy --package bookinfo
# For a first look: half the time of `make build`, because all three share their libraries.
FIRST := $(QUICKLY) cargo build --release --locked --package tulle-proxy --package tulle-cli --package bookinfo
# Images are for this machine's architecture; ARCH="amd64 arm64" is a release. Others than this machine's, or several,
# are static and compiled for that (scripts/build-images.sh); STATIC=1 makes this machine's so, too.
OWN_ARCH := $(shell scripts/target.sh --own)
ARCH ?= $(OWN_ARCH)
REGISTRY ?= localhost
PLUGINS ?= yes
STATIC ?= $(if $(filter-out $(OWN_ARCH),$(ARCH)),1)
# There once `make build` has been run: then the demo, too, has programs as users get them.
BUILT := target/release/.built
# The proxy as users get it; the load generator is optimised in every build (Cargo.toml).
GATE = TULLE_PROXY=target/release/tulle-proxy target/debug/tulle bench pair --quick --vs envoy --seconds 3 \
	--scenarios saturated-200B,new-connections,idle --out build/gate
# The programs of `make build` (docs/machines.md).
MEMORY := python3 -B scripts/mesh-memory.py

# In CI, as root, a test that is skipped for want of something has failed.
EVERYTHING := $(and $(CI),$(ROOT))

# The generator of the documentation's pages, without its server, which nobody needs here.
MDBOOK := mdbook 0.5.4 --no-default-features --features search

# Runs tests several at once and writes down what each takes; `make times` shows it.
SUITE := python3 -B scripts/suite
# What CI runs, and what is run before a release and before a change of its subject is finished (CONTRIBUTING.md).
CI_TIER := lint test console-short test-kube conformance-short gate
LONG_TIER := lint test test-kube-all conformance gate test-memory web docs bench study-quick images fuzz test-skew test-init test-month test-released test-release test-arm64 test-smoke test-stress

.DEFAULT_GOAL := help
.PHONY: help demo observability build release test-needs test test-kube test-kube-all test-skew test-init test-month test-arm64 test-memory test-release test-released test-smoke test-stress ci check-all times lint bench bench-paper \
	study study-quick gate \
	conformance conformance-short conformance-kube account images fuzz web console-short docs clean

help: ## this list
	@echo "make TARGET:"
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(if $(wildcard $(BUILT)),build) ## build, then run bookinfo behind sidecars until Ctrl-C
	@$(PACKAGES) $(BUILD_PACKAGES) curl $(if $(ROOT),nftables iproute2)
	@$(RUST)
ifeq ($(wildcard $(BUILT)),)
	@[ -x target/release/tulle ] || echo "Building tulle, tulle-proxy and bookinfo with their 350 libraries: the first time" \
		"that usually takes 6 minutes on two cores."
	@echo "Without link-time optimisation: figures are about the programs of 'make build'."
	$(FIRST)
endif
	target/release/tulle up demo/mesh.yaml --verify

observability: ## Prometheus for the mesh that is up here, and Grafana if it is installed, until Ctrl-C
	@$(PACKAGES) prometheus python3
	@demo/observability/run.sh

build: ## tulle, tulle-proxy, tulle-cni, tulle-envoy, tulle-bench and bookinfo in target/release
	@$(PACKAGES) $(BUILD_PACKAGES)
	@$(RUST)
	@[ -e $(BUILT) ] || echo "Building tulle-proxy, tulle and bookinfo. The first time that usually takes 10 minutes on two" \
		"cores, half of it the proxy with link-time optimisation."
	$(PROXY)
	$(TOOLS)
	@touch $(BUILT)

# Other people's programs in the tests of one host.
test-needs:
	@$(PACKAGES) $(BUILD_PACKAGES) nftables iproute2 tcpdump curl openssl jq strace iptables $(PEER_PACKAGES) $(SERVER_PACKAGES) \
		$(RELEASE_PACKAGES) busybox-static man-db
	@$(RUST)
	@scripts/fetch-envoy.sh >/dev/null
	@if command -v go >/dev/null || [ -x /usr/local/go/bin/go ]; then \
	scripts/fetch-fortio.sh >/dev/null && scripts/fetch-otel-collector.sh >/dev/null && scripts/fetch-cel-spec.sh >/dev/null; \
	else echo "note: tests with Fortio, with the OpenTelemetry collector and of CEL's specification are skipped: these need Go"; fi

test: test-needs ## the whole test suite of one host (as root also network namespaces)
	# oha behind the build. The proxy also as users get it: the budget of memory is about that one.
	@nice scripts/fetch-oha.sh >/dev/null & oha=$$!; \
	$(PROGRAMS) && $(PROXY) && wait $$oha
	TULLE_RELEASE=1 $(SUITE) test $(if $(EVERYTHING),--skips tests/skips.txt)
	cargo test --workspace --locked --doc --quiet
	python3 -B scripts/suite/python_tests.py $(if $(EVERYTHING),--no-skips) \
		scripts/suite scripts/account scripts/language scripts/docs tests/conformance tests/images tests/release

test-skew: ## programs of the version before and today's in one mesh on this host
	@$(PACKAGES) $(BUILD_PACKAGES) nftables iproute2
	@$(RUST)
	$(PROGRAMS)
	previous=$$(tests/kube/previous.sh all) && PREVIOUS_PROGRAMS=$$previous $(SUITE) test --only local/mesh::skew:: -- --workspace --test mesh

# Too long for `make test`, whose limit against hanging is five minutes.
test-month: ## hosts without their controller for thirty lifetimes of certificates, and idle ones for twelve minutes (root)
	@$(PACKAGES) $(BUILD_PACKAGES) nftables iproute2
	@$(RUST)
	$(PROGRAMS)
	$(SUITE) test --ignored --limit 1800 -- --workspace --test mesh

# OpenRC's package would take over what starts this machine: it is unpacked.
test-init: ## a mesh as a service of machines that boot here with systemd and with OpenRC, without a network (root)
	@$(PACKAGES) $(BUILD_PACKAGES) systemd util-linux mount nftables iproute2 curl python3 dpkg
	@$(RUST)
	@scripts/fetch-openrc.sh >/dev/null
	$(IN_IMAGES)
	python3 -B scripts/suite/python_tests.py --no-skips tests/init

test-arm64: test-needs ## every test with programs of arm64, under qemu (root)
	@$(PACKAGES) qemu-user-static $(call cross,arm64)
	$(PROGRAMS)
	scripts/test-foreign.sh arm64

test-released: test-needs ## tests of sidecars and meshes with the programs of a release (root)
	@$(PACKAGES) musl-tools
	$(PROGRAMS)
	scripts/test-released.sh

test-memory: build ## memory and CPU time of the demo's whole mesh while nobody calls, against their budgets: three minutes (root)
	@$(PACKAGES) nftables iproute2
	@# As `gate` does, and for the same reason.
	$(MEMORY) || { echo "note: not within the budgets; measured once more"; $(MEMORY); }

test-smoke: test-needs ## tests inside crates of armv7 (32 bits) and riscv64, and stories with programs of their releases, under qemu (root)
	@$(PACKAGES) qemu-user-static $(call cross,armv7 riscv64)
	$(PROGRAMS)
	scripts/test-foreign.sh armv7 smoke
	scripts/test-foreign.sh riscv64 smoke

test-stress: ## every test 20 times under load, and with signals and input as a shell's `&` leaves them: hours
	$(PROGRAMS)
	$(SUITE) test --times 20 --load 2
	$(SUITE) test --ignore-interrupt --stdin closed

test-kube: ## one path through the mesh in a real Kubernetes on this machine (root; the first time six minutes more)
	@$(PACKAGES) $(BUILD_PACKAGES) $(CLUSTER_PACKAGES)
	@$(RUST)
	$(IN_IMAGES)
	tests/kube/run.sh --smoke

test-kube-all: ## every test in a real Kubernetes on this machine (root)
	@$(PACKAGES) $(BUILD_PACKAGES) $(CLUSTER_PACKAGES)
	@$(RUST)
	$(IN_IMAGES)
	tests/kube/run.sh

ci: ## what CI runs: lint, test, test-kube, conformance-short, gate, and what each takes
	@$(SUITE) targets $(CI_TIER)

# Images are for these; a release has riscv64, too.
check-all: export ARCH = amd64 arm64 armv7
check-all: export RELEASE_ARCH = amd64 arm64 armv7 riscv64
check-all: ## every tier, hours; build/results.md is one page of results and times
	$(SUITE) targets --keep-going --page build/results.md $(LONG_TIER)

times: ## what each target and test took here when it last ran
	@$(SUITE) times $(CI_TIER)

lint: ## format, clippy, which module may import which, language, links of the documentation, licences, banned crates
	@$(PACKAGES) $(BUILD_PACKAGES)
	@$(RUST)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy --package tulle-proxy --no-default-features --locked -- -D warnings
	cargo test --package tests-house --locked --quiet
	python3 -B scripts/language
	python3 -B scripts/docs check
	@scripts/check-dependencies.sh

bench: ## both studies and the pair beside real peers, in minutes: bench-out/
	@$(PACKAGES) $(BUILD_PACKAGES) $(PEER_PACKAGES)
	@scripts/bench.sh --quick

bench-paper: ## the same as published: hours
	@$(PACKAGES) $(BUILD_PACKAGES) $(PEER_PACKAGES)
	@scripts/bench.sh

study: build ## both studies as published: between pods on three nodes, beside the real OSM and Istio (root, a night)
	@$(PACKAGES) $(CLUSTER_PACKAGES) $(JAVA_PACKAGES)
	bench/study.sh

study-quick: build ## both with the small applications, once, in half an hour
	@$(PACKAGES) $(CLUSTER_PACKAGES)
	bench/study.sh --quick

gate: ## the data plane beside Envoy, against bench/budgets.toml
	@$(PACKAGES) $(BUILD_PACKAGES) $(PEER_PACKAGES)
	@$(RUST)
	@scripts/fetch-envoy.sh >/dev/null
	$(PROGRAMS)
	$(PROXY)
	@# A machine that is busy with something else makes figures worse, never better: who fails is asked
	@# once more.
	$(GATE) || { echo "note: not within the budgets; measured once more"; $(GATE); }

conformance: ## protocol suites, Tulle beside nginx, HAProxy and Envoy (docs/conformance.md)
	@$(PACKAGES) $(BUILD_PACKAGES) $(PEER_PACKAGES) $(SUITE_PACKAGES)
	@$(RUST)
	@scripts/fetch-envoy.sh >/dev/null
	$(PROXY)
	python3 -B tests/conformance --docs docs/conformance.md

conformance-short: ## part of each protocol suite, Tulle alone
	@$(PACKAGES) $(BUILD_PACKAGES) $(SUITE_PACKAGES)
	@$(RUST)
	$(PROXY)
	python3 -B tests/conformance --short --peers tulle

conformance-kube: ## the Gateway API's conformance suite on a Kubernetes on this machine (root)
	@$(PACKAGES) $(BUILD_PACKAGES) $(CLUSTER_PACKAGES)
	@$(RUST)
	$(IN_IMAGES)
	tests/kube/gateway-api/conformance.sh

account: ## what a request costs in counts (docs/performance.md), as root: account-out/
	@$(PACKAGES) $(BUILD_PACKAGES) $(PEER_PACKAGES) valgrind linux-perf tcpdump
	@$(RUST)
	@scripts/fetch-envoy.sh >/dev/null
	cargo build --profile profiling --locked --package tulle-proxy
	cargo build --profile profiling --locked --package tulle-bench
	scripts/account.sh

# A release is for all architectures unless ARCH is said: its default here is this machine's.
RELEASE_ARCH ?= $(if $(filter file,$(origin ARCH)),amd64 arm64 armv7 riscv64,$(ARCH))
# What compiles for others than this machine's.
CROSS_amd64 := gcc-x86-64-linux-gnu
CROSS_arm64 := gcc-aarch64-linux-gnu
CROSS_armv7 := gcc-arm-linux-gnueabihf libc6-dev-armhf-cross
CROSS_riscv64 := gcc-riscv64-linux-gnu libc6-dev-riscv64-cross
cross = $(foreach arch,$(filter-out $(OWN_ARCH),$(1)),$(CROSS_$(arch)))

release: docs ## a release in build/release: packages, images, charts, bills of materials, sums; KEY=FILE signs it (docs/install.md)
	@$(PACKAGES) $(BUILD_PACKAGES) $(RELEASE_PACKAGES) nftables binutils python3 musl-tools $(call cross,$(RELEASE_ARCH))
	@$(RUST)
	ARCH="$(RELEASE_ARCH)" REGISTRY="$(REGISTRY)" KEY="$(KEY)" scripts/release.sh

test-release: ## the release of this commit, made twice with equal bytes, and a look at what is in it: hours; ARCH="amd64 arm64" for some (root)
	@$(PACKAGES) $(BUILD_PACKAGES) $(RELEASE_PACKAGES) binutils $(if $(filter-out $(OWN_ARCH),$(RELEASE_ARCH)),qemu-user-static)
	ARCH="$(RELEASE_ARCH)" scripts/test-release.sh

images: ## OCI images in build/images of what `make build` makes; ARCH="amd64 arm64 armv7" for a release, REGISTRY=HOST/PATH, PLUGINS=no
	@$(PACKAGES) $(BUILD_PACKAGES) nftables binutils python3 $(if $(STATIC),musl-tools $(call cross,$(ARCH)))
	@$(RUST)
	$(if $(STATIC)$(filter no,$(PLUGINS)),,$(PROXY))
	$(if $(STATIC),,$(TOOLS))
	ARCH="$(ARCH)" REGISTRY="$(REGISTRY)" STATIC="$(STATIC)" PLUGINS="$(PLUGINS)" scripts/build-images.sh

fuzz: ## every fuzz target for 60 s
	@$(PACKAGES) $(BUILD_PACKAGES) g++
	@$(RUST)
	scripts/fuzz.sh

web: ## the console's page: types, lint, tests with Chromium (also on a mesh that is up, and of the documentation), and that the committed build is what web/ makes (Node 20)
	@$(PACKAGES) chromium
	web/check.sh --browser
	$(IN_IMAGES)
	cd web && node --test --test-reporter=spec test/mesh/*.test.mjs
	$(MAKE) --no-print-directory docs
	cd web && node --test --test-reporter=spec test/docs/*.test.mjs

# These ask more of the machine than the others of the CI tier: without Node 20 they are left out, but not in CI.
console-short: ## types, lint, unit tests and build of the console's page, and its story in Chromium, on a mesh that is up (Node 20)
	@if [ "$$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -lt 20 ]; then \
	echo "note: the console's checks and its story are skipped: they need Node 20"; $(if $(EVERYTHING),false,true); else \
	$(PACKAGES) chromium && web/check.sh && $(IN_IMAGES) && \
	cd web && SHORT=1 node --test --test-reporter=spec test/mesh/story.test.mjs; fi

docs: ## the documentation as pages, English and Chinese, in build/docs, with all links checked
	@$(PACKAGES) $(BUILD_PACKAGES) python3
	@$(RUST)
	python3 -B scripts/docs check
	mdbook=$$(scripts/cargo-tool.sh $(MDBOOK)) && python3 -B scripts/docs build "$$mdbook"

clean: ## remove what was built
	cargo clean
	rm -rf build
