"""Parts of scripts/release.sh that are easier said in Python.

    python3 -B scripts/release tar DIRECTORY FILE            packs a directory; the file's name without .tar.gz is its folder
    python3 -B scripts/release chart DIRECTORY PLACE         packs a Helm chart
    python3 -B scripts/release libraries …                   writes the bill of materials and the licences of libraries
    python3 -B scripts/release provenance FILE …             writes the statement about the build

Times come from SOURCE_DATE_EPOCH.
"""

import argparse
import json
import os
import pathlib
import sys

import archives
import libraries
import licences
import provenance
import sbom


def pair(text):
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: expected NAME=VALUE")
    return name, value


def write(path, value):
    pathlib.Path(path).write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def parser():
    parse = argparse.ArgumentParser(prog="scripts/release", description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parse.add_subparsers(dest="command", required=True)
    tar = commands.add_parser("tar")
    tar.add_argument("directory")
    tar.add_argument("file")
    chart = commands.add_parser("chart")
    chart.add_argument("directory")
    chart.add_argument("place")
    command = commands.add_parser("libraries")
    command.add_argument("--version", required=True)
    command.add_argument("--target", required=True, help="as rustc names it")
    command.add_argument("--programs", required=True, help="the directory that they are in")
    command.add_argument("--sbom", required=True, metavar="FILE")
    command.add_argument("--licences", required=True, metavar="FILE")
    statement = commands.add_parser("provenance")
    statement.add_argument("file")
    statement.add_argument("--commit", required=True)
    statement.add_argument("--changed", action="store_true")
    statement.add_argument("--setting", type=pair, action="append", default=[], metavar="NAME=VALUE")
    statement.add_argument("--tool", type=pair, action="append", default=[], metavar="NAME=VERSION")
    statement.add_argument("subjects", nargs="+", metavar="SUBJECT")
    return parse


def main(arguments=None):
    options = parser().parse_args(arguments)
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    match options.command:
        case "tar":
            name = pathlib.Path(options.file).name.removesuffix(".tar.gz")
            archives.pack(options.directory, options.file, name, epoch)
        case "chart":
            archives.chart(options.directory, options.place, epoch)
        case "libraries":
            crates, page = libraries.crates(options.target), libraries.page_libraries()
            programs = {name: pathlib.Path(options.programs) / name for name in libraries.PACKAGES}
            write(options.sbom, sbom.bill(options.version, options.target, epoch, programs, crates, page))
            text, without = licences.document(options.version, options.target, [*crates.values(), *page])
            pathlib.Path(options.licences).write_text(text)
            if without:
                print(f"note: {len(without)} libraries come without a text of their licence; their lines name it", file=sys.stderr)
        case "provenance":
            sources = {name: libraries.ROOT / name for name in ("Cargo.lock", "rust-toolchain.toml", "web/package-lock.json")}
            write(options.file, provenance.statement(options.subjects, options.commit, options.changed, dict(options.setting),
                                                     dict(options.tool), sources))
    return 0


if __name__ == "__main__":
    sys.exit(main())
