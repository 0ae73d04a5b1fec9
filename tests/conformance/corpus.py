"""The cases of `crates/http1/corpus` (the README there describes the format), and several hundred
more that are made by putting every odd byte into every place where two readers may disagree.
"""

import dataclasses
import re

from peers import ROOT

CORPUS = ROOT / "crates/http1/corpus"
# The request that nobody may see; its length is in some of the cases.
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: hidden\r\nX: yyyyyyyyy\r\n\r\n"


@dataclasses.dataclass
class Case:
    name: str
    # The client's bytes.
    bytes: bytes
    # Whether RFC 9112 leaves no length of the body to be agreed on: then nothing behind it may be
    # taken for a request.
    ambiguous: bool = False
    # Bytes that must never arrive.
    forbidden: bytes = b""
    # How many requests there may be at most.
    most: int = 2


# Reasons of refusals after which the connection must not carry another request.
AMBIGUOUS = {
    "content-length",
    "content-length-repeated",
    "length-and-chunked",
    "transfer-encoding",
    "transfer-encoding-repeated",
    "transfer-encoding-http10",
}
# Reasons for which a chunked body has no end. What else is refused there, as odd extensions and
# trailers, others may drop and go on.
ENDLESS = {"chunk-size", "chunk-end", "body-bare-cr-or-lf"}


def unescape(text):
    out, at = bytearray(), 0
    while at < len(text):
        if text[at] != "\\":
            out += text[at].encode()
            at += 1
            continue
        kind = text[at + 1]
        at += 2
        if kind in "rnt\\":
            out += {"r": b"\r", "n": b"\n", "t": b"\t", "\\": b"\\"}[kind]
        elif kind == "x":
            out.append(int(text[at : at + 2], 16))
            at += 2
        elif kind == "{":
            end = text.index("}", at)
            unit, count = text[at:end].rsplit("*", 1)
            out += unescape(unit.replace("/r/n", "\\r\\n")) * int(count)
            at = end + 1
        else:
            raise ValueError(f"unknown escape \\{kind}")
    return bytes(out)


def read(text):
    """Yields name, input and verdict."""
    for part in re.split(r"(?m)^== ", text)[1:]:
        title, _, rest = part.partition("\n")
        template, verdict, values, state = "", "", [], "input"
        for line in rest.splitlines():
            if state == "input" and line.startswith("-> "):
                verdict, state = line[3:], "values"
            elif state == "input":
                is_open = line.endswith("\\") and not line.endswith("\\\\")
                template += line[:-1] if is_open else line + "\\r\\n"
            elif line == "=>":
                state = "output"
            elif state == "values" and line.startswith("% "):
                values.append(line[2:])
        for value in values or [""]:
            yield f"{title} {value}".strip(), unescape(template.replace("<%>", value)), verdict


def same_lengths(head):
    """RFC 9110 8.6 lets one length said several times be taken for said once."""
    found = re.findall(rb"(?im)^content-length:([^\r\n]*)", head)
    values = {value.strip(b" \t") for line in found for value in line.split(b",")}
    return len(values) == 1 and re.fullmatch(rb"[0-9]{1,18}", values.pop())


def recorded():
    """The corpus, each case with a request hidden behind it."""
    for name, head, verdict in read((CORPUS / "requests.txt").read_text()):
        words = verdict.split()
        ambiguous = words[0] == "reject" and words[1] in AMBIGUOUS
        if ambiguous and words[1].startswith("content-length"):
            ambiguous = not same_lengths(head)
        forged = b"By=x" if "forged identity" in name else b""
        is_whole = head.endswith((b"\n\r\n", b"\n\n"))
        how = {"ambiguous": ambiguous, "forbidden": forged}
        yield Case(name, head, most=1 + (b"GET" in head[1:]), **how)
        if is_whole:
            yield Case(f"{name}, hidden", head + HIDDEN, **how)
            yield Case(f"{name}, empty chunk, hidden", head + b"0\r\n\r\n" + HIDDEN, **how)
    head = b"POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    for name, body, verdict in read((CORPUS / "chunked.txt").read_text()):
        endless = verdict.removeprefix("reject ") in ENDLESS
        # White space around a size has been allowed, and does no harm once it is gone.
        endless = endless and not re.match(rb"[0-9a-fA-F]+[ \t]+[\r;]", body)
        # Nothing can follow a body without an end.
        yield Case(f"chunked: {name}", head + body, ambiguous=endless, most=1)
        if verdict != "open":
            yield Case(f"chunked: {name}, hidden", head + body + HIDDEN, ambiguous=endless)


def made():
    """Odd bytes in all places around the framing."""
    odd = [*range(0x00, 0x21), 0x22, 0x27, 0x2B, 0x2C, 0x2D, 0x3B, 0x3D, 0x5C, 0x7F, 0x80, 0x85, 0xA0]
    odd += [0xFF]
    chunked = "POST / HTTP/1.1\r\nHost: a\r\n{}\r\n\r\n0\r\n\r\n"
    counted = "POST / HTTP/1.1\r\nHost: a\r\n{}\r\n\r\n"
    places = {
        "before transfer-encoding": (chunked, "<%>Transfer-Encoding: chunked"),
        "after transfer-encoding": (chunked, "Transfer-Encoding<%>: chunked"),
        "before chunked": (chunked, "Transfer-Encoding:<%>chunked"),
        "after chunked": (chunked, "Transfer-Encoding: chunked<%>"),
        "in chunked": (chunked, "Transfer-Encoding: chun<%>ked"),
        "line before transfer-encoding": (chunked, "X: y<%>Transfer-Encoding: chunked"),
        "before content-length": (counted, "<%>Content-Length: 52"),
        "after content-length": (counted, "Content-Length<%>: 52"),
        "before the length": (counted, "Content-Length:<%>52"),
        "after the length": (counted, "Content-Length: 52<%>"),
        "in the length": (counted, "Content-Length: 5<%>2"),
        "length zero and more": (counted, "Content-Length: 0<%>52"),
        "line before content-length": (counted, "X: y<%>Content-Length: 52"),
        "after a length, before chunked": (chunked, "Content-Length: 57\r\nTransfer-Encoding:<%>chunked"),
    }  # fmt: skip
    for place, (template, line) in places.items():
        for value in odd:
            head = template.format(line).encode().replace(b"<%>", bytes([value]))
            # Where the byte is white space that RFC 9112 allows, all is well and the rest is behind.
            name = f"made: 0x{value:02x} {place}"
            yield Case(name, head + HIDDEN, ambiguous="length, before" in place)
    body = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    inside = {
        "before a chunk size": b"<%>34\r\n" + HIDDEN + b"\r\n0\r\n\r\n",
        "after a chunk size": b"34<%>\r\n" + HIDDEN + b"\r\n0\r\n\r\n",
        "in a chunk extension": b"34;a<%>b\r\n" + HIDDEN + b"\r\n0\r\n\r\n",
        "after a chunk": b"1\r\na<%>\r\n0\r\n\r\n" + HIDDEN,
        "in the last chunk": b"0<%>\r\n\r\n" + HIDDEN,
        "before a trailer": b"0\r\n<%>a: b\r\n\r\n" + HIDDEN,
        "in a trailer": b"0\r\na: b<%>c\r\n\r\n" + HIDDEN,
    }
    for place, text in inside.items():
        for value in odd:
            yield Case(f"made: 0x{value:02x} {place}", body + text.replace(b"<%>", bytes([value])))
    around = {
        "in the method": b"GE<%>T /a HTTP/1.1\r\nHost: a\r\n\r\n",
        "in the target": b"GET /a<%>b HTTP/1.1\r\nHost: a\r\n\r\n",
        "in the version": b"GET /a HTTP/1<%>1\r\nHost: a\r\n\r\n",
        "after the version": b"GET /a HTTP/1.1<%>\r\nHost: a\r\n\r\n",
        "in a name": b"GET /a HTTP/1.1\r\nHost: a\r\nX<%>Y: z\r\n\r\n",
        "in a value": b"GET /a HTTP/1.1\r\nHost: a\r\nX: y<%>z\r\n\r\n",
        "in the host": b"GET /a HTTP/1.1\r\nHost: a<%>b\r\n\r\n",
        "before a line": b"GET /a HTTP/1.1\r\nHost: a\r\n<%>X: y\r\n\r\n",
        "before the empty line": b"GET /a HTTP/1.1\r\nHost: a\r\n<%>\r\n",
    }
    for place, text in around.items():
        for value in odd:
            yield Case(f"made: 0x{value:02x} {place}", text.replace(b"<%>", bytes([value])) + HIDDEN)


def sequences():
    """Yields cases that take more than one head: upgrades, tunnels, expectations, forged identities."""
    upgrade = b"GET /up HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    # The application refuses all of these: what comes behind is no tunnel.
    yield Case("upgrade that is refused, hidden", upgrade + b"\r\n" + HIDDEN)
    yield Case(
        "upgrade with a body, hidden in it",
        upgrade + b"Content-Length: 52\r\n\r\n" + HIDDEN,
        ambiguous=True,
    )
    h2c = b"GET /up HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    yield Case("upgrade to h2c is not passed on", h2c, forbidden=b"h2c", most=1)
    yield Case("upgrade to h2c, hidden", h2c + HIDDEN, forbidden=b"h2c")
    connect = b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n"
    yield Case("CONNECT that is refused, hidden", connect + b"\r\n" + HIDDEN)
    yield Case(
        "CONNECT with a length, hidden", connect + b"Content-Length: 52\r\n\r\n" + HIDDEN, True
    )
    for method in (b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE", b"PATCH"):
        head = method + b" /a HTTP/1.1\r\nHost: a\r\nContent-Length: 52\r\n\r\n"
        yield Case(f"{method.decode()} with a body, hidden in it", head + HIDDEN, True)
        head = method + b" /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n34\r\n"
        yield Case(
            f"{method.decode()} with chunks, hidden in them", head + HIDDEN + b"\r\n0\r\n\r\n", True
        )
    expect = b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
    yield Case(
        "Expect, body at once, hidden in it", expect + b"Content-Length: 52\r\n\r\n" + HIDDEN, True
    )
    yield Case("Expect without a body, hidden", expect + b"Content-Length: 0\r\n\r\n" + HIDDEN)
    absolute = b"GET http://public/x HTTP/1.1\r\nHost: internal\r\n\r\n"
    yield Case("the authority of the target and another Host", absolute, most=1)
    names = [b"X-Forwarded-Client-Cert", b"x-forwarded-client-cert", b"X-FORWARDED-CLIENT-CERT"]
    names += [b"X_Forwarded_Client_Cert", b"X-Forwarded_Client-Cert", b"x_forwarded_client_cert"]
    for name in names:
        head = b"GET /x HTTP/1.1\r\nHost: a\r\n" + name + b": URI=spiffe://forged\r\n"
        for what, more in (
            ("", b""),
            (" twice", name + b": URI=spiffe://forged\r\n"),
            (" named by Connection", b"Connection: " + name + b"\r\n"),
        ):
            yield Case(
                f"forged {name.decode()}{what}", head + more + b"\r\n", forbidden=b"forged", most=1
            )
    long = b"GET /x HTTP/1.1\r\nHost: a\r\n"
    yield Case("endless header lines", long + b"X: y\r\n" * 20000, most=0)
    yield Case("endless value", long + b"X: " + b"y" * 200000, most=0)
    yield Case("endless target", b"GET /" + b"y" * 200000, most=0)


def cases():
    everything = [*recorded(), *made(), *sequences()]
    seen = {}
    for case in everything:
        seen.setdefault(case.bytes, case)
    return list(seen.values())
