#!/usr/bin/env bash
# Builds OCI images into build/images without a container engine. Load one with `podman load -i`, `docker load -i`
# (25 or newer), `ctr images import`, or copy it with `skopeo copy --all oci-archive:FILE …`.
# build/images/values.yaml has their registry and digests, for `tulle install --values` and Helm.
#
# Images for this machine's architecture alone hold the programs that `make build` has just made, with the C library of
# this machine: nothing is compiled. Images for others, or for several, are for a release: static programs (musl) with
# link-time optimisation in an otherwise empty file system. Those share no library with `make build`: another C library
# is another target, for which everything is compiled again.
#
#   ARCH=amd64 scripts/build-images.sh                       amd64, arm64 or both; by default this machine's
#   STATIC=1 scripts/build-images.sh                         static ones for this machine's architecture, too
#   REGISTRY=registry.example/tulle scripts/build-images.sh  the registry that will have them; by default localhost
#   PROFILE=dev scripts/build-images.sh                      to try the script: of a debug build
#   IMAGES=DIRECTORY scripts/build-images.sh                 another place than build/images
#   PLUGINS=no scripts/build-images.sh                       a proxy without the engine of plugins, tagged -without-plugins
#   AGENT=1 scripts/build-images.sh                          tulle-envoy beside static ones, too, which is in no image (a release's)
set -euo pipefail
cd "$(dirname "$0")/.."

case $(uname -m) in
x86_64) own=amd64 ;;
aarch64) own=arm64 ;;
*)
    echo "error: images are made on x86_64 and aarch64; this machine is $(uname -m)" >&2
    exit 1
    ;;
esac
: "${ARCH:=$own}" "${PROFILE:=release}" "${STATIC:=}" "${REGISTRY:=localhost}" "${IMAGES:=build/images}" "${PLUGINS:=yes}" "${AGENT:=}"
read -ra architectures <<<"$ARCH"
for arch in "${architectures[@]}"; do
    if [[ $arch != amd64 && $arch != arm64 ]]; then
        echo "error: ARCH=$ARCH: images are made for amd64 and arm64" >&2
        exit 64
    fi
done
# What values.yaml says is read by `tulle install`, which takes the same characters.
if [[ ! $REGISTRY =~ ^[A-Za-z0-9._:/-]+$ ]]; then
    echo "error: REGISTRY=$REGISTRY: write HOST/PATH, such as registry.example/tulle" >&2
    exit 64
fi
proxy=(--package tulle-proxy)
without=
case $PLUGINS in
yes) ;;
no)
    proxy+=(--no-default-features)
    without=-without-plugins
    ;;
*)
    echo "error: PLUGINS=$PLUGINS: write yes or no" >&2
    exit 64
    ;;
esac
[[ ${architectures[*]} == "$own" ]] || STATIC=1
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

# Programs that have grown too large are found here and not by whoever pulls them. The proxy's budget is
# tests/local/tests/budgets/memory.rs's. Measured on amd64; other linkers leave more in `tulle`.
fits() { # ARCH PROGRAM BYTES
    local size
    size=$(stat --format %s "$2")
    if [[ $1 == amd64 && $PROFILE != dev ]] && ((size > $3)); then
        echo "error: $2 has $size bytes, more than the $3 that an image may carry of it; find out what made it larger" \
            "(nm --size-sort), or raise the budget in scripts/build-images.sh" >&2
        exit 1
    fi
}

image() { # ARCH DIRECTORY NAME PROGRAM [OPTIONS]
    local tag=$version
    [[ $3 != tulle-proxy ]] || tag+=$without
    python3 -B scripts/oci-image.py --binary "$2/$4" --name "$3" --tag "$tag" --arch "$1" \
        --output "$IMAGES/$1/$3.tar" "${@:5}" >/dev/null
}

images() { # ARCH DIRECTORY [OPTIONS OF ALL] [-- OPTIONS OF tulle-init]
    local all=() arch=$1 directory=$2
    shift 2
    while (($# > 0)) && [[ $1 != -- ]]; do
        all+=("$1")
        shift
    done
    for program in tulle tulle-proxy tulle-cni bookinfo; do
        image "$arch" "$directory" "$program" "$program" "${all[@]}"
    done
    # The init container of pods: it makes rules with nft, which is Debian's.
    image "$arch" "$directory" tulle-init tulle --add /usr/sbin/nft "${all[@]}" "${@:2}"
}

# The programs of `make build`.
built() {
    local directory=${CARGO_TARGET_DIR:-target}/$place libc
    # `make build` has made it with plugins, and makes it so again.
    [[ ! $without ]] || cargo build --profile "$PROFILE" --locked "${proxy[@]}"
    # From 2.34 on the C library itself resolves names; before, by libraries that no program names and no image would have.
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null || echo none)
    if [[ $(printf '%s\n' "glibc 2.34" "$libc" | sort --version-sort | head -n 1) != "glibc 2.34" ]]; then
        echo "error: with this machine's C library ($libc; glibc 2.34 or newer is needed) programs in images could not" \
            "resolve names: make images STATIC=1" >&2
        exit 1
    fi
    for program in tulle tulle-proxy tulle-cni bookinfo; do
        if [[ ! -x $directory/$program ]]; then
            echo "error: there is no $directory/$program: make images builds it" >&2
            exit 1
        fi
    done
    fits "$own" "$directory/tulle" 19500000
    images "$own" "$directory" --libraries
}

# Where this machine keeps libraries and this checkout says nothing to whoever reads a panic, is 66 kB of `tulle`, and would
# make another program of the same sources elsewhere. Of several prefixes rustc takes the last that fits. The standard library's own
# paths are those of this machine where rustup's component rust-src is installed, else what they become here.
without_own_paths() { # TARGET
    local directory commit
    commit=$(rustc --version --verbose | sed -n 's/^commit-hash: //p')
    cargo fetch --locked --target "$1"
    echo -n " --remap-path-prefix=$PWD= --remap-path-prefix=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")=target"
    echo -n " --remap-path-prefix=$(rustc --print sysroot)/lib/rustlib/src/rust=/rustc/$commit"
    for directory in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/; do
        echo -n " --remap-path-prefix=$directory="
    done
}

static() { # ARCH
    local arch=$1 machine target variable cross root=()
    case $arch in
    amd64) machine=x86_64 ;;
    *) machine=aarch64 ;;
    esac
    target=$machine-unknown-linux-musl
    add_target "$target"
    # The C parts (aws-lc, jemalloc) need a compiler that knows musl.
    variable=${target//-/_}
    if [[ $arch == "$own" ]]; then
        export "CC_$variable=musl-gcc"
    else
        cross=$(scripts/cross.sh "$arch")
        export "CC_$variable=$cross/cc" "AR_$variable=$machine-linux-gnu-ar"
        export "CARGO_TARGET_${variable^^}_LINKER=$machine-linux-gnu-gcc"
        root=(-- --root "$cross/root")
    fi
    if [[ $arch == arm64 ]]; then
        # Kernels there have pages of 4, 16 or 64 KiB; jemalloc works up to what it was built for.
        export JEMALLOC_SYS_WITH_LG_PAGE=16
    else
        unset JEMALLOC_SYS_WITH_LG_PAGE
    fi
    local -x RUSTFLAGS=${RUSTFLAGS:-}
    RUSTFLAGS+=$(without_own_paths "$target")
    # The proxy by itself: with the others it would have the features of their libraries, too.
    cargo build --profile "$PROFILE" --locked --target "$target" "${proxy[@]}"
    # Build scripts and derive macros are compiled once for both; cargo takes another kind of link-time optimisation for
    # another library.
    cargo build --profile "$PROFILE" --locked --target "$target" --package bookinfo --package tulle-cni
    # The controller and the command are small rather than fast: instructions that functions have in common become a
    # function. LLVM does so by itself on arm64 alone, and once.
    local directory=${CARGO_TARGET_DIR:-target}/$target small=small
    [[ $PROFILE == release ]] || small=$PROFILE
    cargo rustc --profile "$small" --locked --target "$target" --package tulle-cli --bin tulle -- \
        -Cllvm-args=-enable-machine-outliner=always
    [[ ! $AGENT ]] || cargo build --profile "$small" --locked --target "$target" --package tulle-envoy
    # Beside `tulle-proxy`, where it looks for it.
    if [[ $small != "$PROFILE" ]]; then
        cp "$directory/$small/tulle" "$directory/$place/tulle"
        [[ ! $AGENT ]] || cp "$directory/$small/tulle-envoy" "$directory/$place/tulle-envoy"
    fi
    fits "$arch" "$directory/$place/tulle" 14500000
    images "$arch" "$directory/$place" "${root[@]}"
}

if [[ $STATIC ]]; then
    for arch in "${architectures[@]}"; do static "$arch"; done
    kind=static
else
    built
    kind="with this machine's C library"
fi

index() { # NAME
    local parts=()
    for arch in "${architectures[@]}"; do
        parts+=("$IMAGES/$arch/$1.tar")
    done
    python3 -B scripts/oci-index.py --registry "$REGISTRY" --output "$IMAGES/$1.tar" "${parts[@]}"
}
index bookinfo >/dev/null
cat >"$IMAGES/values.yaml" <<END
# The images of $(git describe --always --dirty 2>/dev/null || echo "$version"), for a registry that has them.
images:
  registry: "$REGISTRY"
  controller: { digest: "$(index tulle)" }
  proxy: { digest: "$(index tulle-proxy)" }
  init: { digest: "$(index tulle-init)" }
  cni: { digest: "$(index tulle-cni)" }
END
for arch in "${architectures[@]}"; do
    rm -r "${IMAGES:?}/$arch"
done
stat --format '%n %s' "$IMAGES"/*.tar | awk '{printf "%s: %.1f MiB\n", $1, $2 / 1048576}'
echo "$IMAGES: tulle, tulle-proxy, tulle-init, tulle-cni and bookinfo $version for ${architectures[*]}, $kind;" \
    "values.yaml has their registry ($REGISTRY) and digests"
