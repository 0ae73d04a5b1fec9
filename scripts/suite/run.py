"""Runs tests several at once, each in a process of its own, the longest first."""

import os
import pathlib
import select
import shutil
import signal
import sys
import tempfile
import time

import skips
from process import Running

# Tests wait more than they compute.
PER_PROCESSOR = 3
# A limit against hanging, not a measurement: the slowest test takes a fifth of it on a busy machine.
LIMIT_SECONDS = 300
# Rows that are worth a line while tests run.
SLOW_SECONDS = 10.0


class Outcome:
    """The outcome of a test in one run."""

    def __init__(self, job, found, log):
        self.job = job
        self.wall = found["wall"]
        self.cpu = found["cpu"]
        self.waits = found["waits"]
        self.faults = []
        if found.get("cut"):
            self.faults.append(f"it was ended after {self.wall:.0f} s")
        elif found["code"] != 0:
            self.faults.append(f"exit code {found['code']}")
        if found.get("left"):
            self.faults.append("it left processes behind: " + "; ".join(found["left"]))
        self.log = log
        # A test that failed has run.
        self.skipped, self.left_out = skips.said(log) if not self.faults else (None, None)

    def row(self):
        """As it is kept in the account."""
        row = {"name": self.job.name, "wall": round(self.wall, 2), "cpu": round(self.cpu, 2), "waits": self.waits}
        row |= {"skipped": self.skipped} if self.skipped else {}
        return row | ({"left_out": self.left_out} if self.left_out else {})


def run(jobs, at_once=None, limit=LIMIT_SECONDS, **how):
    """Runs all jobs and yields an `Outcome` for each as it ends. Ctrl-C ends what runs."""
    at_once = at_once or PER_PROCESSOR * (os.cpu_count() or 1)
    waiting = list(reversed(jobs))
    running = {}
    poll = select.poll()
    place = pathlib.Path(tempfile.mkdtemp(prefix="tulle-suite-"))
    number = 0
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                number += 1
                job = waiting.pop()
                one = Running(job, str(place / f"{number}.log"), str(place / f"{number}.waits"), **how)
                running[one.pidfd] = one
                poll.register(one.pidfd, select.POLLIN)
            ended = [fd for fd, _ in poll.poll(1000)]
            for fd in ended:
                one = running.pop(fd)
                poll.unregister(fd)
                yield Outcome(one.job, one.result(), pathlib.Path(one.log).read_text(errors="replace"))
                os.unlink(one.log)
            for one in running.values():
                if time.monotonic() - one.begun > limit:
                    one.end()
    finally:
        for one in running.values():
            one.end()
        for one in running.values():
            one.result()
        shutil.rmtree(place, ignore_errors=True)


def tell(outcomes, show=lambda line: print(line, flush=True)):
    """Prints what is worth it while outcomes arrive; returns them all and those that failed."""
    everything, failed = [], []
    for outcome in outcomes:
        everything.append(outcome)
        if outcome.faults:
            failed.append(outcome)
            show(f"FAILED {outcome.job.name}: {', '.join(outcome.faults)}")
            show("".join(f"    {line}\n" for line in outcome.log.splitlines()[-200:]))
        elif outcome.wall >= SLOW_SECONDS:
            show(f"ok     {outcome.job.name}  {outcome.wall:.1f} s, CPU {outcome.cpu:.1f} s")
    return everything, failed


def interruptible():
    """Makes SIGTERM end a run as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
