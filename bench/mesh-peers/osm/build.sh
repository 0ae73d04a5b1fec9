#!/usr/bin/env bash
# Builds Open Service Mesh 1.2.4 with its images and its rendered chart, once for each state of what they are made
# of, outside the checkout; prints the directory. A few minutes on two cores.
#
# Go's registry has OSM's sources and chart, Python's has Envoy and the compiler for the statistics filter.
set -euo pipefail
own=$(cd "$(dirname "$0")" && pwd)
. "$own/../../../tests/kube/cluster/env.sh"

OSM=v1.2.4
SUM=h1:WBSoLWehnxedIxXHysKOR49DQVbGLW5qBdh6UD8NAUA= # of the module
ZIG=0.15.2                                          # the Python wheel ziglang: Clang for WebAssembly

for needed in "$GO" /usr/sbin/iptables-restore /usr/bin/curl; do
    if [[ ! -x $needed ]]; then
        echo "error: $needed is missing: OSM is built by Go, and its pods need iptables and curl (Debian: golang-go, iptables, curl)" >&2
        exit 69
    fi
done
inputs() {
    "$GO" version
    dpkg-query --show iptables curl libc6 2>/dev/null || stat --format '%n %s %y' /usr/sbin/iptables-restore /usr/bin/curl
    cat "$own"/{build.sh,image.py,proxy_wasm_intrinsics.h} "$root"/scripts/{oci-image.py,fetch-envoy.sh}
}
built=$CACHE/osm-$(inputs | sha256sum | cut -c1-16)
mkdir -p "$CACHE"
# Two may ask for it at the same time: the second waits for what the first builds.
exec 9>"$CACHE/osm.lock"
flock 9
if [[ -e $built/complete ]]; then
    echo "$built"
    exit
fi

begun=$SECONDS
echo "Building Open Service Mesh $OSM from its sources: some minutes on two cores, once" >&2
new=$built.new.$$
trap 'rm -rf "$new"' EXIT
mkdir -p "$new"/{images,source,root}
read -r dir sum < <(cd "$new" && "$GO" mod download -json "github.com/openservicemesh/osm@$OSM" |
    python3 -c 'import json, sys; m = json.load(sys.stdin); print(m["Dir"], m["Sum"])')
if [[ $sum != "$SUM" ]]; then
    echo "error: the registry's openservicemesh/osm $OSM has the sum $sum, and not $SUM" >&2
    exit 1
fi
cp -r "$dir"/{cmd,pkg,charts,wasm,go.mod,go.sum} "$new/source"
chmod -R u+w "$new/source"
cd "$new/source"

# The module has a placeholder in place of the statistics filter, which OSM's own image build compiles.
python3 -m venv "$new/zig"
"$new/zig/bin/pip" install --quiet "ziglang==$ZIG" >&2
ZIG_GLOBAL_CACHE_DIR=$new/zig/cache ZIG_LOCAL_CACHE_DIR=$new/zig/cache "$new/zig/bin/python" -m ziglang c++ \
    -target wasm32-wasi -mexec-model=reactor -O3 -std=c++17 -fno-exceptions -fno-rtti -I "$own" \
    -Wl,--export=malloc -s -o pkg/envoy/lds/stats.wasm wasm/stats.cc >&2
rm -rf "$new/zig"

version=github.com/openservicemesh/osm/pkg/version
CGO_ENABLED=0 GOGC=400 nice "$GO" build -p 2 -trimpath -gcflags=all=-dwarf=false \
    -ldflags "-s -w -X $version.Version=$OSM" -o "$new/programs/" \
    ./cmd/osm-bootstrap ./cmd/osm-controller ./cmd/osm-healthcheck ./cmd/osm-injector >&2

# Files and libraries of this machine, at their own places below a root.
place() { # ROOT FILE...
    local file to=$1
    shift
    for file in "$@"; do
        mkdir -p "$to$(dirname "$file")"
        cp --dereference "$file" "$to$file"
    done
}
libraries() { # PROGRAM...
    ldd "$@" | grep -oP '\s\K/\S+(?= \(0x)' | sort -u
}
# An image is tagged with the state that it was made of, so that a node knows whether it has this one.
image() { # ROOT NAME
    python3 -B "$own/image.py" "$1" "$2" "${built##*-}" "$("$GO" env GOARCH)" "$new/images/$2.tar" >&2
}
for name in osm-bootstrap osm-controller osm-healthcheck osm-injector; do
    mkdir "$new/root/$name"
    cp "$new/programs/$name" "$new/root/$name/"
done
cp -r cmd/osm-bootstrap/crds "$new/root/osm-bootstrap/osm-crds"

# shellcheck disable=SC2046 # paths of libraries, without spaces
place "$new/root/osm-curl" /usr/bin/curl $(libraries /usr/bin/curl)
# The rules' matches and targets are libraries that are loaded by name.
extensions=(/usr/lib/*-linux-gnu/xtables/lib{xt_owner,xt_tcp,xt_standard,xt_NAT,xt_REDIRECT,xt_DNAT,xt_multiport}.so)
# shellcheck disable=SC2046
place "$new/root/osm-init" /bin/sh /usr/sbin/iptables-restore "${extensions[@]}" \
    $(libraries /bin/sh /usr/sbin/iptables-restore "${extensions[@]}")

envoy=$(cd "$root" && scripts/fetch-envoy.sh)
mkdir -p "$new/root/osm-envoy/usr/local/bin"
cp "$envoy" "$new/root/osm-envoy/usr/local/bin/envoy"
# shellcheck disable=SC2046
place "$new/root/osm-envoy" $(libraries "$envoy")
for name in "$new"/root/*; do image "$name" "${name##*/}"; done

mv charts/osm "$new/chart"
cp pkg/envoy/lds/stats.wasm "$new/"
cd /
rm -rf "$new"/{source,root,programs}
touch "$new/complete"
rm -rf "$built"
mv -T "$new" "$built"
trap - EXIT
find "$CACHE" -mindepth 1 -maxdepth 1 -name 'osm-????????????????' ! -path "$built" -exec rm -rf {} +
echo "built Open Service Mesh in $((SECONDS - begun)) s" >&2
echo "$built"
