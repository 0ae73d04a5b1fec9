"""Runs the checks of this repository and says how long each takes.

    python3 -B scripts/suite test                    every Rust test, several at once
    python3 -B scripts/suite test --times 20 --load 2 -- --package tulle-tls
    python3 -B scripts/suite targets lint test gate  make targets in order; writes down wall and CPU time
    python3 -B scripts/suite times                   what was written down, as tables

For scripts that run tests by themselves:

    python3 -B scripts/suite programs -- --package tests-kube   builds test programs; name and path of each
    python3 -B scripts/suite note NAME --wall 3 --cpu 1 --waits FILE   adds a test to the account
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

import cargo_tests
import expected
import page
import process
import run
import skips
import times
from cargo_tests import ROOT

# These compare the whole machine before and after, measure on it, want a port back that another mesh may take, or fill all
# the memory that the kernel has for sockets.
ALONE = ("redirect/namespaces::", "tests/local/bench_", "tests/local/mesh::revoked::a_revocation_takes_effect",
         "tests/local/mesh::policy::a_change_takes_effect", "tests/local/mesh::scraping::", "tests/local/proxy::greedy::",
         "tests/local/mesh::returning_host::a_host_whose_address_changes", "tests/local/mesh::slow_link::joining_",
         "tests/local/mesh::slow_link::a_change_")


def options():
    parser = argparse.ArgumentParser(prog="scripts/suite", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    test = commands.add_parser("test", help="run Rust tests")
    test.add_argument("--only", action="append", default=[], help="tests whose name contains this, or another such text")
    test.add_argument("--below", default="", help="tests whose name begins so")
    test.add_argument("--times", type=int, default=1, help="run each test this often")
    test.add_argument("--jobs", type=int, help="tests at once (default: 3 per processor)")
    test.add_argument("--load", type=int, default=0, help="busy processes beside the tests")
    test.add_argument("--limit", type=int, default=run.LIMIT_SECONDS, help="seconds that one test may take")
    test.add_argument("--stdin", choices=("null", "closed"), default="null", help="standard input of tests")
    test.add_argument("--ignored", action="store_true", help="run the tests that are marked so, and no others")
    test.add_argument("--ignore-interrupt", action="store_true", help="start tests with SIGINT ignored")
    test.add_argument("--expected", action="append", type=pathlib.Path,
                      help="list of tests that must fail here, with reasons; may be said again")
    test.add_argument("--skips", action="append", type=pathlib.Path,
                      help="list of tests that may be skipped here, with reasons: any other that is fails; may be said again")
    test.add_argument("cargo", nargs="*", help="arguments of cargo test, after --")
    targets = commands.add_parser("targets", help="run make targets and write down their times")
    targets.add_argument("target", nargs="+")
    targets.add_argument("--keep-going", action="store_true", help="run the others when one fails")
    targets.add_argument("--page", type=pathlib.Path, help="write the results as a page")
    shown = commands.add_parser("times", help="print the times written down")
    shown.add_argument("target", nargs="+")
    shown.add_argument("--slowest", type=int, default=25, help="number of tests to list")
    shown.add_argument("--write", type=pathlib.Path, help="replace the tables of this page")
    programs = commands.add_parser("programs", help="build test programs, print name and path of each")
    programs.add_argument("cargo", nargs="+", help="arguments of cargo test, after --")
    noted = commands.add_parser("note", help="add a test to the account of the target that runs it")
    noted.add_argument("name")
    noted.add_argument("--wall", type=float, required=True, help="seconds")
    noted.add_argument("--cpu", type=float, required=True, help="seconds")
    noted.add_argument("--waits", required=True, help="file with what it waited for, if it exists")
    noted.add_argument("--log", type=pathlib.Path, help="its output, which says so if it was skipped")
    return parser.parse_args()


def test(given):
    """Builds and runs tests; 1 if one failed."""
    jobs = cargo_tests.jobs(cargo_tests.build(given.cargo or ["--workspace"]), given.ignored)
    jobs = [job for job in jobs if job.name.startswith(given.below)]
    jobs = [job for job in jobs if not given.only or any(only in job.name for only in given.only)]
    if not jobs:
        wanted = " or ".join(f"`{only}`" for only in given.only or [given.below])
        print(f"error: no test has {wanted} in its name", file=sys.stderr)
        return 64
    walls = times.last_walls()
    # A test that is new here may be a long one.
    jobs.sort(key=lambda job: -walls.get(job.name, 30.0))
    # Not one after itself: tests that wait for the same lock would only wait.
    jobs = jobs * given.times
    together = [job for job in jobs if not job.name.startswith(ALONE)]
    alone = [job for job in jobs if job.name.startswith(ALONE)]
    how = {"limit": given.limit, "stdin": given.stdin, "ignore_interrupt": given.ignore_interrupt}
    listed = expected.Expected(given.expected) if given.expected else None
    allowed = skips.Allowed(given.skips) if given.skips else None

    def judged(outcomes):
        for one in filter(None, (listed, allowed)):
            outcomes = one.judge(outcomes)
        return outcomes

    begun = time.monotonic()
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(given.load)]
    try:
        outcomes, failed = run.tell(judged(run.run(together, at_once=given.jobs, **how)))
        more = run.tell(judged(run.run(alone, at_once=1, **how)))
    finally:
        for loop in busy:
            loop.kill()
            loop.wait()
    outcomes += more[0]
    failed += more[1]
    rows = [outcome.row() for outcome in outcomes]
    note(rows)
    cpu = sum(outcome.cpu for outcome in outcomes)
    for line in skips.summary(rows):
        print(line)
    for outcome in failed:
        print(f"FAILED {outcome.job.name}")
    as_listed = len(listed.failed) if listed else 0
    lists = [one for one in (listed, allowed) if one and not given.only]
    unmet = [(entry, one.reasons[entry]) for one in lists for entry in one.unmet(jobs)]
    for entry, reason in unmet:
        print(f"FAILED {entry}: there is no such test, but {reason}")
    skipped = sum("skipped" in row for row in rows)
    also = f", {as_listed} failed as listed" if listed else ""
    print(f"{len(outcomes) - len(failed) - as_listed - skipped} tests passed, {skipped} skipped, {len(failed)} failed{also}, in "
          f"{time.monotonic() - begun:.0f} s (CPU {cpu:.0f} s)")
    return 1 if failed or unmet else 0


def note(rows):
    """Adds tests to the account of the target that runs them."""
    if path := os.environ.get("TULLE_SUITE_TESTS"):
        with open(path, "a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def programs(given):
    """Builds test programs and prints them."""
    for _, name, kind, program, _ in cargo_tests.build(given.cargo):
        if kind == "test":
            print(name, program)
    return 0


def noted(given):
    """Adds a test that somebody else has run."""
    row = {"name": given.name, "wall": round(given.wall, 2), "cpu": round(given.cpu, 2), "waits": process.read_waits(given.waits)}
    whole, part = skips.said(given.log.read_text(errors="replace")) if given.log else (None, None)
    row |= {"skipped": whole} if whole else {}
    note([row | ({"left_out": part} if part else {})])
    return 0


def targets(given):
    """Runs make targets; 1 if one failed."""
    accounts = []
    for target in given.target:
        accounts.append(one_target(target))
        if not accounts[-1]["passed"] and not given.keep_going:
            break
    print(page.summary(accounts))
    if given.page:
        given.page.parent.mkdir(parents=True, exist_ok=True)
        given.page.write_text(page.results(accounts))
        print(f"The page is {given.page}")
    return 0 if all(account["passed"] for account in accounts) else 1


def one_target(target):
    print(f"=== make {target} ({time.strftime('%H:%M:%S')})", flush=True)
    times.PLACE.mkdir(parents=True, exist_ok=True)
    rows = times.PLACE / f"{target}.tests"
    rows.unlink(missing_ok=True)
    builds = times.Builds()
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    made = subprocess.Popen(["make", "--no-print-directory", target], cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace",
                               env={**os.environ, "TULLE_SUITE_TESTS": str(rows)})
    for line in made.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        builds.line(line.rstrip("\n"))
    passed = made.wait() == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    tests = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    rows.unlink(missing_ok=True)
    return times.keep(target, time.monotonic() - begun, cpu, builds, tests, passed)


def shown(given):
    """Prints the tables, or puts them into a page."""
    text = times.table(given.target, given.slowest)
    if given.write:
        page.replace(given.write, text)
    else:
        print(text)
    return 0


def main():
    run.interruptible()
    given = options()
    try:
        commands = {"test": test, "targets": targets, "times": shown, "programs": programs, "note": noted}
        return commands[given.command](given)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
