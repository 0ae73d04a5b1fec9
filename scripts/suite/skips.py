"""Tests that could not run where they were, and said so.

A test that cannot run says `skipped: REASON` in a line of its own and returns; one that leaves a part out says `skipped in
part: REASON`. Either has passed for all that its exit code tells, and has tried nothing, or less.
"""

import re

import expected

# The harness has begun the line with the test's name on a machine with one processor.
SAID = re.compile(r"^(?:test .+ \.\.\. )?skipped(?P<part> in part)?: (?P<reason>.+)$", re.MULTILINE)
# Tests that are named beside the reason they share.
NAMED = 3


def said(log):
    """The reasons for which a test did not run, and for which a part of it did not; None: it did."""
    whole = part = None
    for line in SAID.finditer(log):
        reason = line["reason"].strip()
        if line["part"]:
            part = part or reason
        else:
            whole = whole or reason
    return whole, None if whole else part


def summary(rows):
    """A line for each reason, the most frequent first, of tests as the account has them."""
    lines = []
    for key, what in (("skipped", "skipped"), ("left_out", "skipped in part")):
        by_reason = {}
        for row in rows:
            if key in row:
                by_reason.setdefault(row[key], []).append(row["name"])
        for reason, names in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
            named = f" ({', '.join(sorted(set(names)))})" if len(set(names)) <= NAMED else ""
            lines.append(f"{what} {len(names)}: {reason}{named}")
    return lines


def count(rows):
    """The number of tests that ran, and of those that did not."""
    skipped = sum("skipped" in row for row in rows)
    return f"{len(rows) - skipped}, {skipped} skipped" if skipped else str(len(rows))


class Allowed(expected.Expected):
    """Lists of tests that may be skipped, which need not be; any other that is has failed."""

    def judge(self, outcomes):
        for outcome in outcomes:
            reason = outcome.skipped or outcome.left_out
            if entry := self.entry(outcome.job.name):
                self.met.add(entry)
            elif reason:
                outcome.faults = [f"it was skipped, and {self.paths} does not say that it may be: {reason}"]
                outcome.skipped = outcome.left_out = None
            yield outcome
