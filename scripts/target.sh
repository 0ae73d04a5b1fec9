#!/usr/bin/env bash
# Prints how static programs of an architecture are compiled on this machine, as lines for `eval`: `target` is Rust's name of it,
# `target_flags` what rustc is told besides; what the C parts (aws-lc, jemalloc, QuickJS) and the linker need is exported.
# Rust's target is added if it is missing.
#
#   eval "$(scripts/target.sh arm64)"
#   scripts/target.sh --name arm64           prints Rust's name of it, and asks for nothing
#   scripts/target.sh --own                  prints this machine's architecture; as the kernel calls it, if there are no programs for it
#
# amd64 and arm64 have musl. armv7 and riscv64 have glibc, linked in: the engine of plugins has no bindings for them with musl, nor
# has Debian 12 a musl of riscv64.
set -euo pipefail
cd "$(dirname "$0")/.."

own=$(uname -m | sed 's/^x86_64$/amd64/; s/^aarch64$/arm64/')
if [[ ${1:-} == --own ]]; then
    echo "$own"
    exit
fi
only_name=
if [[ ${1:-} == --name ]]; then
    only_name=1
    shift
fi
arch=${1:-}
flags=
case $arch in
amd64) target=x86_64-unknown-linux-musl gnu=x86_64-linux-gnu ;;
arm64) target=aarch64-unknown-linux-musl gnu=aarch64-linux-gnu ;;
armv7) target=armv7-unknown-linux-gnueabihf gnu=arm-linux-gnueabihf flags=-Ctarget-feature=+crt-static ;;
riscv64) target=riscv64gc-unknown-linux-gnu gnu=riscv64-linux-gnu flags=-Ctarget-feature=+crt-static ;;
*)
    echo "error: ${arch:-no architecture}: write amd64, arm64, armv7 or riscv64" >&2
    exit 64
    ;;
esac
if [[ $only_name ]]; then
    echo $target
    exit
fi
if ! rustc --print target-libdir --target $target 2>/dev/null | xargs -r test -d; then
    if ! command -v rustup >/dev/null; then
        echo "error: rustc cannot build for $target, and there is no rustup to add it" >&2
        exit 1
    fi
    echo "Adding the Rust target $target" >&2
    rustup target add $target >&2
fi
variable=${target//-/_}
if [[ $arch == "$own" ]]; then
    compiler=musl-gcc
else
    compiler=$gnu-gcc
    command -v "$compiler" >/dev/null || {
        echo "error: there is no $compiler (Debian: gcc-${gnu/_/-})" >&2
        exit 1
    }
    if [[ $target == *-musl ]]; then
        cross=$(scripts/cross.sh "$arch")
        compiler=$cross/cc
    fi
    linker=$gnu-gcc
    [[ $arch != armv7 ]] || linker=$PWD/scripts/link-armv7.sh
    printf 'export AR_%s=%q CARGO_TARGET_%s_LINKER=%q\n' "$variable" "$gnu-ar" "${variable^^}" "$linker"
fi
printf 'export CC_%s=%q\ntarget=%q target_flags=%q\n' "$variable" "$compiler" "$target" "$flags"
if [[ $arch == arm64 ]]; then
    # Kernels there have pages of 4, 16 or 64 KiB; jemalloc works up to what it was built for.
    echo export JEMALLOC_SYS_WITH_LG_PAGE=16
else
    echo unset JEMALLOC_SYS_WITH_LG_PAGE
fi
