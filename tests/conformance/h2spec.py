"""h2spec --strict against what takes HTTP/2 in plaintext from a client, with an HTTP/1.1
application behind."""

import re
import subprocess

import app
import tools


def run(peer, lab, options):
    program = tools.fetched("h2spec")
    place = peer.front(lab, lab.add(app.Http()).port, takes="http2")
    command = [program, "--strict", "--port", place.port]
    # A case that waits for what does not come fails after so many seconds.
    command += ["--timeout", "2", "--path", "/"]
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    found = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout)
    if not found:
        raise RuntimeError(f"h2spec said: {(done.stdout + done.stderr)[-600:]}")
    cases, passed, skipped, failed = map(int, found.groups())
    names, section = [], ""
    for line in done.stdout.split("Failures:")[0].splitlines():
        words = line.strip()
        if re.match(r"[0-9.]+\. ", words):
            section = words
        elif words.startswith("×"):
            names.append(f"{section}: {words[2:]}")
    return {"cases": cases, "passed": passed, "skipped": skipped, "failed": failed, "details": names}
