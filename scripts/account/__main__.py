"""Measures the cost of a request through a pair of sidecars, for Tulle and its peers.

instructions  of user space, by callgrind, for a fixed trace (trace.py): the same in every run
copies        of bytes in user space, by dhat, for the same trace
calls         system calls and context switches under saturation, by the kernel's own counters
wire          bytes, segments and TLS records between the sidecars under saturation
flame         where CPU time goes, the kernel's part with it: flame-PEER.svg

The tables go to standard output, as Markdown, and with what they were made of into a directory.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import flame
import functions
import wire
from lab import PEERS, Lab, features

HERE = pathlib.Path(__file__).parent
WHAT = ["instructions", "copies", "calls", "wire", "flame"]
# Requests of a fixed trace: enough that what happens once a second does not show.
REQUESTS = 4000


def say(text=""):
    print(text, flush=True)


def row(cells):
    say("| " + " | ".join(cells) + " |")


def head(cells):
    row(cells)
    say("|---" + "|--:" * (len(cells) - 1) + "|")


class Account:
    def __init__(self, options, lab):
        self.lab = lab
        self.out = options.out
        self.peers = options.peers
        if "envoy" in self.peers and not lab.envoy:
            raise SystemExit("error: there is no Envoy: scripts/fetch-envoy.sh, or TULLE_ENVOY")
        self.connections = options.connections
        self.seconds = options.seconds

    def instructions(self):
        say("## Instructions in user space per request, fixed trace\n")
        head(["peer", "connections", "client's sidecar", "server's sidecar", "both"])
        profiles = {}
        for peer in self.peers:
            for connections in self.connections:
                try:
                    files, requests = self.callgrind(peer, connections)
                except SystemExit as error:
                    # Not for each peer can a sidecar be simulated, and stopped at each turn.
                    row([peer, str(connections), "–", "–", str(error).strip()])
                    continue
                profiles[peer, connections] = files, requests
                cost = [functions.Profile(f).total / requests for f in files.values()]
                cells = [f"{c:,.0f}" for c in (*cost, sum(cost))]
                row([peer, str(connections), *cells])
        for (peer, connections), (files, requests) in profiles.items():
            if peer == "tulle":
                say(f"\n### {peer}, {connections} connections\n")
                functions.show(files, requests, top=25)

    def callgrind(self, peer, connections):
        """Counts what happens between two dumps; the files of client and server."""
        rounds = max(REQUESTS // connections, 20)
        rounds = min(rounds, 400)
        base, wrap = self.valgrind("callgrind", f"{peer}-{connections}", "--instr-atstart=no")
        with self.lab.pair(peer, wrap) as pair:
            # Processes finish their work after the start in this time.
            time.sleep(12)
            pids = {role: pair.pids(role) for role in ("client", "server")}
            every = " ".join(str(p) for of in pids.values() for p in of)
            commands = ["--at-begin", f"callgrind_control -i on {every}"]
            commands += ["--at-end", f"callgrind_control -d {every}"]
            requests = self.trace(peer, pids, connections, rounds, commands)
        files = {}
        for role, of in pids.items():
            # The worker, not its master: the process with the most work.
            dumps = [self.out / f"{base.name}-{role}-{pid}.1" for pid in of]
            dumps = [d for d in dumps if d.exists()]
            files[role] = max(dumps, key=lambda d: functions.Profile(d).total)
        return files, requests

    def valgrind(self, tool, name, option):
        """Where a tool writes, followed by role and process, and what runs a sidecar under it."""
        base = self.out / f"{tool}-{name}"
        for old in self.out.glob(f"{base.name}-*"):
            old.unlink()

        def wrap(role):
            words = ["valgrind", f"--tool={tool}", option, "--trace-children=yes"]
            return [*words, f"--{tool}-out-file={base}-{role}-%p"]

        return base, wrap

    def trace(self, peer, pids, connections, rounds, more=()):
        """Runs the fixed trace: requests between the commands."""
        command = [sys.executable, "-B", HERE / "trace.py"]
        command += ["--client", self.lab.port(peer, "client"), "--app", self.lab.app]
        command += ["--first", ",".join(map(str, pids["client"]))]
        command += ["--second", ",".join(map(str, pids["server"]))]
        command += ["--connections", connections, "--rounds", rounds, *more]
        done = subprocess.run(
            [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        if done.returncode:
            raise SystemExit(f"error: the trace through {peer}: {done.stderr.decode()}")
        return int(done.stdout)

    def copies(self):
        say("## Bytes copied in user space per request, fixed trace, 200 connections\n")
        head(["peer", "client's sidecar", "server's sidecar", "copies, client", "copies, server"])
        places = {}
        for peer in self.peers:
            # Start and end make the same copies in both, so the difference belongs to the requests.
            few, many = (self.copied(peer, rounds) for rounds in (5, 25))
            sizes, counts = [], []
            for role in ("client", "server"):
                for place, now in many[role].items():
                    then = few[role].get(place, (0, 0))
                    cost = [(n - t) / (20 * 200) for n, t in zip(now, then)]
                    places.setdefault((peer, place), {})[role] = cost
                of = [c[role] for (p, _), c in places.items() if p == peer and role in c]
                sizes.append(f"{sum(c[0] for c in of):,.0f}")
                counts.append(f"{sum(c[1] for c in of):.1f}")
            row([peer, *sizes, *counts])
        if "tulle" in self.peers:
            say("\n### tulle\n")
            head(["copied at", "client: bytes", "copies", "server: bytes", "copies"])
            tulle = [(place, c) for (peer, place), c in places.items() if peer == "tulle"]
            tulle.sort(key=lambda of: -sum(c[0] for c in of[1].values()))
            for place, costs in tulle:
                cells = [*costs.get("client", (0, 0)), *costs.get("server", (0, 0))]
                if cells[0] + cells[2] >= 2:
                    row([f"`{place}`", *(f"{c:.{n % 2 * 2}f}" for n, c in enumerate(cells))])
        say()

    def copied(self, peer, rounds):
        """Bytes and number of the copies that the C library was asked for, by role and place."""
        base, wrap = self.valgrind("dhat", f"{peer}-{rounds}", "--mode=copy")
        with self.lab.pair(peer, wrap) as pair:
            pids = {role: pair.pids(role) for role in ("client", "server")}
            self.trace(peer, pids, 200, rounds)
        found = {}
        for role in pids:
            of = found[role] = collections.defaultdict(lambda: (0, 0))
            for file in self.out.glob(f"{base.name}-{role}-*"):
                told = json.loads(file.read_text())
                for point in told["pps"]:
                    place = place_of([told["ftbl"][frame] for frame in point["fs"]])
                    of[place] = of[place][0] + point["tb"], of[place][1] + point["tbk"]
        return found

    def calls(self):
        say("## System calls per request, saturated\n")
        with contextlib.closing(Ending(self.lab.server())):
            for peer in self.peers:
                counts = {}
                for connections in self.connections:
                    with self.lab.pair(peer) as pair:
                        counts[connections] = self.count(peer, pair, connections)
                self.table_of_calls(peer, counts)

    def count(self, peer, pair, connections):
        self.lab.warm(peer, connections)
        perfs, switches = {}, {}
        for role in ("client", "server"):
            pids = pair.pids(role)
            switches[role] = context_switches(pids)
            output = self.out / f"calls-{peer}-{connections}-{role}"
            words = ["perf", "stat", "-x;", "-o", output, "-e", "syscalls:sys_enter_*"]
            perf = subprocess.Popen(
                [*map(str, words), "-p", ",".join(map(str, pids))], stderr=subprocess.DEVNULL
            )
            perfs[role] = perf, output
        # It opens some hundred counters for each thread.
        time.sleep(2)
        requests = self.lab.load(peer, connections, self.seconds)["answered_ever"]
        found = {}
        for role, (perf, output) in perfs.items():
            perf.send_signal(signal.SIGINT)
            perf.wait()
            counts = {}
            for line in output.read_text().splitlines():
                cells = line.split(";")
                if len(cells) > 2 and cells[0].isdigit() and int(cells[0]):
                    counts[cells[2].removeprefix("syscalls:sys_enter_")] = int(cells[0]) / requests
            pids = pair.pids(role)
            now = context_switches(pids)
            for kind in ("voluntary", "involuntary"):
                counts[f"({kind} switches)"] = (now[kind] - switches[role][kind]) / requests
            counts["(MiB resident)"] = sum(map(resident, pids))
            found[role] = counts
        return found

    def table_of_calls(self, peer, counts):
        columns = [(c, role) for c in counts for role in ("client", "server")]
        say(f"### {peer}\n")
        head(["per request", *(f"{c} {role}" for c, role in columns)])
        names = sorted({name for c, role in columns for name in counts[c][role]})
        names.sort(key=lambda name: name.startswith("("))
        cells = [[counts[c][role].get(name, 0.0) for c, role in columns] for name in names]
        calls = [v for name, v in zip(names, cells) if not name.startswith("(")]
        row(["**all calls**", *(f"**{sum(column):.2f}**" for column in zip(*calls))])
        for name, values in zip(names, cells):
            if max(values) >= 0.01:
                row([name, *(f"{v:.2f}" for v in values)])
        say()

    def wire(self):
        say("## Between the sidecars per request, saturated\n")
        head(["peer", "connections", *wire.COLUMNS])
        with contextlib.closing(Ending(self.lab.server())):
            for peer in self.peers:
                for connections in self.connections:
                    with self.lab.pair(peer):
                        port = self.lab.port(peer, "server")
                        capture = self.out / f"wire-{peer}-{connections}.pcap"
                        with wire.capture(port, capture):
                            self.lab.warm(peer, connections)
                            time.sleep(0.5)
                            since = time.time()
                            report = self.lab.load(peer, connections, self.seconds)
                        cells = wire.account(capture, port, since, report["answered_ever"])
                        capture.unlink()
                        row([peer, str(connections), *cells])
        say()


    def flame(self):
        say("## Shares of the pair's CPU time, 200 connections, saturated\n")
        shares = {}
        with contextlib.closing(Ending(self.lab.server())):
            for peer in self.peers:
                with self.lab.pair(peer) as pair:
                    data = self.out / f"perf-{peer}.data"
                    roles = {pid: role for role in ("client", "server") for pid in pair.pids(role)}
                    self.lab.warm(peer, 200)
                    record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "999", "-o", data]
                    # The stack is copied with each sample: a frame pointer costs each function.
                    record += ["--call-graph", "dwarf,16384", "-p", ",".join(map(str, roles))]
                    perf = subprocess.Popen([str(word) for word in record])
                    time.sleep(1)
                    self.lab.load(peer, 200, self.seconds)
                    perf.send_signal(signal.SIGINT)
                    perf.wait()
                title = f"{peer}: both sidecars, 200 connections, 200-byte bodies, saturated"
                shares[peer] = flame.draw(data, self.out / f"flame-{peer}.svg", title, roles)
                data.unlink()
        roles = [(peer, role) for peer in shares for role in ("client", "server")]
        head(["", *(f"{peer}, {role}" for peer, role in roles)])
        names = collections.Counter()
        for peer, role in roles:
            names.update(shares[peer].get(role, {}))
        for name, _ in names.most_common(8):
            row([name, *(f"{shares[p].get(r, {}).get(name, 0):.1%}" for p, r in roles)])
        say()


class Ending:
    """`contextlib.closing` for what has `end`."""

    def __init__(self, process):
        self.close = process.end


def place_of(frames):
    """The file of this workspace that asked for a copy: those have no directory."""
    for frame in frames:
        file = re.search(r"\((\w+\.rs:\d+)\)", frame)
        if file and not file[1].startswith("buffer.rs"):
            return file[1]
    return "elsewhere"


def context_switches(pids):
    found = {"voluntary": 0, "involuntary": 0}
    for pid in pids:
        for status in pathlib.Path(f"/proc/{pid}/task").glob("*/status"):
            for line in status.read_text().splitlines():
                if line.startswith("voluntary_ctxt"):
                    found["voluntary"] += int(line.split()[1])
                elif line.startswith("nonvoluntary_ctxt"):
                    found["involuntary"] += int(line.split()[1])
    return found


def resident(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0


def find_envoy():
    built = pathlib.Path("build/envoy-venv").glob("lib/python*/site-packages/envoy/_bin/envoy")
    given = os.environ.get("TULLE_ENVOY")
    return given or next((str(p.resolve()) for p in built), None) or shutil.which("envoy")


def main():
    parser = argparse.ArgumentParser(
        prog="scripts/account.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    of = {"metavar": "NAME", "nargs": "+"}
    parser.add_argument("--what", choices=WHAT, default=WHAT, help="only these", **of)
    peers = {"default": PEERS, "help": f"only these, of {', '.join(PEERS)}; features: tulle with each"}
    parser.add_argument("--peers", choices=[*PEERS, "features"], **peers, **of)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 64, 200], metavar="N")
    parser.add_argument("--seconds", type=float, default=4, help="of each load")
    binaries = {"type": pathlib.Path, "default": pathlib.Path("target/profiling")}
    parser.add_argument("--binaries", help="where tulle-bench and tulle-proxy are, with symbols", **binaries)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("account-out"))
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    more = features(options.binaries) if "features" in options.peers else []
    options.peers = [p for p in options.peers if p != "features"] + more
    with tempfile.TemporaryDirectory(prefix="tulle-account-") as directory:
        account = Account(options, Lab(directory, options.binaries, find_envoy(), more))
        for what in options.what:
            getattr(account, what)()


if __name__ == "__main__":
    main()
