"""Images are what OCI's image-spec says: everything named is there, as it is named."""

import hashlib
import io
import json
import os
import shutil
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


def files_in(tar):
    return {m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}


def blob(files, described):
    return files["blobs/sha256/" + described["digest"].removeprefix("sha256:")]


def build(**settings):
    """scripts/build-images.sh with these settings, and none of who runs the tests."""
    others = {k: v for k, v in os.environ.items() if k not in ("ARCH", "STATIC", "REGISTRY", "PROFILE", "IMAGES", "PLUGINS")}
    return subprocess.run([SCRIPTS / "build-images.sh"], capture_output=True, text=True, check=False,
                          env={**others, **settings})


class Build(unittest.TestCase):
    def test_a_setting_that_makes_no_image_is_refused(self):
        for settings, said in (({"ARCH": "riscv64"}, "amd64, arm64 and armv7"), ({"REGISTRY": 'r/"x'}, "HOST/PATH"),
                               ({"PLUGINS": "0"}, "yes or no")):
            done = build(**settings)
            self.assertEqual((done.returncode, done.stdout), (64, ""), done)
            self.assertIn(said, done.stderr)

    @unittest.skipUnless(Path("/usr/sbin/nft").exists(), "tulle-init holds nft")
    def test_images_to_try_hold_the_programs_that_are_built_and_their_libraries(self):
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            (place / "release").mkdir()
            missing = build(CARGO_TARGET_DIR=directory, IMAGES=str(place / "images"))
            self.assertEqual(missing.returncode, 1)
            self.assertIn("release/tulle:", missing.stderr)
            for program in ("tulle", "tulle-proxy", "tulle-cni", "bookinfo"):
                shutil.copy("/bin/true", place / "release" / program)
            done = build(CARGO_TARGET_DIR=directory, IMAGES=str(place / "images"), REGISTRY="r.example:5000/mesh")
            self.assertEqual(done.returncode, 0, done.stderr)
            values = (place / "images/values.yaml").read_text()
            self.assertIn('registry: "r.example:5000/mesh"', values)
            for name, value in (("tulle", "controller"), ("tulle-proxy", "proxy"), ("tulle-init", "init"),
                                ("tulle-cni", "cni"), ("bookinfo", None)):
                with tarfile.open(place / f"images/{name}.tar") as tar:
                    blobs = files_in(tar)
                (outer,) = json.loads(blobs["index.json"])["manifests"]
                reference = outer["annotations"]["io.containerd.image.name"]
                self.assertRegex(reference, rf"^r\.example:5000/mesh/{name}:[0-9.]+$")
                if value:
                    self.assertIn(f'{value}: {{ digest: "{outer["digest"]}" }}', values)
                (described,) = json.loads(blob(blobs, outer))["manifests"]
                (layer,) = json.loads(blob(blobs, described))["layers"]
                with tarfile.open(fileobj=io.BytesIO(blob(blobs, layer))) as tar:
                    held = files_in(tar)
                program = "tulle" if name == "tulle-init" else name
                self.assertEqual(held[f"usr/local/bin/{program}"], Path("/bin/true").read_bytes())
                self.assertTrue(any("/libc.so" in f for f in held), held.keys())
                self.assertEqual("usr/sbin/nft" in held, name == "tulle-init")

    def test_a_program_that_has_grown_too_large_is_in_no_image(self):
        if os.uname().machine != "x86_64":
            self.skipTest("the budget is for amd64")
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            (place / "release").mkdir()
            for program in ("tulle", "tulle-proxy", "tulle-cni", "bookinfo"):
                shutil.copy("/bin/true", place / "release" / program)
            os.truncate(place / "release/tulle", 40_000_000)
            done = build(CARGO_TARGET_DIR=directory, IMAGES=str(place / "images"))
            self.assertEqual(done.returncode, 1, done)
            self.assertIn("release/tulle has 40000000 bytes", done.stderr)
            self.assertFalse((place / "images").exists())


class Images(unittest.TestCase):
    def test_an_index_names_the_image_of_each_architecture(self):
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            parts = []
            for arch, bits in (("amd64", b"\x02"), ("arm64", b"\x02"), ("armv7", b"\x01")):
                program = place / arch / "program"
                program.parent.mkdir()
                # An ELF without program headers, so without a loader.
                program.write_bytes((b"\x7fELF" + bits).ljust(64, b"\0") + arch.encode())
                parts.append(place / f"{arch}.tar")
                run("oci-image.py", "--binary", program, "--name", "program", "--tag", "1", "--arch", arch,
                    "--output", parts[-1])
            digest = run("oci-index.py", "--output", place / "all.tar", *parts)
            with tarfile.open(place / "all.tar") as tar:
                files = files_in(tar)

        def checked(descriptor):
            data = blob(files, descriptor)
            self.assertEqual(descriptor["digest"], "sha256:" + hashlib.sha256(data).hexdigest())
            self.assertEqual(descriptor["size"], len(data))
            return data

        (outer,) = json.loads(files["index.json"])["manifests"]
        self.assertEqual(outer["digest"], digest)
        self.assertEqual(outer["annotations"]["io.containerd.image.name"], "localhost/program:1")
        manifests = json.loads(checked(outer))["manifests"]
        platforms = [m["platform"] for m in manifests]
        self.assertEqual([p["architecture"] for p in platforms], ["amd64", "arm64", "arm"])
        self.assertEqual([p.get("variant") for p in platforms], [None, None, "v7"])
        for described in manifests:
            manifest = json.loads(checked(described))
            config = json.loads(checked(manifest["config"]))
            self.assertEqual({**config, **described["platform"]}, config)
            (layer,) = manifest["layers"]
            checked(layer)

    def test_a_program_that_has_a_loader_is_in_no_empty_image(self):
        with tempfile.TemporaryDirectory() as directory:
            for bits, place, size, at in ((b"\x01", 28, 42, 52), (b"\x02", 32, 54, 64)):
                program = bytearray((b"\x7fELF" + bits).ljust(at, b"\0") + bytes([1]).ljust(8, b"\0") + bytes([3]).ljust(8, b"\0"))
                program[place], program[size], program[size + 2] = at, 8, 2
                Path(directory, "program").write_bytes(program)
                with self.assertRaises(subprocess.CalledProcessError) as failed:
                    run("oci-image.py", "--binary", f"{directory}/program", "--name", "program", "--tag", "1", "--arch",
                        "armv7", "--output", f"{directory}/image.tar")
                self.assertIn("is not a static Linux program", failed.exception.stderr)


if __name__ == "__main__":
    unittest.main()
