#!/usr/bin/env bash
# A real Kubernetes on this machine, for tests (README.md).
#
#   cluster.sh up             start it, and wait until it is of use; NODES=2: with so many nodes; FAMILY=6: IPv6 alone
#   cluster.sh down           end it; nothing is left
#   cluster.sh kubectl ARGS   ask it
#   cluster.sh exec COMMAND   run something where the cluster's network is
#   cluster.sh net COMMAND    the same, with this machine's files and processes
#   cluster.sh programs       where the node's programs are
#   cluster.sh state          where its files are: conf/cni, cni (plugins), log
#   cluster.sh stats          CPU time and memory of each component
#   cluster.sh restart NAME   kill a component; it starts again
#   cluster.sh cut            with several nodes: take its link away
#   cluster.sh mend           give it back
#   cluster.sh on 2 COMMAND   any of these about another node than the first
set -euo pipefail
. "$(dirname "$0")/env.sh"

number=1
if [[ ${1:-} == on ]]; then
    number=${2:?which node}
    shift 2
fi
pid_file() { echo "$STATE/node$1.pid"; }
node() { cat "$(pid_file "${1:-$number}")" 2>/dev/null; }
running() { [[ -s $(pid_file 1) ]] && kill -0 "$(node 1)" 2>/dev/null; }
enter() { exec nsenter --target "$(node)" --mount --net --pid --uts --ipc -- env -C "$PWD" "$@"; }
inside() (enter "$@")
kubectl() { inside "$BIN/kube" kubectl "$@"; }
# About the bridge that links the nodes. Process numbers are the machine's.
at_switch() { nsenter --target "$(node 1)" --mount --net -- ip -n switch "$@"; }
now() { date +%s%3N; }

until_true() { # SECONDS WHAT COMMAND...
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS > end)) || ! running; then
            echo "error: $what: not in time. The logs are in $LOG; the last of them:" >&2
            find "$LOG" -name '*.log' -exec tail -n 3 {} + >&2
            exit 1
        fi
        sleep 0.1
    done
}

# Starts the first process of a node, and writes down which it is: it is the last of a row of parents.
start() { # NUMBER LOG [COMMAND that it is started by]
    local pid child depth
    setsid "${@:3}" unshare --mount --net --pid --fork --uts --ipc --mount-proc bash "$here/node.sh" "$1" \
        </dev/null >"$2" 2>&1 &
    pid=$!
    for ((depth = (($# > 2)) ? 2 : 1; depth > 0; depth--)); do
        child=""
        until [[ -n $child ]]; do
            kill -0 "$pid" || exit 1
            read -r child _ <"/proc/$pid/task/$pid/children" || sleep 0.02
        done
        pid=$child
    done
    echo "$pid" >"$(pid_file "$1")"
}

up() {
    if running; then
        echo "error: a cluster is running already: STATE=$STATE CGROUP=$CGROUP $0 down" >&2
        exit 1
    fi
    if ((EUID != 0)); then
        echo "error: the cluster makes namespaces and cgroups: run this as root" >&2
        exit 1
    fi
    if ((NODES < 1 || NODES > 4)); then
        echo "error: NODES=$NODES: the cluster can have 1 to 4 nodes, by the addresses that there are for pods" >&2
        exit 64
    fi
    local begun other
    begun=$(now)
    "$here/build.sh" >/dev/null
    # The images' content may stay.
    mkdir -p "$STATE"
    find "$STATE" -mindepth 1 -maxdepth 1 ! -name 'containerd*' -exec rm -rf {} +
    mkdir -p "$LOG"
    "$here/pki.sh"
    "$here/config.sh"
    start 1 "$LOG/node.log"
    for ((other = 2; other <= NODES; other++)); do
        mkdir -p "$LOG/node$other"
        start "$other" "$LOG/node$other/node.log" nsenter --target "$(node 1)" --pid --
        until_true 300 "the bridge of the nodes" at_switch link show nodes
        at_switch link add "node$other" master nodes up type veth peer name node0 netns "$(node "$other")"
    done
    until_true 300 "the control plane" test -e "$STATE/started"
    until_true 300 "the API server" kubectl get --raw /readyz
    for ((other = 1; other <= NODES; other++)); do
        until_true 300 "node$other" kubectl get node "node$other"
    done
    kubectl wait --for=condition=Ready node --all --timeout=300s >/dev/null
    until_true 300 "the default service account" kubectl get serviceaccount default
    kubectl apply -f - <<<"$(sed "s/@DNS_IP@/$DNS_IP/" "$here/coredns.yaml")" >/dev/null
    echo "Kubernetes $VERSION is up after $(($(now) - begun)) ms"
}

down() {
    if running; then
        kill -KILL "$(node 1)" # the others end with it
        while running; do sleep 0.05; done
    fi
    rm -f "$STATE"/node?.pid
    # A cgroup can be removed a moment after its last process.
    for _ in {1..50}; do
        find /sys/fs/cgroup -depth -type d -path "/sys/fs/cgroup*$CGROUP*" -exec rmdir {} + 2>/dev/null || true
        [[ -z $(find /sys/fs/cgroup -maxdepth 2 -type d -name "${CGROUP#/}" -print -quit) ]] && return
        sleep 0.1
    done
    echo "error: cgroups are left below /sys/fs/cgroup: $CGROUP" >&2
    exit 1
}

stats() {
    printf '%-26s %10s %10s\n' component cpu-s rss-MiB
    local group name cpu rss
    for group in "/sys/fs/cgroup/memory$CGROUP"/{,node?/}{control/*,kubepods}/; do
        [[ -d $group ]] || continue
        name=${group#"/sys/fs/cgroup/memory$CGROUP/"}
        name=${name%/} name=${name/control\//}
        cpu=$(awk '{printf "%.2f", $1 / 1e9}' "/sys/fs/cgroup/cpuacct${group#/sys/fs/cgroup/memory}cpuacct.usage")
        rss=$(awk '/^total_rss / {printf "%.1f", $2 / 1048576}' "$group/memory.stat")
        printf '%-26s %10s %10s\n' "$name" "$cpu" "$rss"
    done
}

command=${1:-}
shift || true
case $command in
up | down | stats) "$command" ;;
kubectl) number=1 enter "$BIN/kube" kubectl "$@" ;; # not the function: a shell less for each of a test's thousand calls
exec) enter "$@" ;;
net) exec nsenter --target "$(node)" --net -- "$@" ;;
programs) echo "$BIN" ;;
state) node_state "$number" ;;
restart) inside kill -KILL "$(cat "$(node_state "$number")/${1:?which component}.pid")" ;;
cut | mend)
    at_switch link set "node$number" "$([[ $command == cut ]] && echo down || echo up)"
    ;;
*)
    sed -n '2,16s/^# \{0,1\}//p' "$0" >&2
    exit 64
    ;;
esac
