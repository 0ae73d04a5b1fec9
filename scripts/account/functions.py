#!/usr/bin/env python3
"""Prints callgrind's counts per request as Markdown: by part of the program, and by function.

    functions.py [--top N] REQUESTS NAME=FILE ...

One column for each file. A part is found by the source file of an instruction, for much is
inlined; code of the standard library counts for the function that it was inlined into.
"""

import argparse
import collections
import re

# The first that matches "file function" gets the instructions.
PARTS = [
    ("AES-GCM", r"aws-lc|aesni|gcm_|EVP_|CRYPTO_|aes_hw|OPENSSL|poly1305"),
    ("TLS records", r"crates/tls/|rustls|aws_lc_rs|tulle_tls"),
    ("copies of bytes (libc)", r"mem(cpy|move|set|cmp|chr)|_(memcpy|memset|memmove)_"),
    ("clock", r"clock_gettime|Timespec|time/instant|Instant|vdso|pal/unix/time|gettimeofday"),
    ("allocator", r"malloc|calloc|realloc|\bfree\b|_int_free|__rust_alloc|alloc::alloc"),
    ("system call stubs", r"sysdeps/unix/sysv/linux/(recv|send|epoll|read|write|accept)|syscall|errno|cancellation|sys/net/"),
    ("HTTP: parse a head", r"httparse|from_utf8|(http1/src/|tulle_http1::)(request|response|target|field|body|chunk)\w*\b(?!.*::write\b)"),
    ("HTTP: write an edited head", r"crates/http1/|tulle_http1"),
    ("policy, route, endpoint", r"proxy/src/(decision|config|balance|filter|codec|serve|upstream/(mod|lease|connect|dial)\.rs)"),
    ("metrics", r"src/telemetry/(metrics|access_log)\.rs|\bmetrics::"),
    ("request id", r"src/http/reply\.rs"),
    ("frames and streams", r"crates/transport/|tulle_transport|src/upstream/mux/"),
    ("conversation and relay", r"proxy/src/(http|tcp|listener|upstream|worker|context|telemetry|run)\b"),
    ("buffers", r"net/src/buffer\.rs"),
    ("deadlines", r"net/src/deadline\.rs|deadline"),
    ("tokio and mio", r"/tokio-|/mio-|tokio::|mio::"),
    ("hashing", r"hash/sip|siphash|hash::|hashbrown"),
    ("search for bytes", r"memchr"),
    ("conversation and relay", r"tulle_proxy::(http|upstream::(link|tls_stream)|worker)"),
    ("frames and streams", r"tulle_proxy::upstream::mux"),
    ("policy, route, endpoint", r"tulle_proxy::(config|decision|balance|serve|upstream)"),
    ("buffers", r"tulle_net"),
    ("futures", r"poll_fn|future|waker|Waker|task::"),
]
PARTS = [(name, re.compile(rule)) for name, rule in PARTS]
# Runs by the clock, not by requests: code pages that are not needed are given back.
BACKGROUND = re.compile(r"memory::|CharSearcher|StrSearcher")
LIBRARY = re.compile(r"/library/(core|alloc|std)/")
# Functions of libraries whose number of calls says something.
COUNTED = re.compile(
    r"clock_gettime|^__?mem(cpy|move|set)|^_?_?(malloc|calloc|realloc|free)$"
    r"|^(send|recv|epoll_wait|write|read|readv|writev)$"
)


class Profile:
    """Instructions of functions, alone and with what they call, and how often they were called."""

    def __init__(self, path):
        self.own = collections.Counter()  # (file, function)
        self.called = collections.Counter()
        self.inclusive = collections.Counter()
        names = {}
        file = function = callee = "?"
        calls = False

        def name(kind, text):
            number, _, rest = text.partition(" ")
            if not number.startswith("("):
                return text
            if rest:
                names[kind, number] = rest
            return names.get((kind, number), "?")

        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                line = line.rstrip("\n")
                key, equals, value = line.partition("=")
                if equals and key in ("fl", "fi", "fe"):
                    file = name("file", value)
                elif equals and key == "fn":
                    function = name("function", value)
                elif equals and key == "cfn":
                    callee = name("function", value)
                elif equals and key in ("cfi", "cfl"):
                    name("file", value)
                elif equals and key in ("ob", "cob"):
                    name("object", value)
                elif equals and key == "calls":
                    self.called[callee] += int(value.split()[0])
                    calls = True
                elif line and (line[0].isdigit() or line[0] in "+-*"):
                    cost = int(line.split()[1]) if " " in line else 0
                    if BACKGROUND.search(function):
                        pass
                    elif not calls:
                        self.own[file, function] += cost
                        self.inclusive[function] += cost
                    elif callee != function:
                        self.inclusive[function] += cost
                    calls = False
        self.total = sum(self.own.values())

    def parts(self):
        found = collections.Counter()
        for (file, function), cost in self.own.items():
            where = function if LIBRARY.search(file) and "time.rs" not in file else f"{file} {function}"
            part = next((n for n, rule in PARTS if rule.search(where)), "other")
            found[part] += cost
        return found

    def functions(self):
        found = collections.Counter()
        for (_, function), cost in self.own.items():
            found[function] += cost
        return found


def short(name):
    name = re.sub(r"<([\w:]+(?:<\w+>)?) as [^>]+>", r"\1", name)
    name = re.sub(r"<(?:impl )?([\w:]+)>(?=::|$)", r"\1", name)
    name = re.sub(r"'\d+$|@@\S+", "", name)
    name = name.replace("{{closure}}", "{}").replace("tulle_", "")
    return "::".join(name.split("::")[-3:]) if len(name) > 50 else name


def table(head, columns, rows, total):
    print(f"| {head} | " + " | ".join(columns) + " | sum |")
    print("|---|" + "--:|" * (len(columns) + 1))
    for name, cells in rows:
        print(f"| {name} | " + " | ".join(f"{c:,.0f}" for c in cells) + f" | {sum(cells):,.0f} |")
    if total:
        print("| **all** | " + " | ".join(f"**{c:,.0f}**" for c in total) + f" | **{sum(total):,.0f}** |")
    print()


def rows(counters, requests, top):
    names = collections.Counter()
    for counter in counters:
        names.update(counter)
    ordered = [name for name, _ in names.most_common(top)]
    return [(name, [c[name] / requests for c in counters]) for name in ordered]


def show(files, requests, top):
    """The tables; `files` by the names of their columns."""
    columns = list(files)
    profiles = [Profile(path) for path in files.values()]
    total = [p.total / requests for p in profiles]
    table("part", columns, rows([p.parts() for p in profiles], requests, None), total)

    def coded(of):
        return [(f"`{short(name)}`", cells) for name, cells in of]

    alone = rows([p.functions() for p in profiles], requests, top)
    table("function, alone", columns, coded(alone), None)
    # Functions above the request (main, the event loop) include nearly everything and are left out.
    inclusive = [
        collections.Counter({n: c for n, c in p.inclusive.items() if c < 0.93 * p.total})
        for p in profiles
    ]
    table("function, with what it calls", columns, coded(rows(inclusive, requests, top)), None)
    print("| calls | " + " | ".join(columns) + " |\n|---|" + "--:|" * len(columns))
    counters = [
        collections.Counter({n: c for n, c in p.called.items() if COUNTED.search(n)})
        for p in profiles
    ]
    for name, cells in rows(counters, requests, None):
        if sum(cells) >= 0.01:
            print(f"| `{short(name)}` | " + " | ".join(f"{c:,.2f}" for c in cells) + " |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("requests", type=int)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    files = dict(given.split("=", 1) for given in options.files)
    show(files, options.requests, options.top)


if __name__ == "__main__":
    main()
