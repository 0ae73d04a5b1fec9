#!/usr/bin/env bash
# Runs every fuzz target for SECONDS_EACH (60) seconds; a crash or a hang fails.
#
#   scripts/fuzz.sh [TARGET…]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${SECONDS_EACH:-60}
scripts/cargo-tool.sh cargo-fuzz 0.13.2 >/dev/null
export PATH=$PWD/build/tools/bin:$PATH
# Sanitizers and coverage are unstable options, which this toolchain takes when it is told that it may.
export RUSTC_BOOTSTRAP=1

targets=("$@")
# Every function that a plugin can reach, with all that could make it run for long.
((${#targets[@]})) || TULLE_ALL_CALLS=1 cargo test --quiet --locked --package tulle-script --test hostile
((${#targets[@]})) || mapfile -t targets < <(cargo fuzz list)
for target in "${targets[@]}"; do
    echo "== $target for $seconds s"
    cargo fuzz run "$target" -- -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
done
echo "Clean: ${targets[*]}"
