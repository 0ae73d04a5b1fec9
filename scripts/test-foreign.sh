#!/usr/bin/env bash
# Runs the tests of one host with programs of another architecture, on this machine: qemu's user mode imitates the processor and
# hands system calls to this kernel. The tests of crates are programs of that architecture themselves. Those in tests/local, which
# start `tulle`, sidecars and applications, are this machine's, as whoever calls or watches a mesh need not be of its architecture;
# what they start are the programs of a release (scripts/test-released.sh): those of tests are too slow under qemu for a mesh.
#
#   scripts/test-foreign.sh arm64                        every test
#   scripts/test-foreign.sh arm64 --only proxy::smoke    options of `scripts/suite test`; several `--only` are one or another
#   scripts/test-foreign.sh armv7 smoke                  tests inside crates, and a few stories
#   BUILD=1 scripts/test-foreign.sh riscv64              builds, and runs nothing
#
# Tests that cannot pass so are in tests/foreign*.txt, each with its reason; one of those that passes fails the run, and so does
# any other that fails. All programs are static.
#
# As root: tests start `tulle`, which starts `tulle-proxy`, so the kernel has to know who runs programs of that architecture
# (scripts/binfmt.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

# Of `smoke`: requests, bytes that the kernel moves, plugins, two hosts with mutual TLS, certificates that end and are renewed.
stories=(proxy::smoke:: proxy::splice:: proxy::plugin_routes:: mesh::cli_join::workloads_of mesh::host_authority::hosts_go_on)

arch=${1:-}
shift || true
smoke=
if [[ ${1:-} == smoke ]]; then
    smoke=1
    shift
fi
scripts/binfmt.sh "$arch" true # it is one that qemu imitates here, and what it needs is there, before builds of minutes
found=$(scripts/target.sh "$arch")
eval "$found"
variable=${target//-/_}
export "CARGO_TARGET_${variable^^}_RUSTFLAGS=$target_flags"
# What CI and `make test` promise about the release build is not about this one.
unset CI TULLE_RELEASE
# Tests of this machine, built as `make test` builds them; and a directory of its own for the others, because another build of this
# checkout may run at the same time.
foreign=${FOREIGN_TARGET_DIR:-$PWD/target}/$arch
crates=(--workspace --exclude tests-local --exclude tests-kube --exclude tests-house)
if [[ $smoke ]]; then kinds=(--lib --bins); else kinds=(--bins --tests); fi
CARGO_TARGET_DIR=$foreign cargo test --no-run --locked "${crates[@]}" "${kinds[@]}" --target $target
CARGO_TARGET_DIR=$foreign cargo build --locked "${crates[@]}" --bins --target $target
[[ -z ${BUILD:-} ]] || exit 0
# Programs look for Envoy beside their target directory, which is another one here. What `smoke` runs needs none.
if [[ ! $smoke ]]; then
    TULLE_ENVOY=$(scripts/fetch-envoy.sh)
    export TULLE_ENVOY
fi

failed=
listed=(--expected tests/foreign.txt)
[[ $target == *-musl ]] || listed+=(--expected tests/foreign-glibc.txt)
# Two hundred power cuts take qemu ten minutes.
suite=(scripts/binfmt.sh "$arch" python3 -B scripts/suite test --limit 1800 "${listed[@]}" "$@")
only=()
[[ ! $smoke ]] || for story in "${stories[@]}"; do only+=(--only "$story"); done
CARGO_TARGET_DIR=$foreign "${suite[@]}" -- "${crates[@]}" "${kinds[@]}" --target $target || failed=1
# With the pages of arm64 this machine's programs would be built anew.
unset JEMALLOC_SYS_WITH_LG_PAGE
scripts/test-released.sh "$arch" "${only[@]}" "$@" || failed=1
[[ ! $failed ]]
