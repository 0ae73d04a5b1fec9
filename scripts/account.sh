#!/usr/bin/env bash
# The account of docs/performance.md: what a request through a pair of sidecars costs, for Tulle and
# its peers. Counts, not times: for those there is `tulle bench pair`.
#
# `scripts/account.sh --help` says what there is.
set -euo pipefail

for tool in python3 valgrind perf tcpdump; do
    command -v "$tool" >/dev/null || { echo "error: $tool is missing: apt-get install python3 valgrind linux-perf tcpdump" >&2; exit 1; }
done
((EUID == 0)) || { echo "error: to trace processes and the network this must be root" >&2; exit 1; }
exec python3 -B "$(dirname "$0")/account" "$@"
