"""HTTP/1.1 framing and smuggling: what the application behind two sidecars receives.

The verdict comes from those bytes alone, never from a status. A case is a bad forward if the
application got what a strict reader refuses or two readers would take for different requests, a
request that was hidden where RFC 9112 leaves none to be found, or an identity that the client forged.
Counted beside it: a body without a valid end that arrived with one. Its reader is not misled.
"""

import concurrent.futures
import time

import app
import corpus
from lab import connect

# Until the far side is taken to have said all it will. A longer wait finds nothing more: what comes
# late is judged with the next case on the same lane.
QUIET = 0.12
LANES = 4


def exchange(port, data, quiet=QUIET):
    """Sends, reads until nothing more comes, and closes."""
    with connect(port, 10) as client:
        try:
            client.sendall(data)
        except OSError:
            pass
        client.settimeout(quiet)
        try:
            while client.recv(65536):
                pass
        except OSError:
            pass


def settle(recorder):
    """Waits until what is on its way has arrived."""
    time.sleep(0.003)
    while time.monotonic() - recorder.busy < 0.006:
        time.sleep(0.003)


def verdict(case, events):
    """Why it is a bad forward; none: it is not."""
    requests = [event for event in events if event[0] == "request"]
    for event in events:
        if event[0] == "unclear":
            return f"unclear: {event[1]}"
        if case.forbidden and case.forbidden in event[-1]:
            return f"forged: the application received {case.forbidden.decode()!r}"
    targets = [event[1].target for event in requests]
    if case.ambiguous and b"/hidden" in [target.removeprefix(b"http://hidden") for target in targets]:
        return "smuggled: a hidden request arrived"
    if len(requests) > case.most:
        return f"smuggled: {len(requests)} requests arrived"
    if case.ambiguous and case.name.startswith("chunked: ") and requests:
        return "repaired: a faulty body arrived as a complete one"
    return None


def judge(place, recorder, cases):
    """The bad ones, and how many were forwarded at all."""
    bad, forwarded = [], 0
    for case in cases:
        exchange(place.port, case.bytes)
        settle(recorder)
        events = recorder.take()
        forwarded += bool(events)
        why = verdict(case, events)
        if why and not why.startswith("unclear"):
            # On a busy machine what arrives may be late and of the case before: with more time.
            time.sleep(4 * QUIET)
            recorder.take()
            exchange(place.port, case.bytes, 4 * QUIET)
            time.sleep(QUIET)
            events = recorder.take()
            why = verdict(case, events)
        if why:
            received = b"".join(event[-1] for event in events)
            shown = {"sent": show(case.bytes), "received": show(received)}
            bad.append({"case": case.name, "why": why, **shown})
    return bad, forwarded


def lane(place, recorder, cases):
    found = judge(place, recorder, cases)
    # The proxy still works.
    with connect(place.port, 10) as client:
        client.sendall(b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        if not client.recv(100).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("after the corpus, an ordinary request is not answered with 200")
    return found


def result(cases, forwarded, bad):
    kinds = {}
    for one in bad:
        kind = one["why"].split(":")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    return {
        "cases": len(cases),
        "forwarded": forwarded,
        "repaired": kinds.pop("repaired", 0),
        "bad": sum(kinds.values()),
        "kinds": kinds,
        "details": bad,
    }


def show(data):
    return repr(data[:400])[2:-1]


def run(peer, lab, options):
    cases = corpus.cases()
    if options.short:
        # Every case of the corpus of files; of those that are made, one of five.
        cases = [c for at, c in enumerate(cases) if not c.name.startswith("made") or at % 5 == 0]
    return in_lanes(lab, peer.pair, lane, cases)


def in_lanes(lab, start, lane, cases):
    """Each lane has a proxy of its own, so that bytes are known to be those of its case."""
    with concurrent.futures.ThreadPoolExecutor(LANES) as pool:
        work = []
        for at in range(LANES):
            recorder = lab.add(app.Recorder())
            place = start(lab, recorder.port)
            work.append(pool.submit(lane, place, recorder, cases[at::LANES]))
        done = [future.result() for future in work]
    bad = [one for lane_bad, _ in done for one in lane_bad]
    return result(cases, sum(count for _, count in done), bad)
