"""Counts what passes between two sidecars: segments, bytes, TLS records."""

import contextlib
import signal
import struct
import subprocess
import time

COLUMNS = [
    "bytes to server",
    "bytes to client",
    "records to server",
    "records to client",
    "requests a record",
    "segments, acknowledgements too",
]
RECORD_HEADER = 5


@contextlib.contextmanager
def capture(port, file):
    """All of a port's traffic on the loopback, into a file."""
    words = ["tcpdump", "-i", "lo", "-s", "0", "-B", "524288", "-w", str(file)]
    tcpdump = subprocess.Popen(
        [*words, "-Z", "root", f"tcp port {port}"], stderr=subprocess.PIPE, text=True
    )
    for line in tcpdump.stderr:
        if "listening on" in line:
            break
    try:
        yield
        time.sleep(1)
    finally:
        tcpdump.send_signal(signal.SIGINT)
        said = tcpdump.communicate()[1]
    for line in said.splitlines():
        if "dropped by kernel" in line and not line.startswith("0 "):
            print(f"warning: {line}: records are counted too low")


def packets(file):
    """Time, source and destination port, sequence number, flags and payload of each segment."""
    with open(file, "rb") as data:
        header = data.read(24)
        order = "<" if header[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
        while len(record := data.read(16)) == 16:
            seconds, micros, length = struct.unpack(f"{order}III4x", record)
            frame = data.read(length)
            # Ethernet, as the loopback has it, and IPv4.
            packet = frame[14:]
            size = struct.unpack("!H", packet[2:4])[0]
            tcp = packet[(packet[0] & 15) * 4 : size or None]
            source, destination, sequence = struct.unpack("!HHI", tcp[:8])
            yield seconds + micros / 1e6, source, destination, sequence, tcp[13], tcp[(tcp[12] >> 4) * 4 :]


def account(file, port, since, requests):
    """The cells of a row: of what came after a time, when connections were made already."""
    streams = {}
    segments = 0
    total = {"to server": [0, 0], "to client": [0, 0]}
    for when, source, destination, sequence, flags, payload in packets(file):
        segments += when >= since
        stream = streams.setdefault((source, destination), [None, 0])
        if flags & 2:
            stream[0] = (sequence + 1) % (1 << 32)
            continue
        if not payload or stream[0] is None:
            continue
        if sequence != stream[0]:
            # A segment sent again, or one that was not captured.
            if (stream[0] - sequence) % (1 << 32) < 1 << 31:
                continue
            raise SystemExit("error: the capture has a hole")
        stream[0] = (sequence + len(payload)) % (1 << 32)
        begun = records(stream, payload)
        if when >= since:
            counts = total["to server" if destination == port else "to client"]
            counts[0] += len(payload)
            counts[1] += begun
    (bytes_out, records_out), (bytes_in, records_in) = total.values()
    return [
        f"{bytes_out / requests:,.0f}",
        f"{bytes_in / requests:,.0f}",
        f"{records_out / requests:.2f}",
        f"{records_in / requests:.2f}",
        f"{requests / max(records_out, 1):.1f} / {requests / max(records_in, 1):.1f}",
        f"{segments / requests:.2f}",
    ]


def records(stream, payload):
    """How many records begin here. `stream[1]`: bytes until the next one does, or its header."""
    rest = stream[1]
    if isinstance(rest, bytes):
        payload, rest = rest + payload, 0
    found = 0
    while rest <= len(payload):
        payload = payload[rest:]
        if len(payload) < RECORD_HEADER:
            # Counted when the rest of its header is there.
            stream[1] = payload if payload else 0
            return found
        found += 1
        rest = RECORD_HEADER + struct.unpack("!H", payload[3:5])[0]
    stream[1] = rest - len(payload)
    return found
