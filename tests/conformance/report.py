"""The table of docs/conformance.md, between two marks, from the results file."""

import suites

BEGIN = "<!-- begin: make conformance -->"
END = "<!-- end: make conformance -->"
NAMES = {"tulle": "Tulle", "nginx": "nginx", "haproxy": "HAProxy", "envoy": "Envoy", "direct": "direct"}


def table(results):
    order = ["tulle", "nginx", "haproxy", "envoy", "direct"]
    lines = [
        "| suite | goal | " + " | ".join(NAMES[peer] for peer in order) + " |",
        "|---" * (2 + len(order)) + "|",
    ]
    versions, dates = {}, set()
    for name, suite in suites.ALL.items():
        found = results.get(name, {})
        cells = []
        for peer in order:
            if one := found.get(peer):
                versions.setdefault(peer, set()).add(one["version"])
                dates.add(one["date"])
                cells.append(suite.cell(one))
            else:
                cells.append("–" if peer not in suite.peers else "not measured")
        lines.append(f"| {suite.title} | {suite.goal} | " + " | ".join(cells) + " |")
    told = [
        f"{NAMES[peer]} {', '.join(sorted(versions[peer]))}"
        for peer in order
        if peer in versions and peer != "direct"
    ]
    period = " to ".join(sorted({min(dates), max(dates)})) if dates else "never"
    lines += ["", f"Measured {period}: {'; '.join(told)}."]
    return "\n".join(lines) + floods(results.get("floods", {}), order)


def floods(found, order):
    """Kind by kind, for those who have figures."""
    measured = [peer for peer in order if peer in found]
    if not measured:
        return ""
    lines = ["", "", "Floods, kind by kind: CPU-seconds, growth of memory; **open**: not ended.", ""]
    lines += ["| flood | " + " | ".join(NAMES[peer] for peer in measured) + " |"]
    lines += ["|---" * (1 + len(measured)) + "|"]
    for kind in found[measured[0]]["kinds"]:
        cells = []
        for peer in measured:
            one = found[peer]["kinds"][kind]
            ended = "" if one["ended"] else "**open**, "
            cells.append(f"{ended}{one['cpu']:.2f} s, {suites.mib(one['growth'])}")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(page, results):
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"error: {page} has no marks {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}")
