#!/usr/bin/env bash
# The bench lab from a fresh checkout: gets the peers and load generators, builds Tulle, measures
# the pair and both studies. `--quick`: minutes. Without: as long as published, and study 1 also
# with the Spring applications under JMeter.
#
# Results: bench-out/<date>/{pair,seeds,sweep,…}/report.html
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/require-rust.sh
# Behind the build of Tulle, whose last steps keep one core busy only.
(for tool in envoy fortio oha; do nice "scripts/fetch-$tool.sh" >/dev/null || exit 1; done) &
tools=$!
# The load generator is in `tulle`: with link-time optimisation it takes less of the processors.
make --no-print-directory LTO=thin build
wait "$tools"

out=bench-out/$(date -u +%Y-%m-%d-%H%M%S)
found=0
root=$((EUID == 0))

study() {
    local name=$1
    shift
    echo "=== tulle bench $*"
    # 79: a budget is exceeded. That is a result, and the studies go on.
    target/release/tulle bench "$@" --out "$out/$name" || { [[ $? == 79 ]] && found=79; }
}

study pair pair "$@"
if ((root)); then
    study seeds seeds "$@"
else
    echo "=== left out: tulle bench seeds, which limits sidecars, and only root can"
fi
study sweep sweep "$@"
if (($# == 0 && root)); then
    scripts/fetch-jmeter.sh >/dev/null
    study seeds-spring seeds --app spring --load jmeter
fi

echo "=== $out"
ls -1 "$out"/*/report.html
exit "$found"
