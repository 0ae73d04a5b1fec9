"""How long each target and each test took, and what was built: kept in build/times, printed as tables."""

import json
import os
import pathlib
import re
import time

import skips
from cargo_tests import ROOT

PLACE = ROOT / "build/times"
# A build of more libraries than this is of a machine that had none of them.
COLD_LIBRARIES = 40

COMPILED = re.compile(r"^\s*(?:Compiling|Checking) \S+ v\S+(?P<own> \(/.*\))?")
FINISHED = re.compile(r"^\s*Finished `(?P<profile>[^`]+)` profile .* in (?:(?P<minutes>\d+)m )?(?P<seconds>[\d.]+)s")
# Scripts that build with something else than Cargo say so in this form.
BUILT = re.compile(r"^built (?P<what>.+) in (?P<seconds>[\d.]+) s$")


class Builds:
    """Reads a target's output line by line, for what it builds."""

    def __init__(self):
        self.rows = []
        self.libraries = 0
        self._units = 0

    def line(self, text):
        """Takes notice of a line."""
        if compiled := COMPILED.match(text):
            self._units += 1
            self.libraries += compiled["own"] is None
        elif finished := FINISHED.match(text):
            seconds = 60 * int(finished["minutes"] or 0) + float(finished["seconds"])
            if self._units:
                self._add(f"cargo, {finished['profile']}", self._units, seconds)
            self._units = 0
        elif built := BUILT.match(text):
            self._add(built["what"], 1, float(built["seconds"]))

    def _add(self, what, units, seconds):
        for row in self.rows:
            if row["what"] == what:
                row["units"] += units
                row["seconds"] = round(row["seconds"] + seconds, 1)
                return
        self.rows.append({"what": what, "units": units, "seconds": round(seconds, 1)})

    def is_cold(self):
        """Whether this was a machine that had built nothing."""
        return self.libraries > COLD_LIBRARIES or any("cargo" not in row["what"] for row in self.rows)


def place(target, kind):
    """Where the account of a target is."""
    return PLACE / f"{target}-{kind}.json"


def keep(target, wall, cpu, builds, tests, passed):
    """Writes down one run of a target."""
    PLACE.mkdir(parents=True, exist_ok=True)
    kind = "cold" if builds.is_cold() else "warm"
    account = {
        "target": target, "kind": kind, "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "passed": passed,
        "wall": round(wall, 1), "cpu": round(cpu, 1), "builds": builds.rows, "tests": tests,
    }
    # Another run may read it meanwhile, and this one may be killed.
    path = place(target, kind)
    new = path.with_suffix(f".{os.getpid()}.new")
    new.write_text(json.dumps(account, indent=1, ensure_ascii=False) + "\n")
    new.replace(path)
    return account


def read(path):
    """An account, or nothing."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def last_walls():
    """Seconds of each test when it last ran here."""
    walls = {}
    for path in sorted(PLACE.glob("*.json"), key=lambda path: path.stat().st_mtime):
        for test in (read(path) or {"tests": []})["tests"]:
            if "skipped" not in test:
                walls[test["name"]] = test["wall"]
    return walls


def minutes(seconds):
    """For people."""
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"


def table(targets, slowest):
    """The account as Markdown: a row per target, then the slowest tests."""
    lines = ["| target | cold | of it building | warm | of it building | CPU, cold and warm | tests |",
             "|---|---|---|---|---|---|---|"]
    totals = {"cold": 0.0, "warm": 0.0}
    tests = []
    for target in targets:
        accounts = {kind: read(place(target, kind)) for kind in totals}
        newest = accounts["warm"] or accounts["cold"]
        if not newest:
            continue
        cells = [f"`{target}`"]
        for kind, account in accounts.items():
            # A target that builds nothing is never cold.
            totals[kind] += (account or newest)["wall"]
            cells += [minutes(account["wall"]), built(account)] if account else ["–", "–"]
        cells.append(", ".join(minutes(account["cpu"]) for account in accounts.values() if account))
        cells.append(skips.count(newest["tests"]) if newest["tests"] else "–")
        tests += newest["tests"]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(f"| all | {minutes(totals['cold'])} | | {minutes(totals['warm'])} | | | {skips.count(tests)} |")
    lines += ["", "| test | wall s | CPU s | waits for, s |", "|---|---|---|---|"]
    for test in sorted(tests, key=lambda test: -test["wall"])[:slowest]:
        lines.append(f"| {test['name']} | {test['wall']:.1f} | {test['cpu']:.1f} | {waits(test)} |")
    return "\n".join(lines)


def built(account):
    """Lists what an account's target built, and how long that took."""
    return ", ".join(f"{row['what']} {minutes(row['seconds'])}" for row in account["builds"]) or "–"


def waits(test, most=2):
    """Lists the longest waits of a test."""
    longest = sorted(test["waits"].items(), key=lambda item: -item[1])[:most]
    told = [f"{what} {seconds:.1f}" for what, seconds in longest if seconds >= 0.5]
    return "; ".join(told) or "–"
