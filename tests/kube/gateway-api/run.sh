#!/usr/bin/env bash
# Runs the conformance suite of the Gateway API on the test cluster, where Tulle is installed.
#
#   run.sh REPORT PROFILES FEATURES [OPTIONS]    the suite's own options: -run-test NAME, -skip-tests NAMES, -debug
#
# The report is JSON; what the suite says goes beside it, to REPORT.log. The exit code is the suite's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cluster=$here/../cluster/cluster.sh
if (($# < 3)); then
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 64
fi
report=$(realpath "$1") profiles=$2 features=$3
shift 3
built=$("$here/build.sh")
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/../../../Cargo.toml")
rm -f "$report"
# Labelled, the suite's namespaces get sidecars. The waits are the suite's own, which a busy machine may
# stretch, but for those that the suite's rules bound (maxTimeToConsistency).
"$cluster" exec "$built/suite" -test.v -test.timeout 60m \
    -conformance-profiles "$profiles" -supported-features "$features" -gateway-class tulle \
    -namespace-labels tulle.dev/inject=enabled -report-output "$report" \
    -organization tulle -project tulle -url none -version "$version" -contact none \
    "$@" >"$report.log" 2>&1
