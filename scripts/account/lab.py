"""Pairs of sidecars, configured as `tulle bench pair` configures them."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time

# Each peer has eight ports behind the application's: its place in this list, from 1.
PEERS = ["tulle", "nginx", "envoy", "haproxy"]
# Tulle with each of its features (tulle bench pair --vs features) needs as many.
PORTS = 8 * 32
# As the bench has them.
SIDECAR_CPU = 0
LOAD_CPU = 1
PATIENCE = 60


def wait_for(what, condition, patience=PATIENCE):
    end = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"error: {what} did not happen within {patience} s")
        time.sleep(0.05)
    return found


def listening(port):
    address = f"0100007F:{port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = (line.split() for line in table)
        return any(row[1] == address and row[3] == "0A" for row in rows)


def features(binaries):
    """`tulle+NAME` of each feature that the bench knows; it says so where it is asked for another."""
    command = [binaries / "tulle-bench", "pair", "--vs", "?"]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    return re.findall(r"tulle\+[a-z-]+", said)


def free_ports():
    """The first of so many in a row, below those that the bench and the kernel take."""
    for base in range(12000, 15000 - PORTS, PORTS):
        try:
            for port in range(base, base + PORTS):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
    raise SystemExit(f"error: no {PORTS} free ports in a row on 127.0.0.1")


class Lab:
    """Certificates, configurations and ports; a place for each peer."""

    def __init__(self, directory, binaries, envoy, features=()):
        self.directory = pathlib.Path(directory)
        self.binaries = pathlib.Path(binaries).resolve()
        self.envoy = envoy
        self.app = free_ports()
        self.make(features)

    def make(self, features):
        """Lets the bench write everything, takes a copy, and moves it to other ports."""
        names = [p for p in PEERS[1:] if p != "envoy" or self.envoy] + list(features)
        self.peers = ["tulle", *names]
        command = [self.binaries / "tulle-bench", "pair", "--vs", ",".join(names)]
        command += ["--scenarios", "rate-1000", "--repeats", "1", "--budgets", os.devnull]
        command += ["--out", self.directory / "bench"]
        command += ["--envoy", self.envoy] if self.envoy else []
        log = self.directory / "bench.log"
        with open(log, "wb") as output:
            bench = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env={**os.environ, "TMPDIR": str(self.directory)},
            )
        try:

            def rendered():
                if bench.poll() is not None:
                    raise SystemExit(f"error: the bench ended: {log.read_text()}")
                return next(self.directory.glob("tulle-bench-pair-*/load.log"), None)

            theirs = wait_for("the bench's first measurement", rendered).parent
            shutil.copytree(theirs, self.directory / "pair")
        finally:
            bench.send_signal(signal.SIGINT)
            bench.wait()
        text = (self.directory / "pair/tulle/tulle-server.yaml").read_text()
        first = int(text.split("target: 127.0.0.1:")[1].split()[0])
        for kind in ("yaml", "conf", "cfg", "json"):
            for file in (self.directory / "pair").glob(f"*/*.{kind}"):
                text = file.read_text().replace(str(theirs), str(self.directory / "pair"))
                for offset in range(PORTS):
                    text = text.replace(str(first + offset), str(self.app + offset))
                file.write_text(text)

    def port(self, peer, role):
        base = self.app + 8 * (self.peers.index(peer) + 1)
        return base + (1 if role == "client" else 2)

    def command(self, peer, role):
        place = self.directory / "pair" / peer
        if peer.startswith("tulle"):
            return [self.binaries / "tulle-proxy", "--config", place / f"tulle-{role}.yaml"]
        if peer == "nginx":
            file = place / f"nginx-{role}.conf"
            return [shutil.which("nginx"), "-e", "stderr", "-p", place, "-c", file]
        if peer == "haproxy":
            return [shutil.which("haproxy"), "-db", "-f", place / f"haproxy-{role}.cfg"]
        file = place / f"envoy-{role}.json"
        quiet = ["--log-level", "warn", "--disable-hot-restart"]
        return [self.envoy, "-c", file, "--concurrency", "1", *quiet]

    def pair(self, peer, wrap=lambda role: []):
        return Pair(self, peer, wrap)

    def server(self):
        """The bench's, which takes one read and one write for a request."""
        command = ["taskset", "-c", str(LOAD_CPU), self.binaries / "tulle-bench", "internal", "server"]
        return Process([*command, "--listen", f"127.0.0.1:{self.app}"], self.app, os.devnull)

    def warm(self, peer, connections):
        """Has connections made and caches filled; what is lost meanwhile is nobody's business."""
        self.load(peer, connections, 1, strict=False)

    def load(self, peer, connections, seconds, strict=True):
        """Runs the bench's generator: its report, with every request since its start."""
        load = {
            "to": f"127.0.0.1:{self.port(peer, 'client')}",
            "connections": connections,
            "pattern": "saturate",
            "bytes": 200,
            "warmup": {"secs": 0, "nanos": 0},
            "measure": {"secs": int(seconds), "nanos": int(seconds % 1 * 1e9)},
        }
        command = ["taskset", "-c", str(LOAD_CPU), self.binaries / "tulle-bench", "internal", "load"]
        done = subprocess.run(
            [*command, json.dumps(load)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
        )
        report = json.loads(done.stdout.splitlines()[-1])
        if strict and any(report["errors"].values()):
            raise SystemExit(f"error: {peer} lost requests: {report['errors']}")
        return report


class Process:
    """One that listens, and ends with this value."""

    def __init__(self, command, port, log):
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdout=output, stderr=output
            )

        def listens():
            if self.process.poll() is not None:
                raise SystemExit(f"error: {command[-1]} ended; see {log}")
            return listening(port)

        try:
            wait_for(f"{command} listens", listens)
        except BaseException:
            self.end()
            raise

    def family(self):
        """It and what it has started: nginx's worker."""
        found = [self.process.pid]
        for pid in found:
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        return found

    def end(self):
        for pid in self.family() if self.process.poll() is None else []:
            os.kill(pid, signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            for pid in reversed(self.family()):
                os.kill(pid, signal.SIGKILL)
            self.process.wait()


class Pair:
    """The two sidecars of a peer, running; `wrap` gives the words before their commands."""

    def __init__(self, lab, peer, wrap):
        self.sidecars = {}
        try:
            for role in ("server", "client"):
                log = lab.directory / f"{peer}-{role}.log"
                command = ["taskset", "-c", str(SIDECAR_CPU), *wrap(role), *lab.command(peer, role)]
                self.sidecars[role] = Process(command, lab.port(peer, role), log)
        except BaseException:
            self.end()
            raise

    def pids(self, role):
        return self.sidecars[role].family()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        for process in self.sidecars.values():
            process.end()
