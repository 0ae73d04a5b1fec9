#!/usr/bin/env python3
"""Gives files of a clean clone the age they had when a cache was filled, where their content is the same.

    scripts/restore-ages.py FILE

Cargo builds again what is newer than its last build, and every file of a clone is new. FILE keeps the content hash and
the time of each file and directory of the last clone at the same place; it is read and written anew. A file whose
content differs is new, and so is all of a clone at another place, however old: paths are compiled into tests.
"""

import json
import os
import pathlib
import subprocess
import sys


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def entries():
    """Path and hash of everything that is committed. The hash of a directory is that of all its content."""
    for line in git("ls-tree", "-r", "-t", "-z", "HEAD").split("\0"):
        if line:
            about, path = line.split("\t", 1)
            yield path, about.split()[2]


def main():
    memory = pathlib.Path(sys.argv[1])
    if memory.exists() and not memory.is_file():
        sys.exit(f"error: {memory} is no regular file; it would be replaced by one")
    place = os.getcwd()
    try:
        known = json.loads(memory.read_text())
    except (OSError, ValueError):
        known = {}
    ages = known.get("ages", {}) if known.get("place") == place else {}
    if git("status", "--porcelain"):
        print("note: this is no clean clone: everything of the workspace is built anew")
        ages = {}
    now = {}
    restored = 0
    # The content of a directory first: to change a file's time leaves its directory's alone.
    for path, content in entries():
        old = ages.get(path)
        if old and old[0] == content:
            os.utime(path, ns=(old[1], old[1]), follow_symlinks=False)
            restored += 1
        else:
            os.utime(path, follow_symlinks=False)
        now[path] = [content, os.lstat(path).st_mtime_ns]
    new = memory.with_suffix(".new")
    new.write_text(json.dumps({"place": place, "ages": now}))
    new.replace(memory)
    print(f"{restored} of {len(now)} files and directories are as they were")


if __name__ == "__main__":
    main()
