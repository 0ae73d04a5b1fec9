#!/usr/bin/env bash
# A real Kubernetes of one node on this machine, for tests (README.md).
#
#   cluster.sh up             start it, and wait until it is of use
#   cluster.sh down           end it; nothing is left
#   cluster.sh kubectl ARGS   ask it
#   cluster.sh exec COMMAND   run something where the cluster's network is
#   cluster.sh net COMMAND    the same, with this machine's files and processes
#   cluster.sh programs       where the node's programs are
#   cluster.sh state          where its files are: conf/cni, cni (plugins), log
#   cluster.sh stats          CPU time and memory of each component
#   cluster.sh restart NAME   kill a component; it starts again
set -euo pipefail
. "$(dirname "$0")/env.sh"

pid_file=$STATE/node.pid
node() { cat "$pid_file" 2>/dev/null; }
running() { [[ -s $pid_file ]] && kill -0 "$(node)" 2>/dev/null; }
enter() { exec nsenter --target "$(node)" --mount --net --pid --uts --ipc -- env -C "$PWD" "$@"; }
inside() (enter "$@")
kubectl() { inside "$BIN/kube" kubectl "$@"; }
now() { date +%s%3N; }

until_true() { # SECONDS WHAT COMMAND...
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS > end)) || ! running; then
            echo "error: $what: not in time. The logs are in $LOG; the last of them:" >&2
            tail -n 3 "$LOG"/*.log >&2
            exit 1
        fi
        sleep 0.1
    done
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
    local begun pid=""
    begun=$(now)
    "$here/build.sh" >/dev/null
    # The images' content may stay.
    mkdir -p "$STATE"
    find "$STATE" -mindepth 1 -maxdepth 1 ! -name containerd -exec rm -rf {} +
    mkdir -p "$LOG"
    "$here/pki.sh"
    "$here/config.sh"
    setsid unshare --mount --net --pid --fork --uts --ipc --mount-proc bash "$here/node.sh" \
        </dev/null >"$LOG/node.log" 2>&1 &
    local unshare=$!
    until [[ -n $pid ]]; do
        kill -0 $unshare || exit 1
        read -r pid _ <"/proc/$unshare/task/$unshare/children" || sleep 0.02
    done
    echo "$pid" >"$pid_file"
    until_true 300 "the control plane" test -e "$STATE/started"
    until_true 300 "the API server" kubectl get --raw /readyz
    until_true 300 "the node" kubectl get node node1
    kubectl wait --for=condition=Ready node/node1 --timeout=300s >/dev/null
    until_true 300 "the default service account" kubectl get serviceaccount default
    kubectl apply -f - <<<"$(sed "s/@DNS_IP@/$DNS_IP/" "$here/coredns.yaml")" >/dev/null
    echo "Kubernetes $VERSION is up after $(($(now) - begun)) ms"
}

down() {
    if running; then
        kill -KILL "$(node)"
        while running; do sleep 0.05; done
    fi
    rm -f "$pid_file"
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
    printf '%-20s %10s %10s\n' component cpu-s rss-MiB
    local group name cpu rss
    for group in "/sys/fs/cgroup/memory$CGROUP"/control/*/ "/sys/fs/cgroup/memory$CGROUP/kubepods/"; do
        [[ -d $group ]] || continue
        name=$(basename "$group")
        cpu=$(awk '{printf "%.2f", $1 / 1e9}' "/sys/fs/cgroup/cpuacct${group#/sys/fs/cgroup/memory}cpuacct.usage")
        rss=$(awk '/^total_rss / {printf "%.1f", $2 / 1048576}' "$group/memory.stat")
        printf '%-20s %10s %10s\n' "$name" "$cpu" "$rss"
    done
}

command=${1:-}
shift || true
case $command in
up | down | stats) "$command" ;;
kubectl) enter "$BIN/kube" kubectl "$@" ;; # not the function: a shell less for each of a test's thousand calls
exec) enter "$@" ;;
net) exec nsenter --target "$(node)" --net -- "$@" ;;
programs) echo "$BIN" ;;
state) echo "$STATE" ;;
restart) inside kill -KILL "$(cat "$STATE/${1:?which component}.pid")" ;;
*)
    sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
    exit 64
    ;;
esac
