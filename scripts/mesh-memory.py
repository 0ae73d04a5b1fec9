#!/usr/bin/env python3
"""Measures what the demo's whole mesh takes while nobody calls: memory of each process right after the start and a minute
later, and CPU in the minute after that. Fails above the budgets, which docs/machines.md has, too: `make test-memory`.

    python3 -B scripts/mesh-memory.py            target/release
    python3 -B scripts/mesh-memory.py DIRECTORY  programs from elsewhere; demo/mesh.yaml still names target/release/bookinfo
    scripts/binfmt.sh arm64 python3 -B scripts/mesh-memory.py DIRECTORY
                                                 programs of another architecture: memory right after the start, without what
                                                 qemu needs to run them, and nothing else, because qemu's time is not theirs

It takes two and a half minutes, on a machine that does nothing else. As root, for namespaces.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Resident memory of all in MiB after a minute, and percent of a core.
MEMORY, CPU = 60.0, 0.5
MINUTE = 60
KINDS = ("Rss", "Pss", "Anonymous")
# qemu's user mode keeps what is its own above this address, and the memory of the program that it runs below.
BELOW_QEMU = 1 << 40


def is_foreign(program):
    """Whether a program is of another architecture than the interpreter of this script."""
    with open(program, "rb") as theirs, open("/proc/self/exe", "rb") as own:
        return theirs.read(20)[4:20:14] != own.read(20)[4:20:14]  # 32 or 64 bits; machine


def processes(directory):
    """The mesh's own processes, whose programs are in `directory`: number and role of each."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            program = pathlib.Path(os.readlink(entry / "exe"))
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if program.name.startswith("qemu-") and len(words) > 2:
            words = words[1:]
            program = pathlib.Path(words[0]).resolve()
        if program.parent != directory or program.name not in ("tulle", "tulle-proxy"):
            continue
        role = {"controller": "controller", "janitor": "janitor"}.get(words[1], "supervisor")
        found.append((int(entry.name), "sidecars and gateway" if program.name == "tulle-proxy" else role))
    return found


def memory(pid, foreign):
    sums, counts = dict.fromkeys(KINDS, 0.0), True
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if start := re.match(r"([0-9a-f]+)-", line):
            counts = not foreign or int(start[1], 16) < BELOW_QEMU
        elif counts and (field := re.match(rf"({'|'.join(KINDS)}):\s+(\d+)", line)):
            sums[field[1]] += int(field[2]) / 1024
    return sums


def ticks(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def table(directory, when, foreign=False):
    """Prints a row for each role; returns the resident memory of all."""
    rows = {}
    for pid, role in processes(directory):
        count, sums = rows.get(role, (0, dict.fromkeys(KINDS, 0.0)))
        found = memory(pid, foreign)
        rows[role] = (count + 1, {kind: sums[kind] + found[kind] for kind in KINDS})
    rows["all"] = (sum(count for count, _ in rows.values()),
                   {kind: sum(sums[kind] for _, sums in rows.values()) for kind in KINDS})
    print(f"\n{when}, MiB\n\n| processes | | resident | of it their own, anonymous | proportional |\n|---|--:|--:|--:|--:|")
    for role, (count, sums) in sorted(rows.items(), key=lambda row: row[0] == "all"):
        print(f"| {role} | {count} | {sums['Rss']:.1f} | {sums['Anonymous']:.1f} | {sums['Pss']:.1f} |")
    return rows["all"][1]["Rss"]


def main():
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release").resolve()
    tulle = str(directory / "tulle")
    if not os.path.exists(tulle):
        print(f"error: there is no {tulle}: make build", file=sys.stderr)
        return 1
    if before := processes(directory):
        print(f"error: a mesh of these programs is up already (process {before[0][0]}): tulle down", file=sys.stderr)
        return 1
    foreign = is_foreign(tulle)
    with tempfile.TemporaryDirectory() as state:
        which = ["--state", state, "--name", f"m{os.getpid() % 100000}"]
        try:
            # qemu knows no `SO_ORIGINAL_DST`, which redirection needs.
            how = ["--loopback"] if foreign else []
            subprocess.run([tulle, "up", "--detach", *how, "demo/mesh.yaml", *which], cwd=ROOT, check=True)
            table(directory, "Right after the start", foreign)
            if foreign:
                return 0
            time.sleep(MINUTE)
            resident = table(directory, "After a minute")
            begun, used = time.monotonic(), {pid: ticks(pid) for pid, _ in processes(directory)}
            time.sleep(MINUTE)
            spent = sum(ticks(pid) - used.get(pid, 0) for pid, _ in processes(directory)) / os.sysconf("SC_CLK_TCK")
            share = 100 * spent / (time.monotonic() - begun)
        finally:
            subprocess.run([tulle, "down", *which], cwd=ROOT, check=False)
    print(f"\n{resident:.1f} MiB resident, at most {MEMORY:.0f}; {share:.2f} % of a core, at most {CPU}")
    return 0 if resident <= MEMORY and share <= CPU else 1


if __name__ == "__main__":
    sys.exit(main())
