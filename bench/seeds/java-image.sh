#!/usr/bin/env bash
# The image `bench-java` of a study between pods as a tar file: `java-image.sh FILE`. It has this machine's Java, bookinfo's Spring
# applications as their sources are now, JMeter and Fortio. An image whose content has not changed stays.
set -euo pipefail
output=$(realpath -m "${1:?the file of the image}")
cd "$(dirname "$0")/../.."

for program in java mvn; do
    if ! command -v "$program" >/dev/null; then
        echo "error: $program is missing: the Spring applications are built by Maven and Java 17 (Debian: apt-get install maven openjdk-17-jdk-headless)" >&2
        exit 1
    fi
done
fortio=$(scripts/fetch-fortio.sh)
home=$(dirname "$(dirname "$(realpath "$(command -v java)")")")
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# Their sources, because each build makes the archives anew, with its own dates in them.
made=$(java -version 2>&1 && echo "$version" &&
    sha256sum bench/seeds/image.py scripts/oci-image.py bench/jmeter/pom.xml "$fortio" &&
    find demo/bookinfo-spring -type f ! -path '*/target/*' -print0 | sort -z | xargs -0 sha256sum)
if [[ -e $output && $(cat "$output.made" 2>/dev/null) == "$made" ]]; then
    exit
fi
rm -f "$output.made"
scripts/fetch-jmeter.sh >/dev/null
mvn -q -B -DskipTests package -f demo/bookinfo-spring >&2
mkdir -p "$(dirname "$output")"
bench/seeds/image.py --java "$home" --jars demo/bookinfo-spring --jmeter build/tools/jmeter --fortio "$fortio" \
    --tag "$version" --arch "$(dpkg --print-architecture)" --output "$output"
echo "$made" >"$output.made"
