"""HTTP/2 from a client, HTTP/1.1 to the application: what HTTP/2 can carry and HTTP/1.1 cannot, and
what HTTP/1.1 would take for framing. The verdict comes from the bytes that the application received.
"""

import app
import frames
import framing
from corpus import HIDDEN, Case
from frames import END_HEADERS, END_STREAM, PREFACE, frame, literal, settings

PSEUDO = {b":method": b"POST", b":scheme": b"http", b":path": b"/a", b":authority": b"a"}


def message(change=None, fields=(), body=b"", trailers=None, first=()):
    """A request on stream 1. `change` replaces pseudo-fields; a value of none leaves one out."""
    pseudo = {**PSEUDO, **(change or {})}
    block = b"".join(literal(name, value) for name, value in first)
    block += b"".join(literal(name, value) for name, value in pseudo.items() if value is not None)
    block += b"".join(literal(name, value) for name, value in fields)
    has_more = bool(body) or trailers is not None
    out = frame(frames.HEADERS, END_HEADERS | (0 if has_more else END_STREAM), 1, block)
    if body:
        flags = 0 if trailers is not None else END_STREAM
        out += frame(frames.DATA, flags, 1, body)
    if trailers is not None:
        end = b"".join(literal(name, value) for name, value in trailers)
        out += frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, end)
    return PREFACE + settings() + out


def cases():
    """One request each: nothing may make two of it."""

    def case(name, *given, forbidden=b"", **how):
        return Case(name, message(*given, **how), ambiguous=True, forbidden=forbidden, most=1)

    odd = [*range(0x00, 0x21), 0x22, 0x23, 0x3A, 0x5C, 0x7F, 0x80, 0xFF]
    split = b"\r\nX: y\r\n\r\n" + HIDDEN
    for value in odd:
        byte = bytes([value])
        name = f"0x{value:02x}"
        yield case(f"{name} in a value", fields=[(b"x", b"y" + byte + b"z")])
        yield case(f"{name} before a value", fields=[(b"x", byte + b"z")])
        yield case(f"{name} behind a value", fields=[(b"x", b"z" + byte)])
        yield case(f"{name} in a name", fields=[(b"x" + byte + b"y", b"z")])
        yield case(f"{name} in the path", {b":path": b"/a" + byte + b"b"})
        yield case(f"{name} in the method", {b":method": b"GE" + byte + b"T"})
        yield case(f"{name} in the authority", {b":authority": b"a" + byte + b"b"})
        yield case(f"{name} in the scheme", {b":scheme": b"ht" + byte + b"tp"})
        yield case(f"{name} in host", fields=[(b"host", b"a" + byte)])
        yield case(f"{name} in a trailer", body=b"x", trailers=[(b"x", b"y" + byte + b"z")])
        yield case(f"{name} in a trailer's name", body=b"x", trailers=[(b"x" + byte + b"y", b"z")])
    for place in (b":path", b":method", b":authority", b":scheme"):
        for text in (split, split.replace(b"\r", b""), b" HTTP/1.1" + split, b""):
            yield case(f"{place.decode()} and {text[:20]!r}", {place: PSEUDO[place] + text})
        yield case(f"{place.decode()} empty", {place: b""})
        yield case(f"{place.decode()} missing", {place: None})
        yield case(f"{place.decode()} twice", first=[(place, b"GET")])
        yield case(f"{place.decode()} behind a field", {place: None}, [(b"x", b"y"), (place, b"/b")])
        yield case(f"{place.decode()} in trailers", body=b"x", trailers=[(place, b"/b")])
    yield case("a field's value split", fields=[(b"x", b"y" + split)])
    yield case("a field's name split", fields=[(b"x: y\r\nz", b"y")])
    yield case("an empty name", fields=[(b"", b"y")])
    yield case("a name in capitals", fields=[(b"Xy", b"z")])
    yield case("an unknown pseudo-field", fields=[(b":x", b"y")])
    yield case("a response's pseudo-field", first=[(b":status", b"200")])
    for path in (b"*", b"a", b"http://evil.example/", b"//evil.example/", b"/a#b", b"?a", b"/ /b"):
        yield case(f"path {path!r}", {b":path": path})
    for host in (b"evil.example", b"a, evil.example"):
        yield case(f"host {host!r} beside the authority", fields=[(b"host", host)], forbidden=b"evil")
    yield case("host twice", fields=[(b"host", b"a"), (b"host", b"a")])
    yield case("host twice, no authority", {b":authority": None}, [(b"host", b"a"), (b"host", b"b")])
    yield case("neither host nor authority", {b":authority": None})
    for authority in (b"user@a", b"a/b", b"a:b", b"a b", b"[::1", b"a?b"):
        yield case(f"authority {authority!r}", {b":authority": authority})
    for method in (b"CONNECT", b"get", b"PRI", b"OPTIONS", b"HEAD", b"TRACE"):
        yield case(f"method {method.decode()} with a body", {b":method": method}, body=HIDDEN)
    yield case("CONNECT without path", {b":method": b"CONNECT", b":path": None, b":scheme": None})
    hidden = b"0\r\n\r\n" + HIDDEN
    for value in (b"chunked", b"Chunked", b"identity", b"gzip, chunked", b"x", b"", b" chunked"):
        yield case(f"transfer-encoding {value!r}", fields=[(b"transfer-encoding", value)], body=hidden)
    for name in (b"transfer_encoding", b"content_length"):
        yield case(f"{name.decode()}", fields=[(name, b"chunked" if name[0] == 116 else b"0")], body=hidden)
    yield case("transfer-encoding in trailers", body=hidden, trailers=[(b"transfer-encoding", b"chunked")])
    yield case("content-length in trailers", body=hidden, trailers=[(b"content-length", b"0")])
    yield case("host in trailers", body=b"x", trailers=[(b"host", b"evil.example")])
    size = b"%d" % len(HIDDEN)
    lengths = [b"0", b"1", b"51", b"53", b"+52", b"-1", b"0x34", b"52, 52", b"52,0", b"", b" ", b"052x"]
    lengths += [b"18446744073709551616", b"18446744073709551668", b"5 2", b"52\r\nx: y", b"1e2"]
    for value in lengths:
        yield case(f"content-length {value!r}", fields=[(b"content-length", value)], body=HIDDEN)
        yield case(f"content-length {value!r}, no body", fields=[(b"content-length", value)])
        yield case(f"content-length {value!r} and trailers", fields=[(b"content-length", value)], body=HIDDEN, trailers=[(b"x", b"y")])  # fmt: skip
    for other in (b"0", size):
        both = [(b"content-length", size), (b"content-length", other)]
        yield case(f"content-length twice, {other!r}", fields=both, body=HIDDEN)
        yield case(f"content-length twice, {other!r} first", fields=both[::-1], body=HIDDEN)
    yield case("content-length and transfer-encoding", fields=[(b"content-length", size), (b"transfer-encoding", b"chunked")], body=HIDDEN)  # fmt: skip
    of_the_connection = [
        (b"connection", b"keep-alive"), (b"connection", b"close"), (b"connection", b"x"),
        (b"connection", b"content-length"), (b"keep-alive", b"timeout=5"), (b"te", b"gzip"),
        (b"te", b"trailers, chunked"), (b"proxy-connection", b"keep-alive"), (b"upgrade", b"h2c"),
        (b"upgrade", b"websocket"), (b"http2-settings", b"AAMAAABkAAQAAP__"),
    ]  # fmt: skip
    for name, value in of_the_connection:
        yield case(f"{name.decode()}: {value.decode()}", fields=[(name, value)], body=HIDDEN)
    yield case("upgrade, as in HTTP/1.1", fields=[(b"connection", b"upgrade"), (b"upgrade", b"h2c")], forbidden=b"h2c")  # fmt: skip
    yield case("expect", fields=[(b"expect", b"100-continue")], body=HIDDEN)
    for name in (b"x-forwarded-client-cert", b"x_forwarded_client_cert", b"x-forwarded_client-cert"):
        forged = [(name, b"URI=spiffe://forged")]
        yield case(f"forged {name.decode()}", fields=forged, forbidden=b"forged")
        yield case(f"forged {name.decode()} twice", fields=forged * 2, forbidden=b"forged")
        yield case(f"forged {name.decode()} in trailers", body=b"x", trailers=forged, forbidden=b"forged")
    yield case("cookies in crumbs", fields=[(b"cookie", b"a=b"), (b"cookie", b"c=d")])
    yield case("a body with hidden request", body=HIDDEN)


def lane(place, recorder, given):
    found = framing.judge(place, recorder, given)
    # The proxy still works.
    framing.exchange(place.port, message(body=b"last"))
    framing.settle(recorder)
    if not any(event[0] == "request" for event in recorder.take()):
        raise RuntimeError("after the corpus, an ordinary request does not arrive")
    return found


def run(peer, lab, options):
    start = lambda lab, port: peer.front(lab, port, takes="http2")
    # In the short form one of three: their kinds follow each other.
    every = list(cases())[:: 3 if options.short else 1]
    return framing.in_lanes(lab, start, lane, every)
