#!/usr/bin/env python3
"""Packs a directory as an OCI image: `image.py ROOT NAME TAG ARCH OUTPUT`.

OSM's images have their programs and files at the root of the file system, where `scripts/oci-image.py` puts none. It
does everything else.
"""

import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "../../../scripts/oci-image.py")


def tree(oci, root):
    """Entries of everything below a directory, links as what they lead to, in an order that is always the same."""
    entries = []
    for directory, names, files in os.walk(root, followlinks=True):
        names.sort()
        place = os.path.relpath(directory, root)
        if place != ".":
            entries.append(oci.entry(place, 0o755))
        for name in sorted(files):
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                mode = 0o755 if os.access(path, os.X_OK) else 0o644
                entries.append(oci.entry(os.path.normpath(os.path.join(place, name)), mode, file.read()))
    return entries


def main():
    root, name, tag, arch, output = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("oci_image", SCRIPT)
    oci = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oci)
    oci.files = lambda _: tree(oci, root)
    # The entry point, which nobody uses: OSM's pods say what to run. Compressed a little, as the node unpacks it once.
    program = sys.executable
    sys.argv = [SCRIPT, "--binary", program, "--libraries", "--name", name, "--tag", tag, "--arch", arch,
                "--level", "1", "--output", output]
    oci.main()


if __name__ == "__main__":
    main()
