"""Writes licences of the libraries that are in a program, as their licences ask of whoever passes the program on.

Texts come from the sources that cargo has fetched. The same text is printed once, with all libraries that have it.
"""

import re

NAMES = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)([-_.].*)?$", re.IGNORECASE)
# Sources that are no text about a licence, whatever they are called.
CODE = {".rs", ".c", ".h", ".py", ".go", ".sh", ".html", ".json", ".toml"}
# C libraries within a crate stand so deep: aws-lc-sys/aws-lc/third_party/fiat/LICENSE.
DEPTH = 4


def texts(directory):
    """Texts of the licences of a crate and of the sources that it carries."""
    for path in sorted(directory.rglob("*")):
        deep = len(path.relative_to(directory).parts)
        if deep <= DEPTH and NAMES.match(path.name) and path.suffix.lower() not in CODE and path.is_file():
            yield path.read_text(encoding="utf-8", errors="replace")


def blanks_alike(text):
    return " ".join(text.split())


def document(version, target, every):
    """The whole text, and the libraries without one of their own."""
    # Tulle's own crates have Tulle's licence.
    every = [library for library in every if library.linked and library.registry]
    every.sort(key=lambda library: (library.name, library.version))
    owners, first = {}, {}
    for library in every:
        for text in texts(library.directory) if library.directory else ():
            key = blanks_alike(text)
            if key:
                first.setdefault(key, text)
                holders = owners.setdefault(key, [])
                if library not in holders:
                    holders.append(library)
    with_text = {library for holders in owners.values() for library in holders}
    lines = [
        f"Libraries in tulle {version}",
        "",
        "Tulle itself is licensed under Apache-2.0. Its programs contain the following libraries. Where a library has a choice",
        "of licences all of them are printed. Libraries of C within a crate are listed with that crate.",
        "",
        "    Rust's standard library: MIT OR Apache-2.0",
        *(["    musl: MIT, Copyright (c) 2005-2020 Rich Felker, et al."] if "musl" in target else []),
        *(["    glibc and libgcc: LGPL-2.1-or-later and GPL-3.0 with the runtime exception, linked statically as Debian has them,",
           "    unchanged; Tulle's sources make the programs again with another glibc (scripts/build-static.sh)"]
          if "gnu" in target else []),
    ]
    for library in every:
        note = "" if library in with_text else " (its package has no text; texts of this licence follow)"
        lines.append(f"    {library.name} {library.version}: {library.licence or 'see its text'}{note}")
    for key in sorted(owners, key=lambda key: [(o.name, o.version) for o in owners[key]]):
        names = ", ".join(f"{library.name} {library.version}" for library in owners[key])
        lines += ["", "=" * 80, names, "=" * 80, "", first[key].strip("\n").replace("\r\n", "\n")]
    return "\n".join(lines) + "\n", [library for library in every if library not in with_text]
