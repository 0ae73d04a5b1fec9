#!/usr/bin/env python3
"""A fixed trace through a pair of sidecars, the same batches in every run.

Plays the client and the server of the pair. A round is one request on every connection. All its
requests are in the sidecar's sockets before it may run, and it runs until it has nothing left to
do before the next one may: SIGSTOP and SIGCONT take the place of chance. So a count of
instructions or system calls can be repeated, which a saturated load's cannot.

    trace.py --client PORT --app PORT --first PID --second PID [--connections N] [--rounds N]
             [--warmup N] [--bytes N] [--at-begin COMMAND] [--at-end COMMAND]

FIRST is the client's sidecar, SECOND the server's. The commands run between two rounds, with both
sidecars idle and free to run: they begin and end a count. Prints the number of requests between.
"""

import argparse
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

PATIENCE = 120.0
# Connections that begin together.
AT_A_TIME = 8
REQUEST = b"GET /bytes/%d HTTP/1.1\r\nHost: echo\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
BODY = (
    b'{"id":"2099a055-1e21-46ef-825e-9e0de93554ea","reviewer":"reviewer-1",'
    b'"text":"An extremely entertaining play by Shakespeare.","stars":5},'
)


def threads(pid):
    """State and context switches of each thread."""
    found = []
    for task in sorted(os.listdir(f"/proc/{pid}/task")):
        state = switches = None
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("State:"):
                    state = line.split()[1]
                elif line.startswith("voluntary_ctxt"):
                    switches = line.split()[1]
        found.append((task, state, switches))
    return found


class Sidecar:
    """One that runs when it is told to."""

    def __init__(self, pids):
        self.pids = pids

    def stop(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)

    def go(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)

    def settle(self):
        """Waits until every thread sleeps and stays asleep."""
        before, same, end = None, 0, time.monotonic() + PATIENCE
        while same < 5:
            now = [threads(pid) for pid in self.pids]
            sleeps = all(state == "S" for pid in now for _, state, _ in pid)
            same = same + 1 if sleeps and now == before else 0
            before = now
            time.sleep(0.0005)
            if time.monotonic() > end:
                sys.exit(f"processes {self.pids} do not come to rest")

    def turn(self):
        self.go()
        self.settle()
        self.stop()


class Trace:
    def __init__(self, options):
        self.bytes = options.bytes
        self.first = Sidecar(options.first)
        self.second = Sidecar(options.second)
        self.request = REQUEST % self.bytes
        body = (BODY * (self.bytes // len(BODY) + 1))[: self.bytes]
        self.response = HEAD % self.bytes + body
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server(("127.0.0.1", options.app), backlog=4096)
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        self.asked = []  # connections of the server side with a request that waits
        self.partial = {}
        self.clients = []
        for _ in range(options.connections):
            client = socket.create_connection(("127.0.0.1", options.client))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.settimeout(1)
            self.clients.append(client)
        self.first.settle()

    def requests(self, count):
        """Takes what the second sidecar has sent until so many connections have a request.

        Where nothing comes the first was stopped too early, as a very busy machine can do, and may
        go on."""
        end = time.monotonic() + PATIENCE
        while len(self.asked) < count:
            if time.monotonic() > end:
                sys.exit(f"{len(self.asked)} of {count} requests came")
            events = self.selector.select(1)
            if not events:
                self.first.go()
            for key, _ in events:
                if key.fileobj is self.listener:
                    accepted, _ = self.listener.accept()
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    accepted.setblocking(False)
                    self.selector.register(accepted, selectors.EVENT_READ, None)
                    continue
                data = self.partial.pop(key.fileobj, b"") + key.fileobj.recv(1 << 16)
                if not data:
                    self.selector.unregister(key.fileobj)
                    key.fileobj.close()
                elif data.endswith(b"\r\n\r\n"):
                    self.asked.append(key.fileobj)
                else:
                    self.partial[key.fileobj] = data

    def round(self, free=False):
        """One request on every connection; `free`: nobody is stopped."""
        # One request has no other to be served together with, and a stop costs calls of its own.
        free = free or len(self.clients) == 1
        if not free:
            self.first.stop()
            self.second.stop()
        for number, client in enumerate(self.clients, 1):
            client.sendall(self.request)
            # Two hundred handshakes at once take a sidecar in a simulator longer than its patience.
            if free and number % AT_A_TIME == 0:
                self.requests(number)
        if not free:
            self.first.turn()
            self.second.go()
        self.requests(len(self.clients))
        if not free:
            self.second.settle()
            self.second.stop()
        # In the order of the file descriptors, whichever came first.
        for server in sorted(self.asked, key=socket.socket.fileno):
            server.setblocking(True)
            server.sendall(self.response)
            server.setblocking(False)
        self.asked = []
        if not free:
            self.second.turn()
            self.first.go()
        for client in self.clients:
            self.read(client)
        if not free:
            self.first.settle()
            self.second.go()

    def read(self, client):
        data, end = b"", time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                part = client.recv(1 << 20)
            except TimeoutError:
                self.second.go()
                continue
            if not part:
                sys.exit("a sidecar has closed a connection")
            data += part
            head, found, body = data.partition(b"\r\n\r\n")
            if found and len(body) == self.bytes:
                if not head.startswith(b"HTTP/1.1 200"):
                    sys.exit(f"not an answer: {head[:200]!r}")
                return
        sys.exit("no answer came")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", type=int, required=True)
    parser.add_argument("--app", type=int, required=True)
    parser.add_argument("--first", type=lambda s: [int(p) for p in s.split(",")], required=True)
    parser.add_argument("--second", type=lambda s: [int(p) for p in s.split(",")], required=True)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=200)
    parser.add_argument("--at-begin")
    parser.add_argument("--at-end")
    options = parser.parse_args()
    trace = Trace(options)
    try:
        trace.round(free=True)
        for _ in range(options.warmup):
            trace.round()
        if options.at_begin:
            subprocess.run(options.at_begin, shell=True, check=True, stdout=sys.stderr)
        for _ in range(options.rounds):
            trace.round()
        if options.at_end:
            subprocess.run(options.at_end, shell=True, check=True, stdout=sys.stderr)
    finally:
        trace.first.go()
        trace.second.go()
    print(options.connections * options.rounds)


if __name__ == "__main__":
    main()
