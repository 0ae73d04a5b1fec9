"""Images of several architectures are what OCI's image-spec says: everything named is there, as it is named."""

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run(script, *arguments):
    command = [sys.executable, "-B", SCRIPTS / script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class Images(unittest.TestCase):
    def test_an_index_names_the_image_of_each_architecture(self):
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            parts = []
            for arch in ("amd64", "arm64"):
                program = place / arch / "program"
                program.parent.mkdir()
                # A 64-bit ELF without program headers, so without a loader.
                program.write_bytes(b"\x7fELF\x02".ljust(64, b"\0") + arch.encode())
                parts.append(place / f"{arch}.tar")
                run("oci-image.py", "--binary", program, "--name", "program", "--tag", "1", "--arch", arch,
                    "--output", parts[-1])
            digest = run("oci-index.py", "--output", place / "both.tar", *parts)
            with tarfile.open(place / "both.tar") as tar:
                files = {m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}

        def blob(descriptor):
            data = files["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
            self.assertEqual(descriptor["digest"], "sha256:" + hashlib.sha256(data).hexdigest())
            self.assertEqual(descriptor["size"], len(data))
            return data

        (outer,) = json.loads(files["index.json"])["manifests"]
        self.assertEqual(outer["digest"], digest)
        self.assertEqual(outer["annotations"]["io.containerd.image.name"], "localhost/program:1")
        manifests = json.loads(blob(outer))["manifests"]
        self.assertEqual([m["platform"]["architecture"] for m in manifests], ["amd64", "arm64"])
        for described in manifests:
            manifest = json.loads(blob(described))
            config = json.loads(blob(manifest["config"]))
            self.assertEqual(config["architecture"], described["platform"]["architecture"])
            (layer,) = manifest["layers"]
            blob(layer)


if __name__ == "__main__":
    unittest.main()
