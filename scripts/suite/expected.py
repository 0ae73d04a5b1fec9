"""Tests that cannot pass on a machine that is only imitated, each with its reason.

A line of the list is the full name of a test, two blanks or more, and why it fails there. A name that ends in `*` stands
for all tests that begin so. Nothing on the list may pass, and nothing else may fail: a list that only grows would hide
what breaks later.
"""

import re


class Expected:
    """The lists, and which of their lines were met."""

    def __init__(self, paths):
        self.paths = " ".join(str(path) for path in paths)
        self.reasons = {}
        for path in paths:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if not line.strip() or line.startswith("#"):
                    continue
                parts = re.split(r"\s{2,}", line.strip(), maxsplit=1)
                if len(parts) != 2:
                    raise SystemExit(f"error: {path}:{number}: a line is a test, two blanks, and why it fails here")
                self.reasons[parts[0]] = f"{path} says that it cannot: {parts[1]}"
        self.met = set()
        self.failed = []

    def entry(self, name):
        """The line that a test is on, or None."""
        if name in self.reasons:
            return name
        return next((e for e in self.reasons if e.endswith("*") and name.startswith(e[:-1])), None)

    def judge(self, outcomes):
        """Passes outcomes on; a test on the list has done right if it failed. One that did not run has done neither."""
        for outcome in outcomes:
            if entry := self.entry(outcome.job.name):
                self.met.add(entry)
                if outcome.skipped:
                    pass
                elif outcome.faults:
                    self.failed.append(outcome)
                    outcome.faults = []
                else:
                    outcome.faults = [f"it passes, but {self.reasons[entry]}"]
            yield outcome

    def unmet(self, jobs):
        """Lines of the lists that no test has, of the programs that these tests are of."""
        programs = {_program(job.name) for job in jobs}
        return [entry for entry in self.reasons if entry not in self.met and _program(entry) in programs]


def _program(name):
    return name.split("::", 1)[0]
