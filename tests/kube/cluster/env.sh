# Settings of the test cluster; export one before the call to choose otherwise.
# shellcheck shell=bash disable=SC2034

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)

VERSION=1.34.4 # of Kubernetes, as in build/go.mod
# FAMILY=6: IPv6 alone. Otherwise IPv4, and IPv6 as a second family, which services have if they ask for it, unless the
# machine has none.
: "${FAMILY:=}"
four=$([[ $FAMILY == 6 ]] || echo four)
six=$([[ -e /proc/net/if_inet6 ]] && echo six || true)
: "${NODE_IP4=${four:+10.200.0.2}}" # addresses exist only inside the node's own network namespace
: "${POD_CIDR4=${four:+10.244.0.0/22}}"
: "${SERVICE_CIDR4=${four:+10.96.0.0/16}}"
: "${NODE_IP6=${six:+fd00:10:200::2}}"
: "${POD_CIDR6=${six:+fd00:10:244::/64}}"
: "${SERVICE_CIDR6=${six:+fd00:10:96::/112}}"
if [[ -n $four ]]; then
    NODE_HOST=$NODE_IP4 FIRST_SERVICE=10.96.0.1 DNS_IP=10.96.0.10 LOOPBACK=127.0.0.1 ANY=0.0.0.0
else
    NODE_HOST=[$NODE_IP6] FIRST_SERVICE=fd00:10:96::1 DNS_IP=fd00:10:96::a LOOPBACK=::1 ANY=::
fi
# Both families in a list, whichever there are.
both() { # IPV4 IPV6
    echo "$1${1:+${2:+,}}$2"
}
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
node_ip4() { [[ -z $NODE_IP4 ]] || echo "${NODE_IP4%.*}.$((${NODE_IP4##*.} + $1 - 1))"; }
node_ip6() { [[ -z $NODE_IP6 ]] || printf '%s:%x\n' "${NODE_IP6%:*}" $((0x${NODE_IP6##*:} + $1 - 1)); }
node_cgroup() { echo "$CGROUP$( (($1 == 1)) || echo "/node$1")"; }
node_state() { echo "$STATE$( (($1 == 1)) || echo "/node$1")"; }
# The addresses of its pods: all of them with a node alone, else a part that the other nodes have a route for.
node_pods4() {
    local a b c
    [[ -n $POD_CIDR4 ]] || return 0
    IFS=. read -r a b c _ <<<"$POD_CIDR4"
    ((NODES == 1)) && echo "$POD_CIDR4" || echo "$a.$b.$((c + $1 - 1)).0/24"
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
