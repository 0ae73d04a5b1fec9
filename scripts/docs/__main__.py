"""The documentation: checks its pages, and makes books of them.

    python3 -B scripts/docs check [--strict]  looks at links, tables of contents and translations; exit code 1 for a fault
    python3 -B scripts/docs build MDBOOK      makes build/docs/en and build/docs/zh, and looks at what came out
    python3 -B scripts/docs relink            leads links of translations to translations, where there are any
    python3 -B scripts/docs digest PAGE...    prints the first line of a translation of each page
"""

import argparse
import pathlib
import sys

import book
import built
import checks
import pages

ROOT = pathlib.Path(__file__).resolve().parents[2]


def check(repository, strict):
    """Prints faults and warnings; returns whether there is a fault."""
    faults, warnings = checks.check(repository)
    if strict:
        faults, warnings = faults + warnings, []
    for warning in warnings:
        print(f"warning: {warning}")
    for fault in faults:
        print(fault)
    if faults:
        print(f"{len(faults)} faults in the documentation. CONTRIBUTING.md says how pages and translations are written.")
    return bool(faults)


def build(repository, mdbook):
    """Makes both books; returns whether a page of them is wrong."""
    out = repository.root / "build/docs"
    faults = []
    for language in book.LANGUAGES:
        book.build(repository, language, mdbook, out)
        print(f"{out / language}: {len(list((out / language).rglob('*.html')))} pages")
    for language in book.LANGUAGES:
        faults += built.faults(out, language)
    for fault in faults:
        print(fault)
    return bool(faults)


def relink(repository):
    for path in repository.translations():
        text = checks.relinked(repository, path)
        if text != repository.text(path):
            (repository.root / path).write_text(text)
            print(path)


def digests(repository, wanted):
    for page in wanted:
        print(f"{pages.translation_path(page)}: <!-- translation of {page} sha256:{repository.digest(page)} -->")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/docs", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check")
    checking.add_argument("--strict", action="store_true", help="a translation that is older than its original is a fault, too")
    commands.add_parser("build").add_argument("mdbook", type=pathlib.Path)
    commands.add_parser("relink")
    commands.add_parser("digest").add_argument("pages", nargs="+")
    options = parser.parse_args(arguments)
    repository = pages.Repository(options.root)
    match options.command:
        case "check":
            return int(check(repository, options.strict))
        case "build":
            return int(build(repository, options.mdbook))
        case "relink":
            relink(repository)
        case "digest":
            digests(repository, options.pages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
