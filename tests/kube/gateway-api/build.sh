#!/usr/bin/env bash
# What the conformance suite needs, once for each state of its inputs, outside the checkout; prints where:
#
#   standard.yaml, experimental.yaml   the Gateway API's own definitions (CRDs)
#   suite                              the suite as one program
#   images/                            the images that its manifests name, for the node to import
#
# `build.sh crds` makes only the first, in seconds; the whole takes some minutes the first time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cluster/env.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) # env.sh has one of its own

if [[ ! -x $GO ]]; then
    echo "error: the conformance suite is built from sources by Go 1.26 or newer, and there is no go" >&2
    exit 1
fi
inputs() {
    "$GO" version
    cat "$here"/go.mod "$here"/go.sum "$here"/*/*.go "$root/scripts/oci-image.py" "$here/build.sh"
}
built=$CACHE/gateway-api-$(inputs | sha256sum | cut -c1-16)
package=sigs.k8s.io/gateway-api

crds() {
    local from channel
    from=$(cd "$here" && "$GO" mod download -json "$package@$(version)" | sed -n 's/^\s*"Dir": "\(.*\)",$/\1/p')
    for channel in standard experimental; do
        # Each file begins with `---` or not; one line of it more does no harm.
        for file in "$from/config/crd/$channel"/gateway.networking.*.yaml; do
            echo ---
            cat "$file"
        done >"$1/$channel.yaml"
    done
}
version() { sed -n "s|^\s*$package \(v[^ ]*\).*|\1|p" "$here/go.mod"; }

# The same image under the name that the suite knows: the node would look for another in a registry.
rename() { # IMAGE FROM TO
    python3 - "$@" <<'END'
import io, json, sys, tarfile

image, source, target = sys.argv[1:]
with tarfile.open(source) as old, tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as new:
    for entry in old:
        data = old.extractfile(entry).read() if entry.isfile() else b""
        if entry.name == "index.json":
            index = json.loads(data)
            index["manifests"][0]["annotations"]["io.containerd.image.name"] = image
            data = json.dumps(index).encode()
            entry.size = len(data)
        new.addfile(entry, io.BytesIO(data))
END
}

# Aside, and renamed when whole: a build can be interrupted at any moment, and two can meet.
if [[ ! -e $built/standard.yaml ]]; then
    new=$built.new.$$
    trap 'rm -rf "$new"' EXIT
    mkdir -p "$new"
    crds "$new"
    mv -T "$new" "$built" 2>/dev/null || rm -rf "$new"
    trap - EXIT
fi
if [[ ${1:-} != crds && ! -e $built/complete ]]; then
    new=$built/new.$$ begun=$SECONDS
    trap 'rm -rf "$new"' EXIT
    mkdir -p "$new/images"
    (
        cd "$here"
        export CGO_ENABLED=0
        nice "$GO" test -c -trimpath -ldflags "-s -w" -o "$new/suite" ./suite
        nice "$GO" build -trimpath -ldflags "-s -w" -o "$new/echo-basic" "$package/conformance/echo-basic"
        # The program that the mesh tests run in pods, which calls it by this name.
        nice "$GO" build -trimpath -ldflags "-s -w" -o "$new/client" ./echo-advanced
    ) >&2
    suite=$(cd "$here" && "$GO" list -m -f '{{.Dir}}' "$package/conformance")
    grep -rhoP --include='*.yaml' '^\s*image: \K\S+' "$suite"/{base,mesh,tests} | sort -u | while read -r image; do
        name=${image##*/}
        case $name in
        echo-basic:*) program=$new/echo-basic ;;
        # CoreDNS is what UDP is tried with, which is not claimed; for the other tests it has to run.
        echo-advanced:* | coredns:*) program=$new/client ;;
        *)
            echo "error: the suite wants the image $image, and $here/build.sh does not know how to make it" >&2
            exit 1
            ;;
        esac
        python3 "$root/scripts/oci-image.py" --binary "$program" --name "${name%:*}" --tag "${name#*:}" \
            --arch "$("$GO" env GOARCH)" --output "$new/localhost.tar" >&2
        rename "$image" "$new/localhost.tar" "$new/images/${name/:/-}.tar"
    done
    rm -rf "$built/images"
    mv "$new/suite" "$new/images" "$built/"
    touch "$built/complete"
    echo "built the Gateway API's suite in $((SECONDS - begun)) s" >&2
    # Earlier states are of no more use.
    find "$CACHE" -mindepth 1 -maxdepth 1 -name 'gateway-api-????????????????' ! -path "$built" -exec rm -rf {} +
fi
echo "$built"
