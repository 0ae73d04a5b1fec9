"""A reader of HTTP/1.1 requests as strict as RFC 9112 allows, and as plain as possible. It shares
nothing with any proxy's: what it takes has exactly one meaning, also for careless readers, since
whatever these would see differently it refuses.
"""

import dataclasses
import re

TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class Unclear(Exception):
    """Bytes that two readers may take for different requests."""


@dataclasses.dataclass
class Message:
    method: bytes
    target: bytes
    version: bytes
    fields: list
    body: bytes = b""

    def all(self, name):
        return [value for key, value in self.fields if key.lower() == name]


def line(data, at):
    """The line at `at` without CRLF, and where the next begins; none: it does not end."""
    end = re.compile(rb"[\r\n]").search(data, at)
    if not end:
        return None
    if data[end.start() : end.start() + 2] == b"\r\n":
        return data[at : end.start()], end.start() + 2
    if data[end.start() :] == b"\r":
        return None
    raise Unclear("a bare CR or LF")


def field(text):
    name, colon, value = text.partition(b":")
    if not colon or not TOKEN.fullmatch(name):
        raise Unclear(f"the field name in {text[:60]!r}")
    if CONTROL.search(value):
        raise Unclear(f"a control byte in {text[:60]!r}")
    return name, value.strip(b" \t")


def fields(data, at):
    found = []
    while (here := line(data, at)) is not None:
        text, at = here
        if not text:
            return found, at
        found.append(field(text))
    return None


def head(data):
    """The head at the beginning, and how long it is."""
    here = line(data, 0)
    if here is None:
        return None
    start, at = here
    words = start.split(b" ")
    if (
        len(words) != 3
        or not TOKEN.fullmatch(words[0])
        or not re.fullmatch(rb"[!-~]+", words[1])
        or b"#" in words[1]
        or words[2] not in (b"HTTP/1.1", b"HTTP/1.0")
    ):
        raise Unclear(f"the request line {start[:60]!r}")
    found = fields(data, at)
    if found is None:
        return None
    return Message(*words, found[0]), found[1]


def framing(message):
    """A length, `chunked`, or none. Names are compared as servers do that take `_` for `-`."""
    named = lambda name: [
        value for key, value in message.fields if key.lower().replace(b"_", b"-") == name
    ]
    lengths, codings, hosts = map(named, (b"content-length", b"transfer-encoding", b"host"))
    if len(hosts) > 1 or (not hosts and message.version == b"HTTP/1.1"):
        raise Unclear(f"{len(hosts)} Host fields")
    authority = re.match(rb"[a-z][a-z0-9+.-]*://([^/?]*)", message.target, re.I)
    if authority and hosts and authority[1].lower() != hosts[0].lower():
        raise Unclear(f"two authorities: {message.target[:40]!r} and {hosts[0][:40]!r}")
    if not lengths and not codings:
        return None
    if len(lengths) == 1 and not codings and re.fullmatch(rb"0*[0-9]{1,20}", lengths[0]):
        length = int(lengths[0])
        if length < 1 << 64:
            return length
    if not lengths and len(codings) == 1 and codings[0].lower() == b"chunked":
        return "chunked"
    raise Unclear(f"ambiguous framing: {lengths[:3]} {codings[:3]}")


def chunks(data, at):
    """Where the chunked body ends that begins at `at`; none: it does not end."""
    while (here := line(data, at)) is not None:
        text, at = here
        size = text.split(b";")[0]
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,16}", size) or CONTROL.search(text):
            raise Unclear(f"the chunk size {text[:60]!r}")
        size = int(size, 16)
        if size == 0:
            trailers = fields(data, at)
            return trailers and trailers[1]
        end = data[at + size : at + size + 2]
        if not b"\r\n".startswith(end):
            raise Unclear("a chunk does not end where it says")
        if len(end) < 2:
            return None
        at += size + 2
    return None


def read(data):
    """The message at the beginning and how long it is; none: it does not end yet."""
    found = head(data)
    if found is None:
        return None
    message, at = found
    length = framing(message)
    end = chunks(data, at) if length == "chunked" else at + (length or 0)
    if end is None or end > len(data):
        return None
    message.body = data[at:end]
    return message, end
