#!/usr/bin/env bash
# Builds OCI images into build/images without a container engine: static binaries (musl) in an
# otherwise empty file system. Load one with `podman load -i`, `docker load -i` (25 or newer),
# `ctr images import`, or copy it with `skopeo copy oci-archive:FILE …`.
set -euo pipefail
cd "$(dirname "$0")/.."

machine=$(uname -m)
case $machine in
x86_64) arch=amd64 ;;
aarch64) arch=arm64 ;;
*)
    echo "error: images are made for x86_64 and aarch64; this machine is $machine" >&2
    exit 1
    ;;
esac
target=$machine-unknown-linux-musl

if ! rustc --print target-libdir --target "$target" 2>/dev/null | xargs -r test -d; then
    if ! command -v rustup >/dev/null; then
        echo "error: rustc cannot build for $target, and there is no rustup to add it" >&2
        exit 1
    fi
    echo "Adding the Rust target $target"
    rustup target add "$target"
fi

# The C parts (aws-lc, jemalloc) need a compiler that knows musl.
variable=${target//-/_}
export "CC_$variable=musl-gcc"
# The proxy by itself: with the others it would have the features of their libraries, too.
cargo build --release --locked --target "$target" --package tulle-proxy
cargo build --release --locked --target "$target" --package tulle-cli --package bookinfo

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
binaries=${CARGO_TARGET_DIR:-target}/$target/release
image() { # NAME PROGRAM [OPTIONS]
    python3 scripts/oci-image.py --binary "$binaries/$2" --name "$1" --tag "$version" --arch "$arch" \
        --output "build/images/$1.tar" "${@:3}"
}
image tulle tulle
image tulle-proxy tulle-proxy
image bookinfo bookinfo
# The init container of pods: it makes rules with nft, which is Debian's.
image tulle-init tulle --add /usr/sbin/nft
