"""Load from wrk, with its figures read from a script rather than from rounded text."""

import json
import os
import resource
import subprocess
import time

import processes

# wrk's own counters, at the end only: nothing runs per request.
REPORT = """
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format(
    'FIGURES {"requests":%d,"us":%d,"bytes":%d,"connect":%d,"read":%d,"write":%d,"timeout":%d,"status":%d,"p50_us":%d,"p90_us":%d,"p99_us":%d}\\n',
    summary.requests, summary.duration, summary.bytes, e.connect, e.read, e.write, e.timeout, e.status,
    latency:percentile(50), latency:percentile(90), latency:percentile(99)))
end
"""


def run(url, connections, seconds, cpu, script):
    """Saturates the URL; returns wrk's figures and wrk's own CPU seconds."""
    if not os.path.exists(script):
        with open(script, "w") as file:
            file.write(REPORT)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    done = subprocess.run(
        ["wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s",
         "--timeout", "10s", "--latency", "--script", script, url],
        capture_output=True,
        text=True,
        preexec_fn=processes.on_cpu(cpu),
    )
    wall = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    for line in done.stdout.splitlines():
        if line.startswith("FIGURES "):
            figures = json.loads(line[len("FIGURES "):])
            figures["wall_s"] = wall
            figures["wrk_cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            return figures
    raise SystemExit(f"wrk brought no figures for {url}:\n{done.stdout}{done.stderr}")
