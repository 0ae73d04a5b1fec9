#!/usr/bin/env python3
"""Packs this machine's Java with what a study between pods runs in it: bookinfo's Spring applications and JMeter.

    image.py --java HOME --jars DIRECTORY --jmeter DIRECTORY --fortio PROGRAM --tag TAG --arch ARCH --output FILE

The image `bench-java` has Java's home at /usr/local, whose program it starts, the applications at /bookinfo/NAME.jar, JMeter at
/jmeter, and Fortio and `cat` in the PATH: the client's pod runs the one, and its results are read with the other.
"""

import argparse
import importlib.util
import os
import pathlib
import shutil
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/oci-image.py"
APPLICATIONS = ("gateway", "ratings")
# Nobody compiles or debugs in it.
UNUSED = {"jmods", "man", "docs", "include", "legal", "src.zip", "ct.sym", "demo"}
PROGRAMS = {"java"}


def load():
    spec = importlib.util.spec_from_file_location("oci_image", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tree(root, place):
    """Pairs of place and source of everything below a directory; links are what they lead to."""
    found = []
    for directory, names, files in os.walk(root, followlinks=True):
        names[:] = sorted(name for name in names if name not in UNUSED)
        at = os.path.normpath(os.path.join(place, os.path.relpath(directory, root)))
        for name in sorted(files):
            source = os.path.join(directory, name)
            # A link of Debian's to what a package that is not here would bring.
            if name not in UNUSED and os.path.exists(source):
                found.append((os.path.join(at, name), source))
    return found


def java(oci, home):
    """Java's home, and the libraries of its own libraries. Those of windows and sound are not all there: headless it needs none."""
    found = [(place, source) for place, source in tree(home, "/usr/local")
             if not place.startswith("/usr/local/bin/") or os.path.basename(place) in PROGRAMS]
    needed = set()
    for name in ("bin/java", "lib/server/libjvm.so", "lib/libjava.so", "lib/libnet.so", "lib/libnio.so", "lib/libzip.so"):
        needed |= {path for path in oci.libraries(os.path.join(home, name)) if not path.startswith(str(home))}
    return found + [(path, path) for path in sorted(needed)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("java", "jars", "jmeter", "fortio", "tag", "arch", "output"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    home = pathlib.Path(options.java).resolve()
    oci = load()
    jars = pathlib.Path(options.jars)
    more = java(oci, home)
    more += [(f"/bookinfo/{name}.jar", jars / name / "target" / f"{name}.jar") for name in APPLICATIONS]
    more += tree(options.jmeter, "/jmeter")
    for program in (options.fortio, shutil.which("cat")):
        more.append((f"/usr/local/bin/{os.path.basename(program)}", program))
        more += [(library, library) for library in oci.libraries(program)]
    files = oci.files
    oci.files = lambda programs: files(programs + more)
    sys.argv = [str(SCRIPT), "--level", "1", "--libraries", "--binary", str(home / "bin/java"), "--name", "bench-java",
                "--tag", options.tag, "--arch", options.arch, "--output", options.output]
    oci.main()


if __name__ == "__main__":
    main()
