#!/usr/bin/env bash
# Builds OCI images into build/images without a container engine. Load one with `podman load -i`, `docker load -i`
# (25 or newer), `ctr images import`, or copy it with `skopeo copy --all oci-archive:FILE …`.
# build/images/values.yaml has their registry and digests, for `tulle install --values` and Helm.
#
# Images for this machine's architecture alone hold the programs that `make build` has just made, with the C library of
# this machine: nothing is compiled. Images for others, or for several, are for a release: static programs with
# link-time optimisation in an otherwise empty file system. Those share no library with `make build`: they
# are of another target, for which everything is compiled again.
#
#   ARCH=amd64 scripts/build-images.sh                       some of amd64, arm64 and armv7; by default this machine's
#   STATIC=1 scripts/build-images.sh                         static ones for this machine's architecture, too
#   REGISTRY=registry.example/tulle scripts/build-images.sh  the registry that will have them; by default localhost
#   PROFILE=dev scripts/build-images.sh                      to try the script: of a debug build
#   IMAGES=DIRECTORY scripts/build-images.sh                 another place than build/images
#   PLUGINS=no scripts/build-images.sh                       a proxy without the engine of plugins, tagged -without-plugins
#   FOR=release scripts/build-images.sh                      compiles what packages have, too, where programs are static
set -euo pipefail
cd "$(dirname "$0")/.."

own=$(scripts/target.sh --own)
if [[ $own != amd64 && $own != arm64 ]]; then
    echo "error: images are made on x86_64 and aarch64; this machine is $own" >&2
    exit 1
fi
: "${ARCH:=$own}" "${PROFILE:=release}" "${STATIC:=}" "${REGISTRY:=localhost}" "${IMAGES:=build/images}" "${PLUGINS:=yes}" "${FOR:=images}"
read -ra architectures <<<"$ARCH"
for arch in "${architectures[@]}"; do
    case $arch in
    amd64 | arm64 | armv7) ;;
    *)
        echo "error: ARCH=$ARCH: images are made for amd64, arm64 and armv7" >&2
        exit 64
        ;;
    esac
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
    # One that has grown too large is found here and not by whoever pulls it. The proxy's budget is
    # tests/local/tests/budgets/memory.rs's; that of a static `tulle` in scripts/build-static.sh.
    if [[ $own == amd64 && $PROFILE != dev ]]; then scripts/fits.sh "$directory/tulle" 19500000; fi
    images "$own" "$directory" --libraries
}

static() { # ARCH
    local target cross root=()
    PROFILE=$PROFILE PLUGINS=$PLUGINS FOR=$FOR scripts/build-static.sh "$1"
    target=$(scripts/target.sh --name "$1")
    if [[ $1 != "$own" ]]; then
        cross=$(scripts/cross.sh "$1")
        root=(-- --root "$cross/root")
    fi
    images "$1" "${CARGO_TARGET_DIR:-target}/$target/$place" "${root[@]}"
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
