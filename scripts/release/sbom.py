"""Writes a software bill of materials: CycloneDX 1.5 in JSON.

Not with cargo-cyclonedx, which knows crates by the directory where they are on the machine that builds (`path+file:///…` in each
bom-ref), so that two machines would write two different files, and which knows neither the page's libraries nor the digests
of the programs.
"""

import base64
import datetime
import hashlib
import json
import subprocess
import uuid

import libraries


def rust():
    """Version of the compiler, whose standard library is in each program."""
    said = subprocess.run(["rustc", "--version"], cwd=libraries.ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return said.split()[1]


def moment(epoch):
    return datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def hashes(digest):
    """A checksum of Cargo.lock (hex of SHA-256) or of package-lock.json (`sha512-` and base64)."""
    algorithm, _, rest = digest.partition("-")
    if rest:
        return [{"alg": f"SHA-{algorithm.removeprefix('sha')}", "content": base64.b64decode(rest).hex()}]
    return [{"alg": "SHA-256", "content": digest}]


def component(library):
    described = {
        "type": "library",
        "bom-ref": library.reference,
        "name": library.name,
        "version": library.version,
        # A crate that is only run while others are compiled is in no program.
        "scope": "required" if library.linked else "excluded",
    }
    if library.description:
        described["description"] = library.description
    if library.digest:
        described["hashes"] = hashes(library.digest)
    if library.licence:
        described["licenses"] = [{"expression": library.licence}]
    if library.registry:
        name = library.name.replace("@", "%40")
        described["purl"] = f"pkg:{library.registry}/{name}@{library.version}"
    if library.linked:
        described["properties"] = [{"name": "tulle:program", "value": program} for program in sorted(library.linked)]
    return described


def bill(version, target, epoch, programs, crates, page):
    """The bill of the programs (name to file) for a target."""
    every = sorted([*crates.values(), *page], key=lambda library: library.reference)
    std = libraries.Library("rust-std", rust(), "MIT OR Apache-2.0", None)
    std.linked, std.registry = set(programs), "rust"
    std.description = "Rust's standard library" + (" with musl" if "musl" in target else " with glibc")
    parts, dependencies = [], []
    for name, path in sorted(programs.items()):
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        parts.append({"type": "application", "bom-ref": f"program:{name}", "name": name, "version": version,
                      "hashes": [{"alg": "SHA-256", "content": digest}]})
        own = {library.reference for library in crates.values() if library.name == libraries.PACKAGES[name]}
        own |= {library.reference for library in page if name in library.linked} | {std.reference}
        dependencies.append({"ref": f"program:{name}", "dependsOn": sorted(own)})
    dependencies += [{"ref": library.reference, "dependsOn": sorted(library.needs)} for library in every]
    described = component(std)
    del described["purl"]  # there is no type of it
    whole = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": moment(epoch),
            "component": {
                "type": "application",
                "bom-ref": "tulle",
                "name": "tulle",
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
                "components": parts,
            },
            "properties": [{"name": "tulle:target", "value": target}],
        },
        "components": [*map(component, every), described],
        "dependencies": [
            {"ref": "tulle", "dependsOn": [part["bom-ref"] for part in parts]},
            *dependencies,
            {"ref": std.reference, "dependsOn": []},
        ],
    }
    # Another content has another number, and the same has the same.
    number = uuid.UUID(bytes=hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).digest()[:16], version=5)
    return {**whole, "serialNumber": f"urn:uuid:{number}"}
