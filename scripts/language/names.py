"""Finds public types that share a name across crates, and functions named `of`."""

import re

_TYPE = re.compile(r"pub (?:unsafe )?(?:struct|enum|trait|type|union) (\w+)", re.MULTILINE)
_OF = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?fn of\b")

# Reasons why a name may mean two things: (the reason, the crates, the names).
REASONS = [
    ("the resource that a proxy is sent, and the same compiled", {"model", "proxy"},
     "Backend Breaker Cors Dns Egress ExternalAuth Fault Gateway HeaderEdit Inbound InboundPort Jwt KnownWorkload Listener "
     "ListenerTls Mirror Outlier Plugin Policy RateLimit Redirect Rewrite Service ServicePort Target Upstream"),
    ("a failure in words for people, and one that a proxy answers and counts; no crate uses both", {"bench", "proxy"}, "Failure"),
    ("two protocols with one shape, and their users import one of them", {"http2", "transport"},
     "Config Connection ConnectionError Handler"),
    ("the network of a mesh in its bootstrap, and the same made in the kernel", {"model", "redirect"}, "Network"),
    ("a section of the chart's values is called as in the values", {"control", "kube"}, "Controller Issuer"),
    ("a section of the chart's values is called as in the values", {"kube", "bench"}, "Sidecar"),
    ("a section of the chart's values is called as in the values", {"kube", "envoy"}, "Resources"),
    ("why a program could not start, and each program has one", {"control", "proxy"}, "StartError"),
]


def _crate(path):
    parts = path.split("/")
    return parts[1] if parts[0] == "crates" and "src" in parts else None


def _types(files):
    """name → {crate: `file:line` of its first public type of that name}."""
    found = {}
    for path, text in files:
        crate = _crate(path)
        if crate is None:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            match = _TYPE.match(line)
            if match:
                found.setdefault(match[1], {}).setdefault(crate, f"{path}:{number}")
    return found


def _excused(name, reasons):
    return [crates for _, crates, names in reasons if name in names.split()]


def shared(files, reasons=None):
    """A line for each name that public types of several crates share without a reason for all of them."""
    reasons = REASONS if reasons is None else reasons
    found = []
    for name, places in sorted(_types(files).items()):
        excused = any(set(places) <= crates for crates in _excused(name, reasons))
        if len(places) > 1 and not excused:
            found.append(f"{name}: {', '.join(places.values())}")
    return found


def stale(files, reasons=None):
    """A line for each reason whose name is no longer shared by its crates."""
    types = _types(files)
    return [f"{name} of {' and '.join(sorted(crates))} needs no reason any more: remove it from scripts/language/names.py"
            for _, crates, names in (REASONS if reasons is None else reasons)
            for name in names.split()
            if len(crates & set(types.get(name, {}))) < 2]


def functions_named_of(files):
    """`file:line` of each function named `of`."""
    return [f"{path}:{number}: {line.strip()}" for path, text in files
            for number, line in enumerate(text.splitlines(), 1) if _OF.match(line)]
