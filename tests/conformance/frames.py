"""HTTP/2 frames and header blocks, right or wrong, as bytes."""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)  # fmt: skip
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE = 0x1, 0x4


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def settings(*pairs):
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window_update(stream, increment):
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def reset(stream, code=8):
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def integer(value, prefix, first):
    """RFC 7541 5.1."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes([first | value])
    out = bytearray([first | most])
    value -= most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out) + bytes([value])


def text(value):
    return integer(len(value), 7, 0) + value


def literal(name, value, indexed=False):
    """A field whose name and value are given; with `indexed`, into the dynamic table."""
    return (b"\x40" if indexed else b"\x00") + text(name) + text(value)


def request(method=b"GET", path=b"/"):
    """The fields of a request, without any of the dynamic table."""
    first = {b"GET": b"\x82", b"POST": b"\x83"}[method]
    target = b"\x84" if path == b"/" else b"\x04" + text(path)
    return first + b"\x86" + target + b"\x01" + text(b"a")


def head(stream, block=None, flags=END_HEADERS | END_STREAM):
    return frame(HEADERS, flags, stream, request() if block is None else block)


def odd():
    """Ids of streams that a client may begin."""
    return range(1, 1 << 31, 2)
