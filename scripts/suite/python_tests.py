"""Runs Python's unit tests of directories, each in a process, as `python3 -m unittest discover` does, and prints for what reasons
some were skipped. With --no-skips, one that was skipped has failed.

    python3 -B scripts/suite/python_tests.py [--no-skips] DIRECTORY...
"""

import pathlib
import subprocess
import sys
import unittest

# Ends a process whose tests passed, but for some that were skipped.
SKIPPED = 77


def here(directory):
    """Runs the tests of a directory in this process; returns its exit code."""
    result = unittest.TextTestRunner(verbosity=0).run(unittest.defaultTestLoader.discover(directory))
    by_reason = {}
    for test, reason in result.skipped:
        by_reason.setdefault(reason, []).append(test.id())
    for reason, names in sorted(by_reason.items()):
        print(f"{directory}: skipped {len(names)}: {reason} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})", flush=True)
    if not result.wasSuccessful() or result.testsRun == 0:
        return 1
    return SKIPPED if by_reason else 0


def main(arguments):
    if arguments[:1] == ["--here"]:
        return here(arguments[1])
    strict = arguments[:1] == ["--no-skips"]
    failed = []
    for directory in arguments[strict:]:
        # One process for each: their modules have the same names.
        code = subprocess.run([sys.executable, "-B", __file__, "--here", directory]).returncode
        if code and (strict or code != SKIPPED):
            failed.append(directory)
    for directory in failed:
        print(f"FAILED {directory}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    # Its own directory has modules that the tests of others may not mean.
    sys.path[:] = [place for place in sys.path if pathlib.Path(place or ".").resolve() != pathlib.Path(__file__).resolve().parent]
    sys.exit(main(sys.argv[1:]))
