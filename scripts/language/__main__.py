"""Checks the language of Rust sources: comments are sentences, and one name means one thing.

    python3 -B scripts/language              checks, with exit code 1 above a budget
    python3 -B scripts/language --list       also prints what is within the budgets

Budgets only fall. A run that finds less than a budget asks for a lower one.
"""

import argparse
import pathlib
import sys

import comments
import names

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Comment blocks that open with a headless word, in the whole repository.
HEADLESS_BUDGET = 0
# Functions named `of`: `new`, `from_…` and `for_…` say what they take.
OF_BUDGET = 0
# Public types that share their name with one of another crate and have no reason in names.REASONS.
SHARED_BUDGET = 3


def report(what, found, budget, advice, everything):
    """Prints what is beyond the budget and returns whether anything is."""
    for line in found if everything else found[budget:]:
        print(line)
    if len(found) > budget:
        print(f"{len(found)} {what}, and the budget is {budget}. {advice}")
    elif len(found) < budget:
        print(f"note: {len(found)} {what}: lower the budget of {budget} in scripts/language/__main__.py")
    return len(found) > budget


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/language", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every finding, not only those beyond a budget")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sources = [(str(path), (options.root / path).read_text()) for path in comments.sources(options.root)]
    faults = [
        report("comment blocks open with a headless word", comments.headless(sources), HEADLESS_BUDGET,
               "Start with a verb (\"Returns …\") or with a noun that names the thing.", options.list),
        report("functions are named `of`", names.functions_named_of(sources), OF_BUDGET,
               "Name the function `new`, `from_…` or `for_…`.", options.list),
        report("public types share their name with another crate's", names.shared(sources), SHARED_BUDGET,
               "Rename one, make it pub(crate), or give the reason in scripts/language/names.py.", options.list),
    ]
    stale = names.stale(sources)
    for line in stale:
        print(line)
    return 1 if any(faults) or stale else 0


if __name__ == "__main__":
    sys.exit(main())
