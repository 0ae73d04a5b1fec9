#!/usr/bin/env bash
# Compiles the static programs of an architecture with link-time optimisation, in CARGO_TARGET_DIR/TARGET/PROFILE. They have no
# library and no path of this machine in them.
#
#   scripts/build-static.sh amd64|arm64|armv7|riscv64
#                                                those of images: tulle-proxy, tulle, tulle-cni and bookinfo
#   FOR=packages scripts/build-static.sh armv7   those of packages and of the demo: tulle-proxy, tulle, tulle-envoy and bookinfo
#   FOR=release scripts/build-static.sh arm64    both
#   PLUGINS=no scripts/build-static.sh arm64     a proxy without the engine of plugins
#   PROFILE=dev scripts/build-static.sh arm64    to try a script: a debug build
set -euo pipefail
cd "$(dirname "$0")/.."

arch=${1:-}
: "${PROFILE:=release}" "${PLUGINS:=yes}" "${FOR:=images}"
images=1 packages=1
case $FOR in
images) packages= ;;
packages) images= ;;
release) ;;
*)
    echo "error: FOR=$FOR: write images, packages or release" >&2
    exit 64
    ;;
esac
proxy=(--package tulle-proxy)
[[ $PLUGINS == yes ]] || proxy+=(--no-default-features)
found=$(scripts/target.sh "$arch")
eval "$found"

# Where this machine keeps libraries and this checkout says nothing to whoever reads a panic, is 66 kB of `tulle`, and would
# make another program of the same sources elsewhere. Of several prefixes rustc takes the last that fits. The standard library's own
# paths are those of this machine where rustup's component rust-src is installed, else what they become here. C has its paths from
# `assert`: QuickJS is compiled in the target directory.
cargo fetch --locked --target "$target"
commit=$(rustc --version --verbose | sed -n 's/^commit-hash: //p')
output=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
mapped=("$PWD=" "$output=target" "$(rustc --print sysroot)/lib/rustlib/src/rust=/rustc/$commit")
for directory in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/; do
    mapped+=("$directory=")
done
RUSTFLAGS="${RUSTFLAGS:-} $target_flags${mapped[*]/#/ --remap-path-prefix=}"
# As in .cargo/config.toml, which does not count where the variable is set.
CFLAGS="$(sed -n 's/^CFLAGS = "\(.*\)"$/\1/p' .cargo/config.toml)${mapped[*]/#/ -ffile-prefix-map=}"
export RUSTFLAGS CFLAGS

# The proxy by itself: with the others it would have the features of their libraries, too.
cargo build --profile "$PROFILE" --locked --target "$target" "${proxy[@]}"
# Build scripts and derive macros are compiled once for both; cargo takes another kind of link-time optimisation for
# another library.
others=(--package bookinfo)
[[ ! $images ]] || others+=(--package tulle-cni)
cargo build --profile "$PROFILE" --locked --target "$target" "${others[@]}"
# The controller and the command are small rather than fast: instructions that functions have in common become a function.
# LLVM does so by itself on arm64 alone, and once. On armv7 it makes wrong code of that (LLVM 22: a controller that ends as soon as it
# opens its store), and on riscv64 it does nothing.
small=small common=never
[[ $PROFILE == release ]] || small=$PROFILE
case $arch in amd64 | arm64) common=always ;; esac
cargo rustc --profile "$small" --locked --target "$target" --package tulle-cli --bin tulle -- \
    "-Cllvm-args=-enable-machine-outliner=$common"
[[ ! $packages ]] || cargo build --profile "$small" --locked --target "$target" --package tulle-envoy
# Beside `tulle-proxy`, where it looks for it.
case $PROFILE in
dev) place=debug ;;
*) place=$PROFILE ;;
esac
directory=${CARGO_TARGET_DIR:-target}/$target
if [[ $small != "$PROFILE" ]]; then
    cp "$directory/$small/tulle" "$directory/$place/tulle"
    [[ ! $packages ]] || cp "$directory/$small/tulle-envoy" "$directory/$place/tulle-envoy"
fi
# Measured on amd64; other linkers leave more in them.
if [[ $arch == amd64 && $PROFILE == release ]]; then
    scripts/fits.sh "$directory/$place/tulle" 15000000
    scripts/fits.sh "$directory/$place/tulle-proxy" 11000000
fi
