#!/usr/bin/env bash
# Builds what a node needs from Go's registry, once for each state of its inputs, and prints where:
# `kube` (etcd, the control plane, kubelet, kube-proxy and kubectl in one program), `coredns`, and
# the images that every cluster has. About six minutes on two cores.
set -euo pipefail
. "$(dirname "$0")/env.sh"

if [[ ! -x $GO ]]; then
    echo "error: the test cluster is built from sources by Go 1.24 or newer, and there is no go" >&2
    exit 1
fi
if [[ ! -e $BIN/complete ]]; then
    # Aside, and renamed when whole: a build can be interrupted at any moment.
    new=$BIN.new.$$
    trap 'rm -rf "$new"' EXIT
    mkdir -p "$new/images"
    stamp=""
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        stamp+=" -X $package.gitVersion=v$VERSION -X $package.gitMajor=${VERSION%%.*}"
        stamp+=" -X $package.gitMinor=$(cut -d. -f2 <<<"$VERSION") -X $package.gitTreeState=clean"
    done
    begun=$SECONDS
    echo "Building Kubernetes $VERSION from its sources: six minutes on two cores, once" >&2
    # Nobody debugs these programs, so they need no tables for a debugger. The compiler collects its garbage
    # less often: there is memory for that.
    (cd "$here/build" && CGO_ENABLED=0 GOGC=400 nice "$GO" build -p 2 -trimpath -gcflags=all=-dwarf=false \
        -ldflags "-s -w $stamp" -o "$new/" ./kube ./coredns) >&2
    echo "built Kubernetes in $((SECONDS - begun)) s" >&2
    gcc -Os -static -s -o "$new/pause" "$here/pause.c"
    arch=$("$GO" env GOARCH)
    for name in pause coredns; do
        python3 "$root/scripts/oci-image.py" --binary "$new/$name" --name "$name" --tag test --arch "$arch" \
            --output "$new/images/$name.tar" >&2
    done
    touch "$new/complete"
    rm -rf "$BIN"
    mv -T "$new" "$BIN"
    trap - EXIT
    # Earlier states are of no more use. Each is about 200 MB.
    find "$CACHE" -mindepth 1 -maxdepth 1 -name '????????????????' ! -name "$KEY" -exec rm -rf {} +
fi
echo "$BIN"
