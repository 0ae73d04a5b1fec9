"""Other people's programs, fetched by the scripts beside the build's."""

import shutil
import subprocess

from peers import ROOT


class Missing(Exception):
    """A tool cannot be had here; its suite is skipped, and says so."""


def fetched(name):
    """Runs scripts/fetch-NAME.sh, which prints where the tool is."""
    script = ROOT / f"scripts/fetch-{name}.sh"
    done = subprocess.run([script], capture_output=True, text=True)
    if done.returncode:
        raise Missing(done.stderr.strip()[-500:])
    return done.stdout.strip().splitlines()[-1]


def installed(name):
    if not (path := shutil.which(name)):
        raise Missing(f"{name} is not installed")
    return path
