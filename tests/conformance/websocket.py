"""Autobahn's fuzzing client of WebSocket: against an echoing server directly, and through a pair of
sidecars. What a case finds has to be the same both ways.
"""

import json
import re
import subprocess

import tools
from lab import free_port

# Cases 9 measure limits and speed; 12 and 13 are about compression, which both ends agree on
# without the proxy.
SHORT = ["1.*", "2.*", "3.*", "4.*", "5.*", "6.1.*", "6.2.*", "7.*", "10.*"]
FULL = ["1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*"]
SEEN = ("behavior", "behaviorClose", "remoteCloseCode")


def is_as_direct(through, direct):
    """Whether a case found through sidecars what it found directly.

    A server that closes while the client still sends resets the connection, and on loopback the client may lose
    the close frame to that. Without a code from the direct run there is nothing to compare the code with.
    """
    return through[:2] == direct[:2] and direct[2] in (None, through[2])


def run(peer, lab, options):
    program = tools.fetched("autobahn")
    port = free_port()
    here = lab.place("autobahn")
    command = [program, "--mode", "testeeserver", "--wsuri", f"ws://127.0.0.1:{port}"]
    lab.start("wstest", command, here, port)
    place = peer.pair(lab, port)
    reports, spec = here / "reports", here / "spec.json"
    servers = [("direct", port), (peer.name, place.port)]
    spec.write_text(
        json.dumps(
            {
                "outdir": str(reports),
                "servers": [{"agent": n, "url": f"ws://127.0.0.1:{p}"} for n, p in servers],
                "cases": SHORT if options.short else FULL,
                "exclude-cases": [],
                "exclude-agent-cases": {},
            }
        )
    )
    command = [program, "--mode", "fuzzingclient", "--spec", spec]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=1800, cwd=here
    )
    try:
        index = json.loads((reports / "index.json").read_text())
    except OSError as error:
        raise RuntimeError(f"wstest said: {(done.stdout + done.stderr)[-600:]}") from error
    direct, through = (
        {case: [found.get(what) for what in SEEN] for case, found in index[name].items()}
        for name, _ in servers
    )
    if len(direct) < 100 or direct.keys() != through.keys():
        raise RuntimeError(f"only {len(direct)} cases were run directly, {len(through)} through")
    other = [case for case in direct if not is_as_direct(through[case], direct[case])]
    other.sort(key=lambda case: [int(part) for part in re.findall(r"\d+", case)])
    passed = lambda found: sum(one[0] in ("OK", "INFORMATIONAL", "NON-STRICT") for one in found.values())
    return {
        "cases": len(direct),
        "direct": passed(direct),
        "through": passed(through),
        "same": len(direct) - len(other),
        "details": [f"{case}: {through[case]}, directly {direct[case]}" for case in other],
    }
