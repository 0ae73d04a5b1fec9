"""Results and times as pages for people."""

import time

import promises
import skips
import times

BEGIN, END = "<!-- `scripts/suite times --write` writes this -->", "<!-- end of times -->"


def summary(accounts):
    """A line per target."""
    lines = []
    for account in accounts:
        verdict = "passed" if account["passed"] else "FAILED"
        tests = f", {skips.count(account['tests'])}" if any("skipped" in test for test in account["tests"]) else ""
        lines.append(f"{verdict} {account['target']:20} {times.minutes(account['wall']):>9}, CPU "
                     f"{times.minutes(account['cpu'])}, {account['kind']}{tests}")
    total = times.minutes(sum(account["wall"] for account in accounts))
    return "\n".join([*lines, f"all of it: {total}"])


def results(accounts):
    """The page that `make check-all` leaves."""
    lines = [f"# Results of {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC", "",
             "| target | result | wall | CPU | built | guards, beyond CI |", "|---|---|---|---|---|---|"]
    for account in accounts:
        lines.append(f"| `{account['target']}` | {'passed' if account['passed'] else '**failed**'} "
                     f"| {times.minutes(account['wall'])} | {times.minutes(account['cpu'])} | {times.built(account)} "
                     f"| {_promise(account['target'])} |")
    for account in accounts:
        if account["tests"]:
            lines += ["", f"## {account['target']}", "", "| test | wall s | CPU s | waits for | guards, beyond CI |",
                      "|---|---|---|---|---|"]
            # The longest, and all that stand for a promise.
            slowest = sorted(account["tests"], key=lambda test: -test["wall"])
            slowest = [test for test in slowest if "skipped" not in test]
            shown = slowest[:50] + [test for test in slowest[50:] if test["name"] in promises.OF]
            lines += [f"| {test['name']} | {test['wall']:.1f} | {test['cpu']:.1f} | {times.waits(test)} "
                      f"| {_promise(test['name'])} |" for test in shown]
            # A promise whose test did not run is guarded by nobody.
            lines += [line for told in skips.summary(account["tests"]) for line in ("", told)]
    return "\n".join(lines) + "\n"


def _promise(name):
    what, place = promises.OF.get(name, ("", ""))
    return f"{what} ({place})" if what else ""


def replace(path, text):
    """Puts the tables between the marks of a page."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"error: {path} has no place for the tables: {BEGIN} … {END}")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
