"""Finds comment blocks that open with a headless word.

A block is a run of comment lines of one kind. A paragraph after a blank line of a doc comment opens no block.
"""

import os
import pathlib
import re

HEADLESS = ("Of", "What", "Who", "Whom", "Whose", "That", "By")
_SKIPPED = {".git", "target", "build"}
_COMMENT = re.compile(r"\s*(//[/!]?)\s?(.*)")
_WORD = re.compile(r"[A-Za-z']+")


def sources(root):
    """Every Rust source below `root`, relative to it and in order, without what is built."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        found += [pathlib.Path(folder, name).relative_to(root) for name in files if name.endswith(".rs")]
    return sorted(found)


def openings(text):
    """The line number and the text of the first line of each comment block."""
    kind, gap = None, False
    for number, line in enumerate(text.splitlines(), 1):
        match = _COMMENT.match(line)
        if not match:
            kind = None
            continue
        if match[1] != kind:
            yield number, match[2]
            gap = False
        elif gap and kind == "//" and match[2].strip():
            yield number, match[2]
        kind, gap = match[1], not match[2].strip()


def headless(files):
    """`file:line: text` of each block of (path, text) that opens with a headless word."""
    found = []
    for path, text in files:
        for number, first in openings(text):
            word = _WORD.match(first)
            if word and word[0] in HEADLESS:
                found.append(f"{path}:{number}: {first}")
    return found
