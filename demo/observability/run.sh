#!/usr/bin/env bash
# Prometheus for the mesh that is up on this host, and Grafana with the dashboards if it is installed; until Ctrl-C.
#
#   demo/observability/run.sh
#
# PROMETHEUS and GRAFANA are the addresses they listen on. What they store is below build/observability.
set -euo pipefail
cd "$(dirname "$0")/../.."

tulle=${TULLE:-target/release/tulle}
prometheus=${PROMETHEUS:-127.0.0.1:9090}
grafana=${GRAFANA:-127.0.0.1:3000}
state=${STATE:-$PWD/build/observability}

fail() {
    echo "error: $1" >&2
    exit 1
}

command -v prometheus >/dev/null || fail "there is no prometheus; Debian's package of this name brings it"
[[ -x $tulle ]] || tulle=$(command -v tulle) || fail "there is no tulle: \`make demo\` builds it and starts a mesh"
status=$("$tulle" status -o json) || fail "no mesh is up on this host: \`make demo\` starts one"
targets=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["mesh"]["metrics_targets"])' <<<"$status")
[[ -r $targets ]] || fail "$targets cannot be read; run this as the mesh's user"

mkdir -p "$state"
cat >"$state/prometheus.yml" <<YAML
global: { scrape_interval: 5s, evaluation_interval: 15s }
rule_files: ["$PWD/deploy/prometheus/rules.yaml"]
scrape_configs:
- job_name: tulle
  file_sd_configs: [{ files: ["$targets"], refresh_interval: 10s }]
YAML

children=()
trap 'kill "${children[@]}" 2>/dev/null || true; wait' EXIT
prometheus --config.file="$state/prometheus.yml" --storage.tsdb.path="$state/prometheus" \
    --storage.tsdb.retention.time=1d --web.listen-address="$prometheus" --log.level=warn &
children+=($!)
echo "Prometheus: http://$prometheus/ (targets: http://$prometheus/targets, alerts: http://$prometheus/alerts)"

# Debian has no package of Grafana.
if command -v grafana >/dev/null; then
    mkdir -p "$state/provisioning/datasources" "$state/provisioning/dashboards"
    cat >"$state/provisioning/datasources/prometheus.yaml" <<YAML
apiVersion: 1
datasources: [{ name: Prometheus, type: prometheus, url: "http://$prometheus", isDefault: true }]
YAML
    cat >"$state/provisioning/dashboards/tulle.yaml" <<YAML
apiVersion: 1
providers: [{ name: Tulle, type: file, options: { path: "$PWD/deploy/dashboards" } }]
YAML
    home=${GRAFANA_HOME:-/usr/share/grafana}
    GF_PATHS_DATA=$state/grafana GF_PATHS_PROVISIONING=$state/provisioning GF_SERVER_HTTP_ADDR=${grafana%:*} \
        GF_SERVER_HTTP_PORT=${grafana##*:} GF_AUTH_ANONYMOUS_ENABLED=true GF_AUTH_ANONYMOUS_ORG_ROLE=Viewer \
        grafana server --homepath "$home" &
    children+=($!)
    echo "Grafana: http://$grafana/dashboards"
else
    echo "Grafana is not installed. Where it is: import deploy/dashboards/*.json, with http://$prometheus as its Prometheus."
fi
wait -n "${children[@]}"
