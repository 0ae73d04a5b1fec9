"""The suites, in the order of the table: how each is run, what its figures say, what is the goal."""

import dataclasses
from collections.abc import Callable

import downgrade
import floods
import framing
import grpc
import h2spec
import identity
import slow
import testssl
import websocket

PROXIES = ["tulle", "nginx", "haproxy", "envoy"]


@dataclasses.dataclass
class Suite:
    title: str
    run: Callable
    # The figure of the table.
    cell: Callable
    # The reason why Tulle misses the goal; none if it is met.
    miss: Callable
    goal: str
    peers: list
    # Whether it belongs to the short form.
    short: bool = True


def mib(count):
    return f"{count / (1 << 20):.0f} MiB"


def framing_cell(found):
    repaired = f", {found['repaired']} repaired" if found["repaired"] else ""
    return f"{found['bad']} bad of {found['cases']:,}{repaired}"


def identity_cell(found):
    return f"{found['cases'] - len(found['accepted'])} of {found['cases']} refused"


def h2spec_cell(found):
    skipped = f", {found['skipped']} skipped" if found["skipped"] else ""
    return f"{found['passed']} pass, {found['failed']} fail{skipped}"


def worst(found, what):
    return max(one[what] for one in found["kinds"].values())


def floods_cell(found):
    cpu, growth = worst(found, "cpu"), worst(found, "growth")
    return f"{found['met']} of {found['cases']} within limits; at worst {cpu:.2f} CPU-s, {mib(growth)}"


def slow_cell(found):
    failed = sum(one["failed"] for one in found["kinds"].values())
    return f"{found['met']} of {found['cases']}; {failed} requests of others failed, {mib(worst(found, 'growth'))}"


def outside(found):
    return [name for name, one in found["kinds"].items() if not one["met"]]


ALL = {
    "framing": Suite(
        "HTTP/1.1 framing and smuggling",
        framing.run,
        framing_cell,
        lambda found: [f"{one['case']}: {one['why']}" for one in found["details"]],
        "0 bad, 0 repaired",
        PROXIES,
    ),
    "downgrade": Suite(
        "HTTP/2 to HTTP/1.1",
        downgrade.run,
        framing_cell,
        lambda found: [f"{one['case']}: {one['why']}" for one in found["details"]],
        "0 bad",
        PROXIES,
    ),
    "identity": Suite(
        "Peer identity",
        identity.run,
        identity_cell,
        lambda found: found["accepted"],
        "all refused but the right one",
        PROXIES,
    ),
    "h2spec": Suite(
        "h2spec `--strict`",
        h2spec.run,
        h2spec_cell,
        lambda found: found["details"] or (["less than 145 passed"] if found["passed"] < 145 else []),
        "0 fail",
        PROXIES,
    ),
    "floods": Suite(
        "HTTP/2 floods",
        floods.run,
        floods_cell,
        outside,
        f"each: connection ended, at most {floods.CPU} CPU-s, {mib(floods.GROWTH)}",
        PROXIES,
    ),
    "grpc": Suite(
        "gRPC interoperability",
        grpc.run,
        lambda found: f"{found['passed']} of {found['cases']}",
        lambda found: found["details"],
        "as direct",
        ["direct", *PROXIES],
    ),
    "websocket": Suite(
        "WebSocket (Autobahn)",
        websocket.run,
        lambda found: f"{found['through']} of {found['cases']} pass, {found['same']} as direct",
        lambda found: found["details"],
        "all as direct",
        PROXIES,
    ),
    "slow": Suite(
        "Slow clients",
        slow.run,
        slow_cell,
        outside,
        f"all others served, at most {mib(slow.GROWTH)}",
        PROXIES,
    ),
    "testssl": Suite(
        "TLS (testssl.sh)",
        testssl.run,
        lambda found: f"{found['bad']} above LOW, {found['low']} LOW",
        lambda found: found["details"],
        "0 above LOW",
        PROXIES,
        short=False,
    ),
}
