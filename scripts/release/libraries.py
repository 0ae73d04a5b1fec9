"""Reads which libraries are in a program: those that cargo links into it, and those that only help to build it.

`cargo tree` says so for one program and one target, with the features that this program has; `cargo metadata` knows licences and
sources, but mixes the features of all programs of the workspace.
"""

import json
import pathlib
import re
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A package of the workspace and the program that it makes.
PACKAGES = {"tulle": "tulle-cli", "tulle-proxy": "tulle-proxy", "tulle-envoy": "tulle-envoy", "bookinfo": "bookinfo"}
# The console's page is compiled from these, and is within `tulle`.
PAGE = ROOT / "web/package-lock.json"


def cargo(*arguments):
    """What cargo prints; its own error goes to the user."""
    return subprocess.run(["cargo", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def host():
    """The target of programs for this machine."""
    said = subprocess.run(["rustc", "-vV"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.search(r"^host: (.*)$", said, re.MULTILINE)[1]


def in_tree(package, target, edges):
    """(name, version) of the packages that `cargo tree` shows."""
    shown = cargo("tree", "--locked", "--target", target, "--package", package, "--edges", edges, "--prefix", "none",
                  "--format", "{p}")
    # "serde v1.0.0 (proc-macro) (*)"
    found = {tuple(line.split()[:2]) for line in shown.splitlines() if line}
    return {(name, version.removeprefix("v")) for name, version in found}


class Library:
    """A crate, or a package of the console's page."""

    def __init__(self, name, version, licence, digest, directory=None, registry=None):
        self.name, self.version, self.digest = name, version, digest
        # Crates of long ago wrote MIT/Apache-2.0.
        self.licence = re.sub(r"\s*/\s*", " OR ", licence or "")
        self.directory = directory
        self.registry = registry
        self.description = ""
        self.linked, self.needs = set(), set()

    @property
    def reference(self):
        return f"{self.registry or 'tulle'}:{self.name}@{self.version}"


def checksums():
    """The checksum of each crate in Cargo.lock, by name and version; those of this workspace have none."""
    with open(ROOT / "Cargo.lock", "rb") as file:
        packages = tomllib.load(file)["package"]
    return {(p["name"], p["version"]): p.get("checksum") for p in packages}


def crates(target):
    """Every crate of the programs for this target, by name and version."""
    linked = {program: in_tree(package, target, "normal,no-proc-macro") for program, package in PACKAGES.items()}
    every = set().union(*(in_tree(package, target, "normal,build") for package in PACKAGES.values()))
    # Build scripts and derive macros run on this machine, which is another target.
    platforms = [option for platform in (target, host()) for option in ("--filter-platform", platform)]
    metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1", *platforms))
    known = {p["id"]: (p["name"], p["version"]) for p in metadata["packages"]}
    locked, found = checksums(), {}
    for package in metadata["packages"]:
        key = known[package["id"]]
        if key not in every:
            continue
        found[key] = Library(*key, package["license"], locked[key], pathlib.Path(package["manifest_path"]).parent,
                             "cargo" if package["source"] else None)
        found[key].description = " ".join((package["description"] or "").split())
        found[key].linked = {program for program, those in linked.items() if key in those}
    for node in metadata["resolve"]["nodes"]:
        key = known[node["id"]]
        if key in found:
            needs = {known[d["pkg"]] for d in node["deps"] if any(k["kind"] != "dev" for k in d["dep_kinds"])}
            found[key].needs = {found[n].reference for n in needs if n in found}
    missing = every - found.keys()
    if missing:
        raise SystemExit(f"error: cargo tree names packages that cargo metadata does not: {sorted(missing)}")
    return found


def page_libraries():
    """Packages of npm whose code is in the console's page."""
    packages = json.loads(PAGE.read_text())["packages"]
    found = []
    for place, package in sorted(packages.items()):
        if place and not package.get("dev") and not package.get("devOptional"):
            name = place.rpartition("node_modules/")[2]
            library = Library(name, package["version"], package.get("license"), package.get("integrity"), registry="npm")
            library.linked = {"tulle"}
            found.append(library)
    return found
