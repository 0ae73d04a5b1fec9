#!/usr/bin/env bash
# Builds Istio from Go's registry, once for each state of its inputs, outside the checkout; prints where:
#
#   charts/    its Helm charts, as its release has them
#   images/    pilot.tar (istiod) and proxyv2.tar (pilot-agent with stock Envoy)
#   tag        of both images
#
# About six minutes on two cores the first time. Without Go it says so and ends with 69 (EX_UNAVAILABLE).
set -euo pipefail
peer=$(cd "$(dirname "$0")" && pwd)
. "$peer/../../../tests/kube/cluster/env.sh"

# The second half of the module's version is the commit.
MODULE=istio.io/istio
ISTIO_VERSION=1.31-dev-eed52ebb66ad
# Rules of the packet filter are iptables' own, as Debian has it: the nftables variant, which kube-proxy uses here, too.
PROGRAMS=(iptables-nft iptables-nft-save iptables-nft-restore ip6tables-nft ip6tables-nft-save ip6tables-nft-restore)

if [[ ! -x $GO ]]; then
    echo "error: Istio is built from its sources by Go 1.26 or newer, and there is no go" >&2
    exit 69
fi
for program in "${PROGRAMS[@]}"; do
    if [[ ! -x /usr/sbin/$program ]]; then
        echo "error: Istio's init container needs /usr/sbin/$program, which is missing (Debian: apt-get install iptables)" >&2
        exit 1
    fi
done
envoy=$("$root/scripts/fetch-envoy.sh")
inputs() {
    "$GO" version
    cat "$peer/build/go.mod" "$peer/build/go.sum" "$peer/build.sh" "$peer/image.py" "$root/scripts/oci-image.py"
    stat --format '%s %Y' /usr/sbin/iptables-nft
    sha256sum <"$envoy"
}
mkdir -p "$CACHE"
# Two tests ask for it at the same time: the second waits for what the first builds.
exec 9>"$CACHE/istio.lock"
flock 9
key=$(inputs | sha256sum | cut -c1-16)
built=$CACHE/istio-$key
if [[ ! -e $built ]]; then
    # Aside, and renamed when whole: a build can be interrupted at any moment.
    new=$built.new.$$ begun=$SECONDS
    trap 'rm -rf "$new"' EXIT
    mkdir -p "$new/charts" "$new/images"
    echo "Building Istio $ISTIO_VERSION from its sources: about six minutes on two cores, once" >&2
    cd "$peer/build"
    # On a machine that has never seen it, there is no directory before.
    "$GO" mod download $MODULE
    from=$("$GO" list -m -f '{{.Dir}}' $MODULE)
    cp -r "$from/manifests/charts/base" "$from/manifests/charts/istio-control/istio-discovery" "$new/charts"
    # A module's files are read-only, and nobody could remove these copies.
    chmod -R u+w "$new/charts"
    stamp="-X $MODULE/pkg/version.buildVersion=$ISTIO_VERSION"
    # The tags are those of Istio's own Makefile. Nobody debugs these programs, so they need no tables for a debugger.
    program() { # NAME TAGS
        CGO_ENABLED=0 GOGC=400 nice "$GO" build -p 2 -trimpath -gcflags=all=-dwarf=false -ldflags "-s -w $stamp" \
            -tags "$2" -o "$new/$1" "$MODULE/pilot/cmd/$1" >&2
    }
    program pilot-discovery vtprotobuf,disable_pgv
    program pilot-agent agent,disable_pgv,grpcnotrace,retrynotrace
    echo "built Istio in $((SECONDS - begun)) s" >&2

    arch=$("$GO" env GOARCH)
    image() { # NAME PROGRAM [OPTIONS]
        python3 -B "$peer/image.py" --level 1 --name "$1" --tag "$key" --arch "$arch" --binary "$new/$2" \
            --output "$new/images/$1.tar" "${@:3}" >&2
    }
    image pilot pilot-discovery
    added=()
    for program in "${PROGRAMS[@]}"; do added+=(--add "/usr/sbin/$program"); done
    # What iptables loads by name: its matches and targets.
    for module in /usr/lib/*-linux-gnu/xtables/lib{xt,ipt,ip6t}_*.so; do added+=(--add "$module"); done
    image proxyv2 pilot-agent "${added[@]}" --program "/usr/local/bin/envoy=$envoy" \
        --file "/var/lib/istio/envoy/envoy_bootstrap_tmpl.json=$from/tools/packaging/common/envoy_bootstrap.json"
    rm "$new/pilot-discovery" "$new/pilot-agent"
    echo "$key" >"$new/tag"
    find "$CACHE" -mindepth 1 -maxdepth 1 -name 'istio-*' ! -name "*.new.*" -exec rm -rf {} +
    mv -T "$new" "$built"
    trap - EXIT
fi
echo "$built"
