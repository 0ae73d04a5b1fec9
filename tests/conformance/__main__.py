"""Conformance: suites that others wrote and our own, against Tulle and against other proxies.

    python3 -B tests/conformance --peers tulle,nginx --suites framing,identity

Writes OUT/results.json, where what was measured before stays until it is measured again, and with
--docs the table in that page. Ends with 1 if Tulle misses a goal.
"""

import argparse
import datetime
import json
import pathlib
import resource
import sys
import time
import traceback

import peers
import report
import suites
from lab import Lab
from tools import Missing


def options():
    parser = argparse.ArgumentParser(prog="tests/conformance", description=__doc__.split("\n\n")[0])
    parser.add_argument("--peers", default=",".join(peers.ALL), help="of " + ", ".join(peers.ALL))
    parser.add_argument("--suites", help="of " + ", ".join(suites.ALL))
    parser.add_argument("--short", action="store_true", help="a part of each suite; under two minutes")
    parser.add_argument("--out", type=pathlib.Path, default=peers.ROOT / "build/conformance")
    parser.add_argument("--docs", type=pathlib.Path, help="the page whose table is rewritten")
    given = parser.parse_args()
    everything = [name for name, suite in suites.ALL.items() if suite.short or not given.short]
    given.suites = given.suites.split(",") if given.suites else everything
    given.peers = given.peers.split(",")
    for what, known in ((given.suites, suites.ALL), (given.peers, peers.ALL)):
        if unknown := set(what) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return given


def measure(name, suite, peer, given):
    """The figures, or why there are none."""
    begin = time.monotonic()
    try:
        with Lab() as lab:
            found = suite.run(peer, lab, given)
    except Missing as why:
        return {"missing": str(why)}
    except Exception as why:
        traceback.print_exc()
        return {"broken": f"{type(why).__name__}: {why}"}
    found["date"] = datetime.date.today().isoformat()
    found["version"] = peer.version()
    found["seconds"] = round(time.monotonic() - begin, 1)
    return found


def main():
    given = options()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / ("short.json" if given.short else "results.json")
    results = json.loads(file.read_text()) if file.exists() else {}
    good = bad = skipped = 0
    for name in given.suites:
        suite = suites.ALL[name]
        for peer in (peers.ALL[p] for p in given.peers if p in suite.peers):
            if not peer.program():
                found = {"missing": f"there is no program of {peer.name}"}
            else:
                found = measure(name, suite, peer, given)
            if "missing" in found:
                skipped += 1
                print(f"note: {name}, {peer.name}: skipped: {found['missing']}", flush=True)
                continue
            if "broken" in found:
                bad += 1
                print(f"error: {name}, {peer.name}: {found['broken']}", flush=True)
                continue
            results.setdefault(name, {})[peer.name] = found
            file.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
            print(f"{name:10} {peer.name:8} {suite.cell(found)}  ({found['seconds']} s)", flush=True)
            missed = suite.miss(found) if peer.name == "tulle" else []
            bad += bool(missed)
            good += not missed
            for one in missed[:40]:
                print(f"  missed: {one}", flush=True)
    if given.docs:
        report.write(given.docs, results)
    print(f"conformance: {good} passed, {bad} failed, {skipped} skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
