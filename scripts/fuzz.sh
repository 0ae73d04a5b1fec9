#!/usr/bin/env bash
# Runs every fuzz target for SECONDS_EACH (60) seconds; a crash or a hang fails.
#
#   scripts/fuzz.sh [TARGET…]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${SECONDS_EACH:-60}
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "error: fuzzing needs a nightly toolchain (sanitizer flags are unstable): rustup toolchain install nightly" >&2
    exit 1
fi
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "error: fuzzing needs cargo-fuzz: cargo install cargo-fuzz --locked" >&2
    exit 1
fi

targets=("$@")
((${#targets[@]})) || mapfile -t targets < <(cargo +nightly fuzz list)
for target in "${targets[@]}"; do
    echo "== $target for $seconds s"
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1
done
echo "Clean: ${targets[*]}"
