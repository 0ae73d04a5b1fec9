"""From measured runs to a table: medians with their spread, ratios taken run by run."""

from statistics import median


def spread(values, digits):
    """`median (min–max)`."""
    if not values:
        return "–"
    show = lambda value: f"{value:,.{digits}f}"
    return f"{show(median(values))} ({show(min(values))}–{show(max(values))})"


def ratios(runs, peer, other, figure):
    """figure of `peer` ÷ figure of `other`, for each run that has both."""
    found = []
    for run in runs:
        mine, theirs = run["peers"].get(peer), run["peers"].get(other)
        if mine and theirs and mine.get(figure) and theirs.get(figure):
            found.append(mine[figure] / theirs[figure])
    return found


def summary(runs, peers):
    """{peer: {figure: [value of each run]}} with the ratios."""
    result = {}
    for peer in peers:
        measured = [run["peers"][peer] for run in runs if peer in run["peers"]]
        figures = {key: [one[key] for one in measured if one.get(key) is not None]
                   for key in ("requests_per_s", "cpu_us_per_request", "p50_ms", "p99_ms", "errors",
                               "sidecar_core_busy", "load_core_busy",
                               "client_idle_mib", "client_peak_mib", "server_idle_mib", "server_peak_mib")}
        for other in ("envoy", "nginx"):
            if other in peers and other != peer:
                figures[f"cpu_ratio_{other}"] = ratios(runs, peer, other, "cpu_us_per_request")
                figures[f"throughput_ratio_{other}"] = ratios(runs, peer, other, "requests_per_s")
        if "none" in peers and peer != "none":
            figures["throughput_ratio_none"] = ratios(runs, peer, "none", "requests_per_s")
        result[peer] = figures
    return result


def table(figures):
    """Markdown, also readable as it is."""
    head = ["peer", "CPU µs/request, pair", "÷ envoy", "÷ nginx", "requests/s", "p50 ms", "p99 ms",
            "MiB idle, client + server", "MiB peak, client + server", "sidecar / load CPU busy", "errors"]
    rows = [head]
    for peer, f in figures.items():
        both = lambda key: f"{median(f['client_' + key]):.1f} + {median(f['server_' + key]):.1f}" if f.get("client_" + key) else "–"
        busy = lambda key: f"{median(f[key]) * 100:.0f}%" if f.get(key) else "–"
        rows.append([
            peer,
            spread(f["cpu_us_per_request"], 1),
            spread(f.get("cpu_ratio_envoy", []), 2) if peer != "envoy" else "1",
            spread(f.get("cpu_ratio_nginx", []), 2) if peer != "nginx" else "1",
            spread(f["requests_per_s"], 0),
            spread(f["p50_ms"], 1),
            spread(f["p99_ms"], 1),
            both("idle_mib"),
            both("peak_mib"),
            f"{busy('sidecar_core_busy')} / {busy('load_core_busy')}",
            str(sum(f["errors"])),
        ])
    return aligned(rows)


def aligned(rows):
    """A Markdown table; the first row is its head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    line = lambda row: "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
    return "\n".join([line(rows[0]), "|" + "|".join("-" * (width + 2) for width in widths) + "|"] + [line(row) for row in rows[1:]])


NAMES = {"tulle": "**Tulle**", "envoy": "Envoy", "nginx": "nginx", "none": "no sidecars"}


def larger(key, f):
    """Of the client's sidecar and the server's."""
    both = [median(f[f"{role}_{key}"]) for role in ("client", "server") if f[f"{role}_{key}"]]
    return f"{max(both):.1f} MiB" if both else "–"


def short(results):
    """The README's table: medians alone."""
    rows = [["", "CPU per request, both sidecars", "÷ Envoy", "requests/s", "p99", "memory of a sidecar: idle", "peak"]]
    for peer, f in results["summary"].items():
        cpu, ratio = f["cpu_us_per_request"], f.get("cpu_ratio_envoy")
        rows.append([
            NAMES[peer],
            f"{median(cpu):.1f} µs" if cpu else "–",
            f"{median(ratio):.2f}" if ratio else "1" if peer == "envoy" else "–",
            f"{median(f['requests_per_s']):,.0f}",
            f"{median(f['p99_ms']):.1f} ms",
            larger("idle_mib", f),
            larger("peak_mib", f),
        ])
    machine, versions = results["machine"], results["versions"]
    peers = ", ".join(f"{NAMES[name]} {versions[name]}" for name in ("envoy", "nginx") if name in versions)
    return f"""{aligned(rows)}

Medians of {len(results["runs"])} interleaved runs, ratios taken run by run; {peers}; {machine["cpu"]},
{machine["cores"]} CPUs; {results["date"]}."""


def markdown(results):
    """summary.md."""
    machine, options = results["machine"], results["options"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return f"""# First figure

client → sidecar ══mTLS══ sidecar → server, HTTP/1.1, 200-byte JSON, {options["connections"]} connections, saturated.
{len(results["runs"])} interleaved runs of {options["seconds"]} s for each peer; medians (min–max); ratios taken run by run.

{table(results["summary"])}

- Machine: {machine["cpu"]}, {machine["cores"]} CPUs, {machine["memory_gib"]} GiB, Linux {machine["kernel"]}; {results["date"]}.
- Versions: {versions}.
- Both sidecars on CPU {options["sidecar_cpu"]}; wrk and the server on CPU {options["load_cpu"]}. A load CPU near 100% means that not the
  sidecars but the load was the limit of requests/s there; CPU per request holds all the same.
- CPU is time on a CPU of all threads of both sidecars, divided by the requests wrk counted. Errors are wrk's
  socket errors, timeouts and statuses from 400.
- In each run mutual TLS with the right identities was proven, plaintext and a wrong identity were refused;
  the evidence is in results.json. bench/first-figure/README.md says what the peers do and do not do.
"""
