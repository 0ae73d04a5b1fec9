"""Makes a book: lays out pages and files as mdBook wants them, runs it, and finishes what it made.

The sources stay where they are; a book is made of copies whose links lead to where the copies are. In the Chinese book a page
without a translation is the English one, and says so.
"""

import json
import os
import re
import shutil
import subprocess

import markdown
import pages

LANGUAGES = ("en", "zh")
THEME = os.path.join(os.path.dirname(__file__), "theme")
TITLES = {"en": "Tulle", "zh": "Tulle"}
DESCRIPTIONS = {"en": "A service mesh light enough for the edge", "zh": "轻到可以放在边缘的服务网格"}
# A link to the same page in the other language.
SWITCH = {"en": ("zh", "中文", "本页的中文版"), "zh": ("en", "English", "This page in English")}
# A link to a table of contents leads to its book.
BOOKS = {pages.TOC: "en", pages.translation_path(pages.TOC): "zh"}
NOT_TRANSLATED = "> 本页尚无中文版，以下是英文原文。\n\n"
STALE = "> 本页的英文原文在翻译之后有改动，以[英文版]({english})为准。\n\n"
# Texts of mdBook's own pages and scripts. Each must be there: a new version of mdBook may say something else.
CHINESE_HTML = [
    ("Keyboard shortcuts</h2>", "键盘快捷键</h2>"),
    ("<p>Press <kbd>←</kbd> or <kbd>→</kbd> to navigate between chapters</p>",
     "<p><kbd>←</kbd>、<kbd>→</kbd>：上一页、下一页</p>"),
    ("<p>Press <kbd>S</kbd> or <kbd>/</kbd> to search in the book</p>", "<p><kbd>S</kbd>、<kbd>/</kbd>：搜索</p>"),
    ("<p>Press <kbd>?</kbd> to show this help</p>", "<p><kbd>?</kbd>：显示本帮助</p>"),
    ("<p>Press <kbd>Esc</kbd> to hide this help</p>", "<p><kbd>Esc</kbd>：关闭本帮助</p>"),
    ("Toggle Table of Contents", "显示或隐藏目录"), ("Table of contents", "目录"), ("Change theme", "更换主题"),
    ('aria-label="Themes"', 'aria-label="主题"'), (">Auto</button>", ">跟随系统</button>"),
    (">Light</button>", ">浅色</button>"), (">Navy</button>", ">深色</button>"), ("Search (`/`)", "搜索（`/`）"),
    ("Toggle Searchbar", "显示或隐藏搜索框"), ("Search this book ...", "搜索……"), ("Page navigation", "翻页"),
]
CHINESE_SEARCHER = [
    ("count + ' search result for \\'' + searchterm + '\\':'", "'“' + searchterm + '”：1 条结果'"),
    ("'No search results for \\'' + searchterm + '\\'.'", "'没有找到“' + searchterm + '”。'"),
    ("count + ' search results for \\'' + searchterm + '\\':'", "'“' + searchterm + '”：' + count + ' 条结果'"),
]
# Of the themes one light and one dark are left: the pictures have no more.
ENGLISH_HTML = [(">Navy</button>", ">Dark</button>")]
OTHER_THEMES = re.compile(r"\s*<li role=\"none\"><button role=\"menuitem\" class=\"theme\" id=\"mdbook-theme-(?:rust|coal|ayu)\">"
                          r"\w+</button></li>")
BUTTONS = '<div class="right-buttons">'


def settings(language):
    """Returns book.toml. Nothing in a page may ask another host, and file names stay the same from build to build."""
    return f"""[book]
title = "{TITLES[language]}"
description = "{DESCRIPTIONS[language]}"
language = "{language}"
src = "src"

[build]
create-missing = false
use-default-preprocessors = false

[output.html]
default-theme = "light"
preferred-dark-theme = "navy"
smart-punctuation = false
definition-lists = false
no-section-label = true
hash-files = false
input-404 = ""
additional-css = ["site.css"]
additional-js = ["site.js"]

[output.html.playground]
runnable = false
copyable = true

[output.html.print]
enable = false

[output.html.fold]
enable = true
level = 0

[output.html.search]
limit-results = 30
use-boolean-and = true
boost-title = 2
"""


def source(repository, page, language):
    """Returns the path whose text a book has for a page, and a note for its head."""
    translation = pages.translation_path(page)
    if language == "en":
        return page, ""
    if translation not in repository.files:
        return page, NOT_TRANSLATED
    first = pages.FIRST_LINE.match(repository.text(translation))
    if first and first[2] == repository.digest(page):
        return translation, ""
    out_of_book = "../" * (pages.book_path(page).count("/") + 1)
    return translation, STALE.format(english=out_of_book + "en/" + html_path(page))


def html_path(page):
    """Returns the name of a page in what mdBook makes."""
    return pages.book_path(page).removesuffix(".md") + ".html"


def text(repository, page, language):
    """Returns the text of a page as mdBook gets it."""
    path, note = source(repository, page, language)
    content = pages.FIRST_LINE.sub("", repository.text(path)).lstrip("\n")
    if path != page:
        english = repository.anchors(page)
        if len(english) == len(markdown.headings(content)):
            content = markdown.with_anchors(content, english)
    content = markdown.rewrite(content, lambda target: book_target(repository, path, page, target))
    if note:
        title, _, rest = content.partition("\n")
        content = f"{title}\n\n{note}{rest.lstrip()}" if title.startswith("# ") else note + content
    return content


def book_target(repository, path, page, target):
    """Returns where a link of `path` leads in the book when it stands in the place of `page`, or None if the book has no
    such page or file."""
    if not target or pages.is_outside(target):
        return target
    if pages.resolve(path, target) in BOOKS:
        return "../" * (pages.book_path(page).count("/") + 1) + BOOKS[pages.resolve(path, target)] + "/index.html"
    meant, anchor = repository.meant(path, target)
    toc = repository.toc()
    if meant in repository.folders:
        # The page that a folder shows, else the first one in it.
        inner = [f"{meant}/README.md", *(other for other in toc if other.startswith(f"{meant}/"))]
        meant = next((other for other in inner if other in toc), meant)
    if meant not in toc and not (meant in repository.files and is_opened(meant)):
        return None
    here = os.path.dirname(pages.book_path(page))
    to = os.path.relpath(pages.book_path(meant), here or ".")
    if meant == page and anchor is not None:
        to = ""
    return to + (f"#{anchor}" if anchor is not None else "")


def is_opened(path):
    """Whether a file that no book has as a page is part of it all the same."""
    return not path.endswith(".md") and (path == "LICENSE" or path.startswith(pages.OPENED))


def toc(repository, language):
    """Returns the table of contents as mdBook gets it."""
    path = pages.translation_path(pages.TOC)
    path = path if language == "zh" and path in repository.files else pages.TOC
    content = pages.FIRST_LINE.sub("", repository.text(path)).lstrip()
    return markdown.rewrite(content, lambda target: pages.book_path(repository.meant(path, target)[0]))


def lay_out(repository, language, folder):
    """Writes what mdBook reads."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "src").mkdir(parents=True)
    (folder / "book.toml").write_text(settings(language))
    for name in ("site.css", "site.js"):
        shutil.copyfile(os.path.join(THEME, name), folder / name)
    # In the place of mdBook's fonts, which have no Chinese letters: the reader's system has its own.
    (folder / "theme/fonts").mkdir(parents=True)
    (folder / "theme/fonts/fonts.css").write_text("/* fonts of the system */\n")
    # The console has the same sign.
    shutil.copyfile(os.path.join(THEME, "../../../web/src/favicon.svg"), folder / "theme/favicon.svg")
    (folder / "src/SUMMARY.md").write_text(toc(repository, language))
    copied = set()
    for page in repository.toc():
        place = folder / "src" / pages.book_path(page)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text(repository, page, language))
        path, _ = source(repository, page, language)
        for target in markdown.targets(repository.text(path)):
            if not pages.is_outside(target):
                copied.add(repository.meant(path, target)[0])
    for path in sorted(copied):
        if path in repository.files and is_opened(path):
            place = folder / "src" / pages.book_path(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(repository.root / path, place)


def replaced(content, texts, where):
    """Replaces texts that must be there."""
    for old, new in texts:
        if old not in content:
            raise SystemExit(f"error: mdBook's {where} has no `{old}` any more; correct scripts/docs/book.py")
        content = content.replace(old, new)
    return content


def finish(language, folder):
    """Adds the switch of languages to the pages, translates what mdBook says, and makes the Chinese search."""
    for path in folder.rglob("*.html"):
        content = path.read_text()
        # The table of contents for browsers without scripts is a page of another kind.
        if path.name == "toc.html" and BUTTONS not in content:
            continue
        name = path.relative_to(folder).as_posix()
        other, label, title = SWITCH[language]
        out_of_book = "../" * (name.count("/") + 1)
        link = (f'<a id="language-switch" href="{out_of_book}{other}/{name}" hreflang="{other}" lang="{other}" '
                f'title="{title}">{label}</a>')
        content = OTHER_THEMES.sub("", replaced(content, [(BUTTONS, BUTTONS + link)], "template"))
        content = replaced(content, CHINESE_HTML if language == "zh" else ENGLISH_HTML, "template")
        path.write_text(content)
    if language == "zh":
        searcher = folder / "searcher.js"
        searcher.write_text(replaced(searcher.read_text(), CHINESE_SEARCHER, "searcher.js"))
        index = folder / "searchindex.js"
        index.write_text(chinese_index(index.read_text()))


def chinese_index(script):
    """Returns the texts of mdBook's index with a search of our own. mdBook's cuts words at spaces and drops what is not
    Latin, so in Chinese it finds nothing."""
    quoted = re.fullmatch(r"window\.search = Object\.assign\(window\.search, JSON\.parse\('(.*)'\)\);\s*", script, re.DOTALL)
    if not quoted:
        raise SystemExit("error: mdBook's searchindex.js is not as it was; correct scripts/docs/book.py")
    parsed = json.loads(quoted[1].replace("\\'", "'").replace("\\\\", "\\"))
    parsed["index"] = {"docs": parsed["index"]["documentStore"]["docs"]}
    # `</script>` cannot end a file of its own, but U+2028 would end a line of it in old browsers: ASCII has neither.
    data = json.dumps(parsed, sort_keys=True, separators=(",", ":"))
    with open(os.path.join(THEME, "search.js")) as search:
        return f"window.search = Object.assign(window.search, {data});\n{search.read()}"


def build(repository, language, mdbook, out):
    """Makes build/docs/LANGUAGE."""
    # Beside what is made, so that all of build/docs can be put into a release.
    folder = out.parent / "docs-source" / language
    lay_out(repository, language, folder)
    shutil.rmtree(out / language, ignore_errors=True)
    subprocess.run([mdbook, "build", "--dest-dir", out.resolve() / language, folder], check=True)
    finish(language, out / language)
