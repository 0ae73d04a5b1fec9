#!/usr/bin/env python3
"""Puts the reports of conformance runs into docs/conformance.md.

table.py REPORT...    JSON, as run.sh leaves them
"""

import json
import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/conformance.md"
BEGIN, END = "<!-- begin: make conformance-kube -->", "<!-- end: make conformance-kube -->"


def counted(status):
    """`x of y`, without those that were not run."""
    if not status:
        return "–"
    numbers = status["statistics"]
    return f"{numbers['Passed']} of {sum(numbers.values())}"


def rows(reports):
    for report in reports:
        for profile in sorted(report["profiles"], key=lambda profile: profile["name"]):
            core, extended = profile["core"], profile.get("extended") or {}
            failed = core.get("failedTests", []) + extended.get("failedTests", [])
            supported = len(extended.get("supportedFeatures", []))
            defined = supported + len(extended.get("unsupportedFeatures", []))
            cells = [
                profile["name"],
                counted(core),
                counted(extended),
                f"{supported} of {defined}",
                ", ".join(f"`{name}`" for name in failed) or "–",
            ]
            yield "| " + " | ".join(cells) + " |"


def unsupported(reports):
    names = set()
    for profile in (p for report in reports for p in report["profiles"]):
        names.update((profile.get("extended") or {}).get("unsupportedFeatures", []))
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    reports = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    first = reports[0]
    table = "\n".join([
        BEGIN,
        "| profile | core tests passed | extended tests passed | extended features claimed | failed |",
        "|---|---|---|---|---|",
        *rows(reports),
        "",
        f"Not claimed: {unsupported(reports)}.",
        "",
        f"Measured {first['date'][:10]}: Tulle {first['implementation']['version']}, Gateway API "
        f"{first['gatewayAPIVersion']}, {first['gatewayAPIChannel']} channel, Kubernetes 1.34.",
        END,
    ])
    page = PAGE.read_text()
    made, times = re.subn(f"{BEGIN}.*?{END}", lambda _: table, page, flags=re.DOTALL)
    if times != 1:
        sys.exit(f"error: {PAGE} has {times} places for the table, not one: {BEGIN} … {END}")
    PAGE.write_text(made)


if __name__ == "__main__":
    main()
