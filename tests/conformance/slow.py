"""Slow clients, by slowhttptest: do others go on being served, and what do the slow ones cost?

slow heads (slowloris), slow bodies (R-U-Dead-Yet), slow reading of a large answer.
"""

import subprocess
import threading
import time

import app
import tools
from lab import connect

CONNECTIONS, RATE = 400, 200
# Each connection has something in hand, in both sidecars where it is a pair.
GROWTH = CONNECTIONS * (64 << 10)
MODES = {
    "slow heads": ["-H", "-i", "5"],
    "slow bodies": ["-B", "-i", "5", "-s", "8192"],
    "slow reading": ["-X", "-w", "512", "-y", "1024", "-n", "5", "-z", "32", "-k", "1"],
}


class Large(app.Http):
    BODY = bytes(1 << 20)


class Bystander(threading.Thread):
    """Asks again and again, each time on a new connection and on one that is kept."""

    SMALL = b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.over = port, threading.Event()
        self.served, self.failures = 0, []
        self.start()

    def ask(self, connection):
        connection.sendall(self.SMALL)
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            more = connection.recv(4096)
            if not more:
                raise OSError("the answer was cut")
            data += more
        if not data.startswith(b"HTTP/1.1 200"):
            raise OSError(data.split(b"\r\n")[0].decode(errors="replace"))
        self.served += 1

    def run(self):
        kept = None
        while not self.over.wait(0.1):
            for what in ("new", "kept"):
                try:
                    if what == "new":
                        with connect(self.port, 10) as connection:
                            self.ask(connection)
                    else:
                        kept = kept or connect(self.port, 10)
                        self.ask(kept)
                except OSError as error:
                    self.failures.append(f"{what} connection: {error}")
                    if what == "kept" and kept:
                        kept.close()
                        kept = None
        if kept:
            kept.close()


def mode(peer, lab, flags, seconds):
    program = tools.installed("slowhttptest")
    place = peer.front(lab, lab.add(Large()).port)
    bystander = Bystander(place.port)
    time.sleep(0.5)
    before, most = place.rss(), 0
    command = [program, *flags, "-c", CONNECTIONS, "-r", RATE, "-l", seconds, "-p", 10]
    command += ["-u", f"http://127.0.0.1:{place.port}/"]
    attack = lab.start("slowhttptest", command, lab.place("slow"))
    while attack.child.poll() is None:
        most = max(most, place.rss())
        time.sleep(0.05)
    bystander.over.set()
    bystander.join()
    said = attack.log.read_text(errors="replace")
    if "Exit status" not in said and "exit" not in said.lower():
        raise RuntimeError(f"slowhttptest said: {said[-500:]}")
    return {
        "served": bystander.served,
        "failed": len(bystander.failures),
        "growth": max(0, most - before),
        "details": sorted(set(bystander.failures))[:5],
    }


def run(peer, lab, options):
    found = {}
    for name, flags in MODES.items():
        found[name] = mode(peer, lab, flags, 4 if options.short else 20)
        lab.end_all()
    for one in found.values():
        one["met"] = not one["failed"] and one["served"] > 4 and one["growth"] <= GROWTH
    return {"cases": len(found), "met": sum(one["met"] for one in found.values()), "kinds": found}
