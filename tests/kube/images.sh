#!/usr/bin/env bash
# Images of the programs as cargo has just built them, for the test cluster: build/kube-images, or IMAGES. Like
# those of `make images` for one architecture they take this machine's libraries along, so that no second build
# is needed; a release's are static. An image whose program has not changed stays. PREVIOUS is an older proxy,
# for the test of an upgrade (previous.sh), FORTIO the load of studies. PROFILE=release takes the
# programs of a release build.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
arch=$(dpkg --print-architecture)
binaries=${CARGO_TARGET_DIR:-target}/${PROFILE:-debug}
images=${IMAGES:-build/kube-images}
stripped=$(mktemp -d)
trap 'rm -rf "$stripped"' EXIT
mkdir -p "$images"

image() { # FILE PROGRAM NAME TAG [OPTIONS]
    local output=$images/$1.tar program=$2 made
    made=$(stat --format '%n %s %y' "$program" scripts/oci-image.py tests/kube/images.sh && echo "${@:3}")
    if [[ -e $output && $(cat "$output.made" 2>/dev/null) == "$made" ]]; then
        return
    fi
    rm -f "$output.made"
    # Several images may have one program.
    mkdir "$stripped/$1"
    strip -o "$stripped/$1/${program##*/}" "$program"
    # Compressed a little: the node unpacks an image once, and nobody sends it anywhere.
    python3 -B scripts/oci-image.py --level 1 --binary "$stripped/$1/${program##*/}" --name "$3" --tag "$4" \
        --arch "$arch" --libraries --output "$output" "${@:5}"
    echo "$made" >"$output.made"
}
jobs=()
start() {
    image "$@" &
    jobs+=($!)
}
start tulle "$binaries/tulle" tulle "$version"
start tulle-init "$binaries/tulle" tulle-init "$version" --add /usr/sbin/nft
start tulle-proxy "$binaries/tulle-proxy" tulle-proxy "$version"
start tulle-cni "$binaries/tulle-cni" tulle-cni "$version"
start bookinfo "$binaries/bookinfo" bookinfo "$version"
# A node imports what is there; these two are large and only two tests want them.
if [[ -n ${PREVIOUS:-} ]]; then
    start previous "$PREVIOUS" tulle-proxy previous
else
    rm -f "$images"/previous.tar*
fi
if [[ -n ${FORTIO:-} ]]; then
    start fortio "$FORTIO" fortio test
else
    rm -f "$images"/fortio.tar*
fi
for job in "${jobs[@]}"; do
    wait "$job"
done
