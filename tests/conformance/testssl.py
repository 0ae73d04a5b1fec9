"""testssl.sh against the port where the server's sidecar takes mutual TLS: what protocols, ciphers and
known weaknesses there are. Certificates are not its matter here: it knows no SPIFFE ids.
"""

import json
import subprocess

import app
import tools

ABOVE_LOW = ("MEDIUM", "HIGH", "CRITICAL")


def run(peer, lab, options):
    program = tools.installed("testssl")
    place = peer.pair(lab, lab.add(app.Http()).port)
    file = lab.place("testssl") / "findings.json"
    command = [program, "--quiet", "--color", "0", "--warnings", "off", "--ip", "one"]
    command += ["--protocols", "--std", "--pfs", "--vulnerable", "--jsonfile", file]
    command += [f"127.0.0.1:{place.inbound}"]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, errors="replace", timeout=900
    )
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise RuntimeError(f"testssl said: {(done.stdout + done.stderr)[-600:]}") from error
    if not any(one["id"] == "TLS1_3" and one["severity"] == "OK" for one in found):
        raise RuntimeError("testssl did not come to speak TLS 1.3")
    bad = [f"{one['id']}: {one['finding']}" for one in found if one["severity"] in ABOVE_LOW]
    return {
        "cases": len(found),
        "low": sum(one["severity"] == "LOW" for one in found),
        "bad": len(bad),
        "details": bad,
    }
