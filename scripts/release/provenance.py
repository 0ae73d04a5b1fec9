"""Says how a release was made: an in-toto statement with SLSA's predicate of provenance, version 1.

It has no times and no names of machines, so a release that is made again has the same one.
"""

import hashlib
import pathlib

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
# Names, not addresses: nothing is served there. docs/install.md describes the build.
BUILD = "urn:x-tulle:make-release:v1"
BUILDER = "urn:x-tulle:whoever-holds-the-signing-key"


def digest(path):
    return {"sha256": hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()}


def statement(files, commit, changed, settings, tools, materials):
    """Describes files made of a commit with these settings, tools (name to version) and other sources (name to file)."""
    source = {"name": "tulle", "digest": {"gitCommit": commit}}
    if changed:
        source["annotations"] = {"changed": "files of the work tree differed from this commit"}
    return {
        "_type": STATEMENT,
        "subject": [{"name": pathlib.Path(file).name, "digest": digest(file)} for file in sorted(files)],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD,
                "externalParameters": settings,
                "internalParameters": {"tools": tools},
                "resolvedDependencies": [source]
                + [{"name": name, "digest": digest(file)} for name, file in sorted(materials.items())],
            },
            "runDetails": {"builder": {"id": BUILDER}},
        },
    }
