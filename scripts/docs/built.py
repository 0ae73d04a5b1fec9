"""Looks at the pages that came out: every link leads somewhere within them, and nothing is loaded from another host."""

import html.parser
import pathlib
import re
import urllib.parse

# Elements whose targets a browser loads by itself.
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "video": "src", "object": "data"}
OTHER_HOST = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"(?:url\(\s*[\"']?|@import\s+[\"'])([^\"')]+)")


class Page(html.parser.HTMLParser):
    """A page's ids, its links, and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids.update(attributes[name] for name in ("id", "name") if attributes.get(name))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if attributes.get(LOADED.get(tag, "")):
            self.loaded.append(attributes[LOADED[tag]])


def faults(out, language):
    """Returns what is wrong with a book."""
    folder = pathlib.Path(out) / language
    parsed = {}

    def page(path):
        if path not in parsed:
            parsed[path] = Page(path.read_text())
        return parsed[path]

    found = []
    for path in sorted(folder.rglob("*.html")):
        name = path.relative_to(out)
        for target in page(path).loaded:
            if OTHER_HOST.match(target):
                found.append(f"{name}: it loads {target} from another host")
            elif not target.startswith("data:") and not leads(path, target).exists():
                found.append(f"{name}: it loads {target}, which is not there")
        for target in page(path).links:
            if re.match(r"[a-z][a-z0-9+.-]*:", target) or OTHER_HOST.match(target):
                continue
            place, anchor = leads(path, target), urllib.parse.unquote(urllib.parse.urlsplit(target).fragment)
            if not place.is_file():
                found.append(f"{name}: {target} leads to nothing")
            elif anchor and place.suffix == ".html" and anchor not in page(place).ids:
                found.append(f"{name}: {target} leads to a page without #{anchor}")
    for path in sorted(folder.rglob("*.css")):
        for target in IN_STYLE.findall(path.read_text()):
            if OTHER_HOST.match(target):
                found.append(f"{path.relative_to(out)}: it loads {target} from another host")
    return found


def leads(page, target):
    """Returns the file that a target of a page is about."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(target).path)
    return (page.parent / path).resolve() if path else page
