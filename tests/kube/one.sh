#!/usr/bin/env bash
# One cluster, and tests on it one after another, for run.sh, which has built everything.
#
#   one.sh "NODES FAMILY TEST..."    so many nodes, addresses of one family (6) or as usual (0); LANE tells clusters that run at once apart
set -euo pipefail
cd "$(dirname "$0")/../.."

read -r NODES FAMILY tests <<<"$1"
read -ra tests <<<"$tests"
FAMILY=${FAMILY#0}
export NODES FAMILY
cluster=tests/kube/cluster/cluster.sh
. tests/kube/cluster/env.sh
export STATE=$STATE-$LANE CGROUP=$CGROUP-$LANE
. "${cluster%/*}/env.sh" # for what it derives from them
scratch=$(mktemp -d)
trap '"$cluster" down; rm -rf "$scratch"' EXIT

# Nanoseconds that the cluster's processes have had, pods and all.
cluster_cpu() {
    local group=/sys/fs/cgroup/cpuacct$CGROUP
    if [[ -e $group/cpuacct.usage ]]; then
        cat "$group/cpuacct.usage"
    else
        awk '/^usage_usec/ {print $2 * 1000}' "/sys/fs/cgroup$CGROUP/cpu.stat" 2>/dev/null || echo 0
    fi
}

# Runs a command, and adds its row to the account of times: with the processor's time of the cluster, and what
# it has waited for. Its output goes to a log.
timed() { # NAME LOG COMMAND...
    local name=$1 log=$2 code=0 before cpu wall user system waits=$scratch/waits
    shift 2
    rm -f "$waits"
    before=$(cluster_cpu)
    local TIMEFORMAT='%R %U %S'
    { time TULLE_TEST_WAITS=$waits "$@" </dev/null >>"$log" 2>&1; } 2>"$scratch/times" || code=$?
    read -r wall user system < <(tail -n 1 "$scratch/times")
    cpu=$(awk "BEGIN {spent = ($(cluster_cpu) - ${before:-0}) / 1e9; print $user + $system + (spent > 0 ? spent : 0)}")
    python3 -B scripts/suite note "$name" --wall "$wall" --cpu "$cpu" --waits "$waits" --log "$log"
    return $code
}

running=0 failed=0
for test in "${tests[@]}"; do
    log=$PWD/build/kube/$test.log begun=$SECONDS
    program=$(sed -n "s/^$test //p" build/kube/programs)
    : >"$log"
    if ((!running)); then
        timed "tests/kube: cluster up" "$log" "$cluster" up && running=1
    fi
    if ((running)) && TULLE_TEST_KUBE=1 timed "tests/kube/$test" "$log" env -C tests/kube "$program" --nocapture; then
        # A test that cannot run says so and passes (scripts/suite/skips.py).
        why=$(sed -nE '/^(test .+ \.\.\. )?(skipped: .+)$/{s//\2/p;q}' "$log")
        if [[ ! $why ]]; then
            echo "ok: $test, $((SECONDS - begun)) s"
            continue
        fi
        echo "$test is $why"
        [[ ${CI:-} ]] || continue
    fi
    failed=1
    # In one write, so that another test's line does not come in between.
    echo "$(cat "$log"; echo "FAILED: $test, $((SECONDS - begun)) s; all of it: $log; the node's logs: ${log%.log}.node")"
    rm -rf "${log%.log}.node"
    cp -r "$LOG" "${log%.log}.node" || true
    # The tests that follow shall not suffer from what this one left.
    "$cluster" down || true
    running=0
done
exit "$failed"
