#!/usr/bin/env bash
# Runs the tests of this workspace as programs of arm64, on this machine: every program and test is built for the target of
# releases (musl, static) and runs under qemu's user mode, which imitates the processor and hands system calls to this
# kernel. Tests that this cannot run are in tests/arm64/cannot-run.txt, each with its reason; one of those that passes fails
# the run, and so does any other that fails.
#
#   scripts/test-arm64.sh                      all tests
#   scripts/test-arm64.sh --only proxy::smoke  options of `scripts/suite test`
#   BUILD=1 scripts/test-arm64.sh              builds, and runs nothing
#
# As root: the kernel has to be told who runs programs of arm64 (binfmt_misc), because tests start `tulle`, which starts
# `tulle-proxy`; a runner of Cargo's would do for the first of them alone. That is undone at the end, if it was done here.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-musl
registry=/proc/sys/fs/binfmt_misc
name=tulle-test-aarch64
interpreter=$(command -v qemu-aarch64-static) || {
    echo "error: there is no qemu-aarch64-static (Debian: qemu-user-static)" >&2
    exit 1
}
if [[ $(uname -m) == aarch64 ]]; then
    echo "error: this machine is of arm64 itself: make test" >&2
    exit 64
fi
if ! rustc --print target-libdir --target $target 2>/dev/null | xargs -r test -d; then
    rustup target add $target
fi

cross=$(scripts/cross.sh arm64)
variable=${target//-/_}
export "CC_$variable=$cross/cc" "AR_$variable=aarch64-linux-gnu-ar" "CARGO_TARGET_${variable^^}_LINKER=aarch64-linux-gnu-gcc"
# As released: kernels of arm64 have pages of 4, 16 or 64 KiB.
export JEMALLOC_SYS_WITH_LG_PAGE=16
# A directory of its own: another build of this checkout may run at the same time.
export CARGO_TARGET_DIR=${ARM64_TARGET_DIR:-$PWD/target/arm64}
# What CI and `make test` promise about the release build is not about this one.
unset CI TULLE_RELEASE
cargo build --workspace --locked --bins --tests --target $target
[[ -z ${BUILD:-} ]] || exit 0

mine=
# shellcheck disable=SC2317 # the trap calls it
forget() {
    [[ ! $mine ]] || echo -1 >"$registry/$name"
}
trap forget EXIT
[[ -e $registry/register ]] || mount -t binfmt_misc binfmt_misc $registry
if ! grep -qs '^interpreter.*qemu-aarch64' $registry/*; then
    # The head of an ELF file of 64 bits, little-endian, EXEC or DYN, for machine 183. F: the interpreter is opened now, so
    # that it is there in every mount namespace.
    head='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    printf '%s' ":$name:M::$head:$mask:$interpreter:F" >$registry/register
    mine=1
fi

python3 -B scripts/suite test --expected tests/arm64/cannot-run.txt "$@" -- --workspace --target $target
