"""The pages of the documentation: where each stands in the repository, in the book, and in Chinese."""

import hashlib
import os
import pathlib
import re
import subprocess

import markdown

TOC = "docs/SUMMARY.md"
CHINESE = "docs/zh/"
# Pages of the root have this in the names of their translations: docs/ has a README of its own.
ROOT_MARK = "-root.md"
FIRST_LINE = re.compile(r"^<!-- translation of (\S+) sha256:([0-9a-f]{12}) -->\n")
# Folders whose files users may want to open; of others a page only names the path.
OPENED = ("docs/", "demo/", "deploy/")


def digest(content):
    """Returns the digest by which a translation names its original."""
    return hashlib.sha256(content).hexdigest()[:12]


def resolve(page, target):
    """Returns the path in the repository that a page's target leads to."""
    path = target.split("#")[0]
    return os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page


def is_outside(target):
    """Whether a target leads out of the repository."""
    return re.match(r"[a-z][a-z0-9+.-]*:", target) is not None


def translation_path(original):
    """Returns where the Chinese translation of a page stands."""
    if "/" not in original:
        return CHINESE + original.removesuffix(".md") + ROOT_MARK
    return CHINESE + original.removeprefix("docs/")


def book_path(page):
    """Returns where a page or file stands in the source of a book. README is what a folder shows."""
    path = {"README.md": "index.md", "docs/README.md": "contents.md"}.get(page, page.removeprefix("docs/"))
    return re.sub(r"(^|/)README\.md$", r"\1index.md", path)


class Repository:
    """The files of a working copy, and what its pages say."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        # Also what is not committed yet: whoever writes a page wants it checked.
        listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=self.root,
                                check=True, capture_output=True, text=True).stdout
        self.files = {path for path in listed.split("\0") if path and (self.root / path).exists()}
        self.folders = {str(parent) for path in self.files for parent in pathlib.PurePosixPath(path).parents}
        self.texts = {}

    def text(self, path):
        if path not in self.texts:
            self.texts[path] = (self.root / path).read_text()
        return self.texts[path]

    def digest(self, path):
        return digest((self.root / path).read_bytes())

    def toc(self, path=TOC):
        """Returns the pages of a table of contents, in order."""
        return [resolve(path, target) for target in markdown.targets(self.text(path))]

    def is_translation(self, path):
        return path.startswith(CHINESE)

    def translations(self):
        """Returns the paths of the Chinese pages."""
        return sorted(path for path in self.files if self.is_translation(path) and path.endswith(".md"))

    def original_of(self, path):
        """Returns the English page that a path is about: for a translation its original, otherwise the path itself."""
        if not self.is_translation(path):
            return path
        inner = path.removeprefix(CHINESE)
        if inner.endswith(ROOT_MARK) and "/" not in inner:
            return inner.removesuffix(ROOT_MARK) + ".md"
        inside = f"docs/{inner}"
        # Pages of other folders (demo/README.md) stand in docs/zh by their own path.
        return inside if inside in self.files or inner not in self.files else inner

    def anchors(self, path):
        return [anchor for _, _, anchor in markdown.headings(self.text(path))]

    def exists(self, path):
        return path in self.files or path in self.folders

    def meant(self, page, target):
        """Returns what a target means in any language: the English page's path, and the English anchor or None."""
        path = resolve(page, target)
        anchor = target.split("#", 1)[1] if "#" in target else None
        original = self.original_of(path)
        if anchor is not None and path != original and path in self.files and original in self.files:
            own, english = self.anchors(path), self.anchors(original)
            if anchor in own and anchor not in english and own.index(anchor) < len(english):
                anchor = english[own.index(anchor)]
        return original, anchor
