"""Tests that wrong certificates are refused: clients by the server's sidecar, and impostors by the client's.
The verdict comes from what the application or impostor received.
"""

import contextlib
import socket
import ssl
import threading

import app
from lab import CLIENT, SERVER, TRUST_DOMAIN, Authority, connect, free_port, issue, read_to_end, spiffe
from peers import Hop

REQUEST = b"GET /secret HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def general_names(*names):
    """A subjectAltName in DER, for names that OpenSSL's configuration cannot say: (tag, bytes)."""
    inner = b"".join(bytes([tag, len(value)]) + value for tag, value in names)
    return "DER:" + (bytes([0x30, len(inner)]) + inner).hex()


def certificates(lab, name, usage, other_usage):
    """(what, certificate and key or none): all wrong but the last, for the workload `name`."""
    right, own = spiffe(name), lab.place("certificates")
    domain = lambda text: f"spiffe://{text}/svc/{name}"
    stems = iter(range(1000))
    authority = lab.authority

    def made(uris=(right,), common=name, issuer=(authority.certificate, authority.key), **how):
        names = [f"URI:{uri}" for uri in uris]
        return issue(*issuer, own / str(next(stems)), common, how.pop("names", names), **how)

    foreign = Authority(own / "foreign")
    workload = made([spiffe("other")], "other")
    nul = right.encode() + b"\0.evil"
    yield "another workload", workload
    yield "another authority of the same name", made(issuer=(foreign.certificate, foreign.key))
    yield "signed by a workload", made(issuer=workload)
    yield "another trust domain", made([domain("other.local")])
    yield "a trust domain that ours begins", made([domain(f"{TRUST_DOMAIN}.evil")])
    yield "a trust domain that ends in ours", made([domain(f"evil{TRUST_DOMAIN}")])
    yield "the id and more", made([right + "2"], name + "2")
    yield "the id and a segment", made([right + "/sub"], name + "/sub")
    yield "the id but its last letter", made([right[:-1]], name[:-1])
    yield "a dot segment", made([f"spiffe://{TRUST_DOMAIN}/svc/x/../{name}"], f"x/../{name}")
    yield "a trailing slash", made([right + "/"], name + "/")
    yield "capitals", made([spiffe(name.capitalize())], name.capitalize())
    yield "percent-encoded", made([spiffe(f"%{ord(name[0]):x}{name[1:]}")], f"%{name[1:]}")
    yield "a query behind the id", made([right + "?a=b"])
    yield "the id, NUL and more", made(names=[general_names((0x86, nul))])
    yield "the id as a DNS name", made(names=[general_names((0x82, right.encode()))])
    yield "the id as an address of mail", made(names=[general_names((0x81, right.encode()))])
    yield "two ids, the right one first", made([right, spiffe("other")])
    yield "two ids, the right one last", made([spiffe("other"), right])
    yield "no names but the common one", made([])
    yield "for the other side's use only", made(usage=other_usage)
    yield "for no use that is named", made(usage="")
    yield "for another use", made(usage="codeSigning")
    yield "expired", made(begin=-7200, end=-3600)
    yield "not valid yet", made(begin=3600, end=7200)
    yield "an authority's certificate", made(is_authority=True, usage=usage)
    yield "none", None
    yield "plaintext", "plaintext"
    yield "the right one", made(usage=usage)


def context(side, certificate, lab, version=ssl.TLSVersion.TLSv1_3):
    made = ssl.SSLContext(side)
    made.minimum_version = made.maximum_version = version
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.set_alpn_protocols(["http/1.1"])
    if isinstance(certificate, tuple):
        made.load_cert_chain(*certificate)
    return made


def to_server(peer, lab):
    """Names of the certificates with which a request reached the application."""
    recorder = lab.add(app.Recorder())
    place = peer.server(lab, recorder.port)
    accepted, count = [], 0
    tries = [(what, pair, ssl.TLSVersion.TLSv1_3) for what, pair in
             certificates(lab, CLIENT, "clientAuth", "serverAuth")]  # fmt: skip
    tries.insert(-1, ("the right one with TLS 1.2", tries[-1][1], ssl.TLSVersion.TLSv1_2))
    for what, certificate, version in tries:
        count += 1
        with contextlib.suppress(OSError):
            connection = connect(place.inbound, 5)
            with contextlib.ExitStack() as stack:
                stack.enter_context(connection)
                if certificate != "plaintext":
                    tls = context(ssl.PROTOCOL_TLS_CLIENT, certificate, lab, version)
                    connection = stack.enter_context(tls.wrap_socket(connection))
                connection.sendall(REQUEST)
                read_to_end(connection)
        if any(event[0] == "request" for event in recorder.take()):
            accepted.append(what)
    return count, accepted


class Impostor(app.Server):
    """Takes TLS with whatever certificate it is given, and notes what it is sent."""

    def __init__(self):
        self.tls = None
        self.received = b""
        self.done = threading.Event()
        super().__init__()

    def serve(self, connection):
        try:
            connection.settimeout(5)
            if self.tls:
                connection = self.tls.wrap_socket(connection, server_side=True)
            with connection:
                self.received += connection.recv(65536)
                connection.sendall(ANSWER)
        finally:
            self.done.set()


def to_client(peer, lab):
    """Names of the certificates that were sent a request."""
    impostor = lab.add(Impostor())
    port = free_port()
    peer.start_hop(lab, Hop("client", port, impostor.port, tls_out=True))
    sent, count = [], 0
    for what, certificate in certificates(lab, SERVER, "serverAuth", "clientAuth"):
        if certificate is None:
            # No cipher without one.
            continue
        count += 1
        plain = certificate == "plaintext"
        impostor.tls = None if plain else context(ssl.PROTOCOL_TLS_SERVER, certificate, lab)
        if impostor.tls:
            impostor.tls.num_tickets = 0
            impostor.tls.verify_mode = ssl.CERT_OPTIONAL
            impostor.tls.load_verify_locations(lab.authority.certificate)
        impostor.received = b""
        with connect(port, 15) as client:
            client.sendall(REQUEST)
            read_to_end(client)
        if not impostor.done.wait(10):
            raise RuntimeError(f"{peer.name} did not even try an impostor: {what}")
        impostor.done.clear()
        if b"/secret" in impostor.received:
            sent.append(what)
    return count, sent


def run(peer, lab, options):
    result = {"cases": 0, "accepted": []}
    for side, check in (("server", to_server), ("client", to_client)):
        count, accepted = check(peer, lab)
        if accepted[-1:] != ["the right one"]:
            raise RuntimeError(f"the right certificate was refused ({side}'s sidecar)")
        result["cases"] += count - 1
        result["accepted"] += [f"{what} ({side})" for what in accepted[:-1]]
    return result
