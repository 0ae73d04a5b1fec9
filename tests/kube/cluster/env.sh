# Settings of the test cluster; export one before the call to choose otherwise.
# shellcheck shell=bash disable=SC2034

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)

VERSION=1.34.4 # of Kubernetes, as in build/go.mod
: "${NODE_IP:=10.200.0.2}" # exists only inside the node's own network namespace
: "${POD_CIDR:=10.244.0.0/22}"
: "${SERVICE_CIDR:=10.96.0.0/16}"
: "${DNS_IP:=10.96.0.10}"
# A second family beside it, which services have if they ask for it. Empty: none, as on a machine without IPv6.
both=$([[ -e /proc/net/if_inet6 ]] && echo both || true)
: "${NODE_IP6=${both:+fd00:10:200::2}}"
: "${POD_CIDR6=${both:+fd00:10:244::/64}}"
: "${SERVICE_CIDR6=${both:+fd00:10:96::/112}}"
: "${NODES:=1}" # the first has the control plane; up to four
: "${PROXY_MODE:=iptables}" # kube-proxy's: iptables or nftables
: "${CGROUP:=/tulle-kube}"  # everything of the node runs below it

# Builds are kept outside the checkout, in a directory named after their inputs: a clean clone finds them,
# and a change of any input makes new ones.
: "${CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/tulle-kube}"
GO=$(command -v go || echo /usr/local/go/bin/go)
inputs() {
    "$GO" version
    cat "$here"/build/go.mod "$here"/build/go.sum "$here"/build/*/main.go "$here/pause.c" "$root/scripts/oci-image.py" \
        "$here/build.sh"
}
# A run of tests calls the cluster's scripts thousands of times, and computes this once (run.sh).
KEY=${TULLE_KUBE_KEY:-$(inputs 2>/dev/null | sha256sum | cut -c1-16)}
BIN=$CACHE/$KEY # kube, coredns, and the images of pause and CoreDNS
: "${IMAGES:=$root/build/images}" # more images to import: the project's own

# Where a node is, by its number. Inside, each node sees its own files at the same places as the first one.
node_ip() { echo "${NODE_IP%.*}.$((${NODE_IP##*.} + $1 - 1))"; }
node_ip6() { [[ -z $NODE_IP6 ]] || printf '%s:%x\n' "${NODE_IP6%:*}" $((0x${NODE_IP6##*:} + $1 - 1)); }
node_cgroup() { echo "$CGROUP$( (($1 == 1)) || echo "/node$1")"; }
node_state() { echo "$STATE$( (($1 == 1)) || echo "/node$1")"; }
# The addresses of its pods: all of them with a node alone, else a part that the other nodes have a route for.
node_pods() {
    local a b c
    IFS=. read -r a b c _ <<<"$POD_CIDR"
    ((NODES == 1)) && echo "$POD_CIDR" || echo "$a.$b.$((c + $1 - 1)).0/24"
}
node_pods6() {
    [[ -n $POD_CIDR6 ]] || return 0
    ((NODES == 1)) && echo "$POD_CIDR6" || echo "${POD_CIDR6%::/*}:0:$1::/80"
}

# State of the running cluster; `up` creates it anew.
: "${STATE:=$CACHE/run}"
PKI=$STATE/pki CONF=$STATE/conf LOG=$STATE/log
export KUBECONFIG=$CONF/admin.kubeconfig
# kubectl's cache of kinds is part of the cluster's state: all clusters have the same address.
export KUBECACHEDIR=$STATE/kubectl
