#!/usr/bin/env bash
# Builds OCI images into build/images without a container engine: static binaries (musl) in an
# otherwise empty file system, each for amd64 and arm64. Load one with `podman load -i`, `docker load -i`
# (25 or newer), `ctr images import`, or copy it with `skopeo copy --all oci-archive:FILE …`.
# build/images/values.yaml has their digests, for `tulle install --values` and Helm.
#
#   ARCHITECTURES=amd64 scripts/build-images.sh     only for this one
#   PROFILE=dev scripts/build-images.sh             to try the script: a debug build
set -euo pipefail
cd "$(dirname "$0")/.."

: "${ARCHITECTURES:=amd64 arm64}" "${PROFILE:=release}"
case $(uname -m) in
x86_64) own=amd64 ;;
aarch64) own=arm64 ;;
*)
    echo "error: images are made on x86_64 and aarch64; this machine is $(uname -m)" >&2
    exit 1
    ;;
esac
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
case $PROFILE in
dev) place=debug ;;
*) place=$PROFILE ;;
esac

add_target() { # TARGET
    if rustc --print target-libdir --target "$1" 2>/dev/null | xargs -r test -d; then
        return
    fi
    if ! command -v rustup >/dev/null; then
        echo "error: rustc cannot build for $1, and there is no rustup to add it" >&2
        exit 1
    fi
    echo "Adding the Rust target $1"
    rustup target add "$1"
}

image() { # ARCH DIRECTORY NAME PROGRAM [OPTIONS]
    python3 -B scripts/oci-image.py --binary "$2/$4" --name "$3" --tag "$version" --arch "$1" \
        --output "build/images/$1/$3.tar" "${@:5}"
}

for arch in $ARCHITECTURES; do
    case $arch in
    amd64) machine=x86_64 ;;
    *) machine=aarch64 ;;
    esac
    target=$machine-unknown-linux-musl
    add_target "$target"
    # The C parts (aws-lc, jemalloc) need a compiler that knows musl.
    variable=${target//-/_}
    nft=(--add /usr/sbin/nft)
    if [[ $arch == "$own" ]]; then
        export "CC_$variable=musl-gcc"
    else
        cross=$(scripts/cross.sh "$arch")
        export "CC_$variable=$cross/cc" "AR_$variable=$machine-linux-gnu-ar"
        export "CARGO_TARGET_${variable^^}_LINKER=$machine-linux-gnu-gcc"
        nft+=(--root "$cross/root")
    fi
    if [[ $arch == arm64 ]]; then
        # Kernels there have pages of 4, 16 or 64 KiB; jemalloc works up to what it was built for.
        export JEMALLOC_SYS_WITH_LG_PAGE=16
    else
        unset JEMALLOC_SYS_WITH_LG_PAGE
    fi
    # The proxy by itself: with the others it would have the features of their libraries, too.
    cargo build --profile "$PROFILE" --locked --target "$target" --package tulle-proxy
    # Fat link-time optimisation is for the proxy, as in the Makefile.
    CARGO_PROFILE_RELEASE_LTO=thin cargo build --profile "$PROFILE" --locked --target "$target" \
        --package tulle-cli --package bookinfo --package tulle-cni
    binaries=${CARGO_TARGET_DIR:-target}/$target/$place
    image "$arch" "$binaries" tulle tulle
    image "$arch" "$binaries" tulle-proxy tulle-proxy
    image "$arch" "$binaries" bookinfo bookinfo
    image "$arch" "$binaries" tulle-cni tulle-cni
    # The init container of pods: it makes rules with nft, which is Debian's.
    image "$arch" "$binaries" tulle-init tulle "${nft[@]}"
done

index() { # NAME
    local parts=()
    for arch in $ARCHITECTURES; do
        parts+=("build/images/$arch/$1.tar")
    done
    python3 -B scripts/oci-index.py --output "build/images/$1.tar" "${parts[@]}"
}
index bookinfo >/dev/null
cat >build/images/values.yaml <<END
# The images of $(git describe --always --dirty 2>/dev/null || echo "$version"), for a registry that has them.
images:
  controller: { digest: "$(index tulle)" }
  proxy: { digest: "$(index tulle-proxy)" }
  init: { digest: "$(index tulle-init)" }
  cni: { digest: "$(index tulle-cni)" }
END
for arch in $ARCHITECTURES; do
    rm -r "build/images/$arch"
done
echo "build/images: tulle, tulle-proxy, tulle-init, tulle-cni and bookinfo $version for $ARCHITECTURES; values.yaml has the digests"
