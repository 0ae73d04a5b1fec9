#!/usr/bin/env python3
"""Packs one program as an OCI image (image-spec 1.1) in a tar file, byte for byte reproducible.

The image holds the program, which must be static, a user without rights to run it as, and an empty /tmp. With
`--libraries` it need not be static: the libraries of this machine come along. So they do for each `--add`; with
`--root` those come from there, for another architecture.
"""

import argparse
import glob
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile

# Unprivileged, and outside the range of the host's own users.
UID = 65532
PASSWD = f"root:x:0:0:root:/:/nologin\nnonroot:x:{UID}:{UID}:nonroot:/:/nologin\n"
GROUP = f"root:x:0:\nnonroot:x:{UID}:\n"


def entry(name, mode, data=None, uid=0):
    """A tar entry without anything that differs between two builds."""
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid, info.mtime = mode, uid, uid, 0
    if data is None:
        info.type = tarfile.DIRTYPE
        return info, None
    info.size = len(data)
    return info, io.BytesIO(data)


def pack(entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, data)
    return buffer.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def descriptor(media_type, data, **more):
    return {"mediaType": media_type, "digest": digest(data), "size": len(data), **more}


def to_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def is_static(binary):
    """No program interpreter (PT_INTERP, type 3) among the program headers of an ELF of 32 or 64 bits."""
    if binary[:5] == b"\x7fELF\x01":
        offset, size, count = binary[28:32], binary[42:44], binary[44:46]
    elif binary[:5] == b"\x7fELF\x02":
        offset, size, count = binary[32:40], binary[54:56], binary[56:58]
    else:
        return False
    offset, size, count = (int.from_bytes(number, "little") for number in (offset, size, count))
    return all(int.from_bytes(binary[offset + i * size:][:4], "little") != 3 for i in range(count))


def platform(arch):
    """What the image-spec calls the architecture, after Go."""
    if arch == "armv7":
        return {"architecture": "arm", "variant": "v7"}
    return {"architecture": arch}


def libraries(program):
    """What the program's loader would load, with the loader itself."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r"(/\S+)", listed)))


def libraries_in(root, program):
    """The same, for a program of another architecture in a directory that is its root; without that directory."""
    found, new = set(), [program]
    while new:
        listed = subprocess.run(["readelf", "-ld", root + new.pop()], capture_output=True, text=True, check=True).stdout
        loader = re.findall(r"program interpreter: (\S+)\]", listed)
        wanted = loader + [placed(root, name) for name in re.findall(r"Shared library: \[(.+?)\]", listed)]
        new += [library for library in wanted if library not in found]
        found |= set(wanted)
    return sorted(found)


def placed(root, name):
    """Where a library is, of the directories in which each loader looks."""
    for pattern in ("/lib/*-linux-gnu*/", "/usr/lib/*-linux-gnu*/", "/lib/", "/usr/lib/"):
        for path in glob.glob(root + pattern + glob.escape(name)):
            return path.removeprefix(root)
    sys.exit(f"error: {name} is not in {root}")


def files(programs):
    """Entries of files of this machine, at their places, with the directories above them."""
    found = {}
    for place, source in programs:
        # Loaders look where the libraries' names say, which may be links.
        with open(source, "rb") as file:
            found[place.lstrip("/")] = file.read()
    directories = {os.path.dirname(name)[:end] for name in found for end in ends(os.path.dirname(name))}
    entries = [entry(name, 0o755) for name in sorted(directories)]
    return entries + [entry(name, 0o755, data) for name, data in sorted(found.items())]


def ends(directory):
    return [i for i, c in enumerate(directory) if c == "/"] + [len(directory)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("binary", "name", "tag", "arch", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--libraries", action="store_true")
    parser.add_argument("--add", action="append", default=[], metavar="PROGRAM")
    parser.add_argument("--root", default="", metavar="DIRECTORY")
    parser.add_argument("--level", type=int, default=9, help="of compression, 1 to 9")
    options = parser.parse_args()

    with open(options.binary, "rb") as file:
        binary = file.read()
    path = f"usr/local/bin/{os.path.basename(options.binary)}"
    root = options.root
    programs = [(f"/{path}", options.binary)] + [(program, root + program) for program in options.add]
    for program in options.add:
        found = libraries_in(root, program) if root else libraries(program)
        programs += [(library, root + library) for library in found]
    if options.libraries:
        programs += [(library, library) for library in libraries(options.binary)]
    if not options.libraries and not is_static(binary):
        sys.exit(f"error: {options.binary} is not a static Linux program; in an empty image it could not start")

    layer = pack([
        entry("etc", 0o755),
        entry("etc/group", 0o644, GROUP.encode()),
        entry("etc/passwd", 0o644, PASSWD.encode()),
        entry("tmp", 0o1777),
    ] + files(programs))
    compressed = gzip.compress(layer, compresslevel=options.level, mtime=0)
    config = to_json({
        **platform(options.arch),
        "os": "linux",
        "config": {
            "User": f"{UID}:{UID}",
            "Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin"],
            "Entrypoint": [f"/{path}"],
            "WorkingDir": "/tmp",
            "Labels": {
                "org.opencontainers.image.title": options.name,
                "org.opencontainers.image.version": options.tag,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
    })
    manifest = to_json({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", compressed)],
    })
    reference = f"localhost/{options.name}:{options.tag}"
    index = to_json({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [descriptor(
            "application/vnd.oci.image.manifest.v1+json",
            manifest,
            platform={**platform(options.arch), "os": "linux"},
            annotations={
                "org.opencontainers.image.ref.name": options.tag,
                # What containerd and podman name the image when they load it.
                "io.containerd.image.name": reference,
            },
        )],
    })
    blobs = sorted((digest(data).partition(":")[2], data) for data in (compressed, config, manifest))
    image = pack(
        [
            entry("oci-layout", 0o644, to_json({"imageLayoutVersion": "1.0.0"})),
            entry("index.json", 0o644, index),
            entry("blobs", 0o755),
            entry("blobs/sha256", 0o755),
        ]
        + [entry(f"blobs/sha256/{name}", 0o644, data) for name, data in blobs]
    )
    os.makedirs(os.path.dirname(options.output) or ".", exist_ok=True)
    with open(options.output, "wb") as file:
        file.write(image)
    print(f"{options.output}: {reference}, {options.arch}, {len(image) / 2**20:.1f} MiB, {digest(manifest)}")


if __name__ == "__main__":
    main()
