"""The test programs of the workspace, built by Cargo, and the tests in them."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Job:
    """One test: a command, where it runs, and with which environment."""

    def __init__(self, name, command, directory, environment):
        self.name = name
        self.command = command
        self.directory = directory
        self.environment = environment


def build(arguments):
    """Builds the tests and returns (package, target, kind, program, directory) of each."""
    command = ["cargo", "test", "--no-run", "--locked", "--message-format=json-render-diagnostics", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    found = []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        directory = pathlib.Path(message["manifest_path"]).parent
        package = directory.relative_to(ROOT).as_posix()
        target = message["target"]
        found.append((package, target["name"], target["kind"][0], message["executable"], directory))
    return sorted(found)


def jobs(programs, ignored_ones=False):
    """The tests in these programs, each by its full name: those that everybody runs, or those marked `#[ignore]`."""
    found = []
    for package, target, kind, program, directory in programs:
        short = package.removeprefix("crates/")
        # A library's and a program's own tests need no name of the target beside the crate's.
        prefix = short if kind in ("lib", "bin") else f"{short}/{target}"
        environment = {"CARGO_MANIFEST_DIR": str(directory), "CARGO_PKG_NAME": directory.name}
        listed = subprocess.run([program, "--list", "--format", "terse"], cwd=directory, capture_output=True, text=True,
                                env={**os.environ, **environment}, check=True)
        ignored = subprocess.run([program, "--list", "--format", "terse", "--ignored"], cwd=directory,
                                 capture_output=True, text=True, env={**os.environ, **environment}, check=True)
        left_out = set(_names(ignored.stdout))
        for name in _names(listed.stdout):
            if (name in left_out) == ignored_ones:
                command = [program, "--exact", name, "--nocapture", *(["--ignored"] if ignored_ones else [])]
                found.append(Job(f"{prefix}::{name}", command, directory, environment))
    return found


def _names(text):
    return [line.removesuffix(": test") for line in text.splitlines() if line.endswith(": test")]
