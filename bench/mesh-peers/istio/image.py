#!/usr/bin/env python3
"""Packs Istio's sidecar as an OCI image: scripts/oci-image.py with two more needs of that image.

    image.py OPTIONS-OF-oci-image.py [--file PLACE=SOURCE]... [--program PLACE=SOURCE]...

A file comes to a place other than its own, a program with its libraries too. The image's directory is `/`, because
pilot-agent and Envoy find their sockets below it (`./var/run/secrets/...`).

This is no option of scripts/oci-image.py: the test cluster's Kubernetes is built again when that file changes.
"""

import argparse
import importlib.util
import pathlib
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "scripts/oci-image.py"


def load():
    spec = importlib.util.spec_from_file_location("oci_image", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--file", action="append", default=[], metavar="PLACE=SOURCE")
    parser.add_argument("--program", action="append", default=[], metavar="PLACE=SOURCE")
    options, rest = parser.parse_known_args()
    oci = load()
    more = [tuple(pair.split("=", 1)) for pair in options.file + options.program]
    for pair in options.program:
        more += [(library, library) for library in oci.libraries(pair.split("=", 1)[1])]

    files, to_json = oci.files, oci.to_json

    def config_at_root(value):
        if "rootfs" in value:
            value["config"]["WorkingDir"] = "/"
        return to_json(value)

    oci.files = lambda programs: files(programs + more)
    oci.to_json = config_at_root
    sys.argv = [str(SCRIPT), *rest]
    oci.main()


if __name__ == "__main__":
    main()
