#!/usr/bin/env bash
# Runs the conformance suite of the Gateway API on the test cluster, where Tulle is installed.
#
#   run.sh REPORT PROFILES [OPTIONS]    the suite's own options: -run-test NAME, -skip-tests NAMES, -debug
#
# The report is JSON; what the suite says goes beside it, to REPORT.log. The exit code is the suite's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cluster=$here/../cluster/cluster.sh
if (($# < 2)); then
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 64
fi
report=$(realpath --canonicalize-missing "$1") profiles=$2
shift 2
built=$("$here/build.sh")
known=$("$cluster" exec ctr --namespace k8s.io images ls -q)
for image in "$built"/images/*.tar; do
    # The name of a file is the end of the image's name, but for a colon.
    name=$(basename "$image" .tar)
    grep -q "/${name/-v/:v}\$" <<<"$known" || "$cluster" exec ctr --namespace k8s.io images import "$image" >/dev/null
done
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/../../../Cargo.toml")
mkdir -p "$(dirname "$report")"
rm -f "$report"
# Labelled, the suite's namespaces get sidecars; gateways call what has none. How long the suite waits is
# its own choice.
labels=() not=^Mesh
if [[ $profiles == MESH* ]]; then
    not='^#' labels=(-namespace-labels tulle.dev/inject=enabled)
else
    # The node has no load balancer, and two cores for some fifteen gateways.
    "$cluster" kubectl wait --for=create --timeout=60s gatewayclass/tulle >/dev/null
    "$cluster" kubectl annotate --overwrite gatewayclass tulle tulle.dev/service-type=ClusterIP \
        tulle.dev/cpu-request=5m >/dev/null
fi
features=$(grep -v -e "$not" -e '^#' -e '^$' "$here/features" | paste -sd,)
"$cluster" exec "$built/suite" -test.v -test.timeout 60m \
    -conformance-profiles "$profiles" -supported-features "$features" -gateway-class tulle \
    "${labels[@]}" -report-output "$report" \
    -organization tulle -project tulle -url none -version "$version" -contact none \
    "$@" >"$report.log" 2>&1
