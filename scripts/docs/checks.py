"""What is wrong with the pages: links to nothing, pages that no table of contents has, translations that do not fit."""

import os

import markdown
import pages


def link_faults(repository, page):
    """Names targets of a page that do not exist: files, folders, and anchors of pages."""
    found = []
    for target in markdown.targets(repository.text(page)):
        if not target or pages.is_outside(target):
            continue
        path = pages.resolve(page, target)
        if not repository.exists(path):
            english = repository.original_of(path)
            advice = f": {english} is not translated, `scripts/docs relink` mends it" if repository.exists(english) else ""
            found.append(f"{page}: {target} leads to nothing{advice}")
        elif "#" in target and path.endswith(".md"):
            original, anchor = repository.meant(page, target)
            there = {*repository.anchors(path), *markdown.marks(repository.text(path))}
            # The book has the English anchors in translations, too.
            if anchor not in there and anchor not in repository.anchors(original):
                found.append(f"{page}: {path} has no heading for #{anchor}")
    return found


def toc_faults(repository):
    """Names pages that the table of contents lacks or has twice, and where the Chinese one differs."""
    found, toc = [], repository.toc()
    for page in sorted(repository.files):
        documented = page.startswith("docs/") or "/" not in page
        if page.endswith(".md") and documented and not repository.is_translation(page) and page not in (pages.TOC, *toc):
            found.append(f"{page}: it is not in {pages.TOC}")
    found += [f"{pages.TOC}: {page} is there twice" for page in sorted({page for page in toc if toc.count(page) > 1})]
    chinese = pages.translation_path(pages.TOC)
    if chinese in repository.files:
        own = [repository.original_of(page) for page in repository.toc(chinese)]
        for number, (expected, there) in enumerate(zip(toc, own, strict=False), 1):
            if expected != there:
                found.append(f"{chinese}: entry {number} is {there}, and in {pages.TOC} {expected}")
                break
        else:
            if len(toc) != len(own):
                found.append(f"{chinese}: it has {len(own)} entries, and {pages.TOC} {len(toc)}")
    return found


def translation_faults(repository, path):
    """Returns what is wrong with a translation, and a warning if its original has changed since, or None.

    What differs then is part of the warning: whoever changes an English page need not know Chinese.
    """
    text = repository.text(path)
    first = pages.FIRST_LINE.match(text)
    if not first:
        return [f"{path}: its first line is not `<!-- translation of PATH sha256:12 DIGITS -->`"], None
    original, digest = first.groups()
    if original not in repository.files:
        return [f"{path}: {original}, of which it is a translation, does not exist"], None
    if pages.translation_path(original) != path:
        return [f"{path}: the translation of {original} belongs to {pages.translation_path(original)}"], None
    faults = [f"{path}: {fault}" for fault in differences(repository, original, path)]
    if digest == repository.digest(original):
        return faults, None
    now = f"{path} is older than {original}, which has changed since sha256:{digest}; now sha256:{repository.digest(original)}"
    return [], "\n    ".join([now, *(fault.removeprefix(f"{path}: ") for fault in faults)])


def differences(repository, original, path):
    """Says where a translation's shape is another than its original's. A reader of either gets the same commands."""
    english, chinese = repository.text(original), repository.text(path)
    blocks, own = markdown.fenced(english), markdown.fenced(chinese)
    if len(blocks) != len(own):
        yield f"it has {len(own)} fenced blocks, and {original} {len(blocks)}"
    for number, (block, there) in enumerate(zip(blocks, own, strict=False), 1):
        if block != there:
            yield f"fenced block {number} is not that of {original}: {first_difference(block, there)}"
            break
    levels = [level for level, _, _ in markdown.headings(english)]
    own_levels = [level for level, _, _ in markdown.headings(chinese)]
    if levels != own_levels:
        yield f"its headings are {counted(own_levels)}, and those of {original} {counted(levels)}"
    # In a table of contents order matters, which toc_faults looks at; in a sentence the order of words is a language's own.
    meant = sorted(meanings(repository, original))
    there = sorted(meanings(repository, path))
    for missing in subtract(meant, there):
        yield f"it has no link to {missing}, as {original} has"
    for added in subtract(there, meant):
        yield f"it has a link to {added}, which {original} has not"


def meanings(repository, page):
    """Returns the targets of a page, each as the English page has it."""
    found = []
    for target in markdown.targets(repository.text(page)):
        if pages.is_outside(target):
            found.append(target)
        elif target:
            found.append(written(*repository.meant(page, target)))
    return found


def written(path, anchor):
    return path if anchor is None else f"{path}#{anchor}"


def subtract(many, few):
    """Returns what is in the first list more often than in the second, in order."""
    rest = list(few)
    found = []
    for one in many:
        if one in rest:
            rest.remove(one)
        else:
            found.append(one)
    return found


def first_difference(expected, there):
    pairs = zip(expected.splitlines(), there.splitlines(), strict=False)
    for line, own in pairs:
        if line != own:
            return f"`{own.strip()}` instead of `{line.strip()}`"
    return "one of them has more lines"


def counted(levels):
    return f"{len(levels)} ({' '.join(map(str, levels))})"


def check(repository):
    """Returns faults and warnings of all pages."""
    toc = repository.toc()
    found = toc_faults(repository)
    linked = [page for page in dict.fromkeys([pages.TOC, *toc, *repository.translations()]) if page in repository.files]
    for page in linked:
        found += link_faults(repository, page)
    warnings = []
    for path in repository.translations():
        faults, stale = translation_faults(repository, path)
        found += faults
        warnings += [stale] if stale else []
    return found, warnings


def relinked(repository, path):
    """Returns the text of a translation whose links lead to translations where there are any, else to English pages."""
    page = repository.original_of(path)
    meanings_of_page = set(meanings(repository, page))

    def change(target):
        if not target or pages.is_outside(target) or target.startswith("#"):
            return target
        original, anchor = repository.meant(path, target)
        if written(original, anchor) not in meanings_of_page:
            copied = repository.meant(page, target)
            if written(*copied) in meanings_of_page:
                # It stands as in the original, whose folder is another.
                original, anchor = copied
        to = pages.translation_path(original)
        if to not in repository.files:
            to = original
        if not repository.exists(to):
            return target
        if anchor is not None and to != original:
            english, own = repository.anchors(original), repository.anchors(to)
            is_there = anchor in own or anchor in markdown.marks(repository.text(to))
            if anchor in english and not is_there and len(own) == len(english):
                anchor = own[english.index(anchor)]
        slash = "/" if target.split("#")[0].endswith("/") else ""
        return written(os.path.relpath(to, os.path.dirname(path)) + slash, anchor)

    return markdown.rewrite(repository.text(path), change)
