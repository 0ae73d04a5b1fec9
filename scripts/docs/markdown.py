"""Markdown as far as the documentation needs it: fenced blocks, headings with their anchors, and targets of links.

It is no renderer. A target that it overlooks, mdBook may still see: `built.py` looks at the pages that come out.
"""

import re

FENCE = re.compile(r"^[ ]*(`{3,}|~{3,})(.*)$")
HEADING = re.compile(r"^(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
TARGET = re.compile(r"\]\([ ]*<?([^()\s<>]*)>?(?:[ ]+\"[^\"]*\")?[ ]*\)")
ATTRIBUTE = re.compile(r"<(?:a|img)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"")
DEFINITION = re.compile(r"^[ ]{0,3}\[[^\]]+\]:[ ]+(\S+)", re.MULTILINE)
MARK = re.compile(r"<a (?:id|name)=\"([^\"]+)\"></a>\n?")
# Stands for a character of code while links are looked for.
HIDDEN = "\0"


def blocks(text):
    """Splits a page into (is it a fenced block, its text). Joined again they are the page."""
    found, lines, fence = [], [], None

    def close(fenced):
        if lines:
            found.append((fenced, "".join(lines)))
            lines.clear()

    for line in text.splitlines(keepends=True):
        mark = FENCE.match(line.rstrip("\n"))
        if fence is None and mark and not (mark[1][0] == "`" and "`" in mark[2]):
            close(False)
            fence = mark[1]
            lines.append(line)
        elif fence is not None and mark and mark[1].startswith(fence) and not mark[2].strip():
            lines.append(line)
            close(True)
            fence = None
        else:
            lines.append(line)
    close(fence is not None)
    return found


def fenced(text):
    """Returns the fenced blocks, with their fences."""
    return [block for is_fenced, block in blocks(text) if is_fenced]


def hidden(prose):
    """Returns the text with code spans and comments hidden; each character keeps its place."""
    prose = re.sub(r"<!--.*?-->", lambda comment: re.sub(r"[^\n]", HIDDEN, comment[0]), prose, flags=re.DOTALL)
    # A span ends with as many backticks as it begins with, within its paragraph.
    span = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n[ \t]*\n).)*?)(?<!`)\1(?!`)", re.DOTALL)
    return span.sub(lambda code: re.sub(r"[^\n]", HIDDEN, code[0]), prose)


def targets(text):
    """Returns the targets of links and pictures, in order."""
    found = []
    for is_fenced, block in blocks(text):
        if not is_fenced:
            seen = hidden(block)
            places = [match.span(1) for pattern in (TARGET, ATTRIBUTE, DEFINITION) for match in pattern.finditer(seen)]
            found.extend(block[start:end] for start, end in sorted(places))
    return found


def opening(seen, end):
    """Returns where the text of the link begins whose `]` is at `end`: its `[`, or the `!` of a picture."""
    depth = 0
    for at in range(end, -1, -1):
        depth += {"]": 1, "[": -1}.get(seen[at], 0)
        if depth == 0:
            return at - 1 if at and seen[at - 1] == "!" else at
    return end


def rewrite(text, change):
    """Replaces targets of links. `change` gets a target and returns the new one, or None for a link to no page: its text
    stays, with the path if the text does not have it."""
    done = []
    for is_fenced, block in blocks(text):
        done.append(block if is_fenced else rewrite_prose(block, change))
    return "".join(done)


def rewrite_prose(block, change):
    seen = hidden(block)
    edits = []
    for pattern in (ATTRIBUTE, DEFINITION):
        for match in pattern.finditer(seen):
            target = change(block[match.start(1):match.end(1)])
            if target is not None:
                edits.append((*match.span(1), target))
    for match in TARGET.finditer(seen):
        old = block[match.start(1):match.end(1)]
        new = change(old)
        if new is not None:
            edits.append((*match.span(1), new))
            continue
        first = opening(seen, match.start())
        path = re.sub(r"^(\.\./)+", "", old).split("#")[0]
        text = block[first + 1:match.start()]
        shown = path.rstrip("/").rsplit("/", 1)[-1] in text
        edits.append((first, first + 1, ""))
        edits.append((*match.span(), "" if shown else f" (`{path}`)"))
    for start, end, new in sorted(edits, reverse=True):
        block = block[:start] + new + block[end:]
    return block


def slug(heading):
    """Returns the anchor of a heading's text, as forges and mdBook make it."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    code = re.split(r"(`[^`]*`)", text)
    # Within code nothing is a mark.
    plain = "".join(part.strip("`") if part.startswith("`") else re.sub(r"<[^>]+>|\*|(?<!\w)_|_(?!\w)", "", part)
                    for part in code)
    kept = [c for c in plain.strip().lower() if c.isalnum() or c in "_- \t"]
    return re.sub(r"\s", "-", "".join(kept))


def headings(text):
    """Returns (level, text, anchor) of each heading. Anchors that occur again get a number."""
    found, used = [], set()
    for is_fenced, block in blocks(text):
        for line in [] if is_fenced else block.splitlines():
            match = HEADING.match(line)
            if match:
                anchor = base = slug(match[2])
                number = 0
                while anchor in used:
                    number += 1
                    anchor = f"{base}-{number}"
                used.add(anchor)
                found.append((len(match[1]), match[2], anchor))
    return found


def marks(text):
    """Returns the anchors that a page sets by hand: `<a id="…"></a>`."""
    return {anchor for is_fenced, block in blocks(text) if not is_fenced for anchor in MARK.findall(block)}


def with_anchors(text, anchors):
    """Gives the headings of a page these anchors, in mdBook's way of writing, in place of those set by hand."""
    done, rest = [], iter(anchors)
    text = "".join(block if is_fenced else MARK.sub(lambda mark: "" if mark[1] in anchors else mark[0], block)
                   for is_fenced, block in blocks(text))
    for is_fenced, block in blocks(text):
        lines = block.splitlines(keepends=True)
        if not is_fenced:
            lines = [f"{match[1]} {match[2]} {{#{next(rest)}}}\n" if (match := HEADING.match(line.rstrip("\n"))) else line
                     for line in lines]
        done.extend(lines)
    return "".join(done)
