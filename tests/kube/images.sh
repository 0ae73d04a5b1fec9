#!/usr/bin/env bash
# Images of the programs as cargo has just built them, for the test cluster: build/kube-images. The
# images that users get are static (make images); these take this machine's libraries along, so that
# no second build is needed. PREVIOUS is an older proxy, for the test of an upgrade (previous.sh), FORTIO
# the load of studies. PROFILE=release takes the programs of a release build.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
arch=$(dpkg --print-architecture)
binaries=${CARGO_TARGET_DIR:-target}/${PROFILE:-debug}
stripped=$(mktemp -d)
trap 'rm -rf "$stripped"' EXIT
image() { # NAME PROGRAM [OPTIONS]
    [[ -e $stripped/$2 ]] || strip -o "$stripped/$2" "$binaries/$2"
    python3 scripts/oci-image.py --binary "$stripped/$2" --name "$1" --tag "$version" --arch "$arch" --libraries \
        --output "build/kube-images/$1.tar" "${@:3}"
}
rm -f build/kube-images/{previous,fortio}.tar
image tulle tulle
image tulle-proxy tulle-proxy
image tulle-init tulle --add /usr/sbin/nft
image tulle-cni tulle-cni
image bookinfo bookinfo
if [[ -n ${PREVIOUS:-} ]]; then
    python3 scripts/oci-image.py --binary "$PREVIOUS" --name tulle-proxy --tag previous --arch "$arch" --libraries \
        --output build/kube-images/previous.tar
fi
if [[ -n ${FORTIO:-} ]]; then
    python3 scripts/oci-image.py --binary "$FORTIO" --name fortio --tag test --arch "$arch" --libraries \
        --output build/kube-images/fortio.tar
fi
