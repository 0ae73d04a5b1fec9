#!/usr/bin/env python3
"""Makes one OCI image of those of several architectures (scripts/oci-image.py): an index that names them.

Prints the index's digest: what a registry knows the image by, whichever architecture pulls it.
"""

import argparse
import hashlib
import importlib
import json
import os
import sys
import tarfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
oci = importlib.import_module("oci-image")

# Has the name that containerd and podman give an image when they load it.
NAME = "io.containerd.image.name"
INDEX = "application/vnd.oci.image.index.v1+json"


def merge(images):
    """The blobs of all images, the index of their manifests, and how they are called."""
    blobs, manifests, names = {}, [], {}
    for image in images:
        with tarfile.open(image) as tar:
            for member in tar.getmembers():
                if member.isfile() and member.name.startswith("blobs/sha256/"):
                    blobs[os.path.basename(member.name)] = tar.extractfile(member).read()
            manifest = json.load(tar.extractfile("index.json"))["manifests"][0]
        names = manifest.pop("annotations")
        manifests.append(manifest)
    index = oci.to_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
    blobs[hashlib.sha256(index).hexdigest()] = index
    return blobs, index, names


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--registry", default="localhost", metavar="HOST/PATH", help="that the image is named for")
    parser.add_argument("images", nargs="+", metavar="IMAGE")
    options = parser.parse_args()
    blobs, index, names = merge(options.images)
    _, _, name = names[NAME].rpartition("/")
    names[NAME] = f"{options.registry}/{name}"
    outer = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [oci.descriptor(INDEX, index, annotations=names)]}
    image = oci.pack(
        [
            oci.entry("oci-layout", 0o644, oci.to_json({"imageLayoutVersion": "1.0.0"})),
            oci.entry("index.json", 0o644, oci.to_json(outer)),
            oci.entry("blobs", 0o755),
            oci.entry("blobs/sha256", 0o755),
        ]
        + [oci.entry(f"blobs/sha256/{name}", 0o644, data) for name, data in sorted(blobs.items())]
    )
    with open(options.output, "wb") as file:
        file.write(image)
    print(oci.digest(index))


if __name__ == "__main__":
    main()
