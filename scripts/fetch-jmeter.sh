#!/bin/sh
# Apache JMeter from Maven Central into build/tools/jmeter, unless it is there already; prints the
# command that runs it. Needs Maven and Java 17.
set -eu
cd "$(dirname "$0")/.."
home=$PWD/build/tools/jmeter
if [ ! -f "$home/complete" ]; then
    for program in java mvn; do
        if ! command -v "$program" >/dev/null 2>&1; then
            echo "fetch-jmeter: $program is missing: JMeter is a Java program that Maven fetches. On Debian: apt-get install maven openjdk-17-jdk-headless" >&2
            exit 1
        fi
    done
    # From here on, two at once do not write over each other's files.
    mkdir -p build/tools
    rm -rf "$home.$$"
    mvn -q -B -f bench/jmeter/pom.xml -Dhome="$home.$$" package >&2
    rm -rf "$home.$$/maven"
    mkdir -p "$home.$$/lib/junit" # it complains without
    touch "$home.$$/complete"
    rm -rf "$home"
    mv "$home.$$" "$home"
fi
echo "java -jar $home/bin/ApacheJMeter.jar"
