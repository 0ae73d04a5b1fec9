"""The checks of the documentation and the making of books, tried on small repositories."""

import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import book
import built
import checks
import markdown
import pages


class Markdown(unittest.TestCase):
    def test_joined_blocks_are_the_page(self):
        page = "a\n```sh\n# no heading\n```\n\n~~~\n```\n~~~\nb\n  ```yaml\n  c: d\n  ```\n"
        self.assertEqual("".join(text for _, text in markdown.blocks(page)), page)
        self.assertEqual(markdown.fenced(page), ["```sh\n# no heading\n```\n", "~~~\n```\n~~~\n", "  ```yaml\n  c: d\n  ```\n"])

    def test_a_block_that_nothing_ends_reaches_to_the_end(self):
        self.assertEqual(markdown.fenced("a\n```sh\nb\n"), ["```sh\nb\n"])

    def test_targets_in_code_and_comments_are_none(self):
        page = ("[a](a.md) `[b](b.md)` ``[`c`](c.md)`` <!-- [d](d.md) -->\n```\n[e](e.md)\n```\n[`f`](f.md#x \"title\")\n"
                "![g](g.svg) <img alt=\"\" src=\"h.svg\">\n\n[i]: j.md\n")
        self.assertEqual(markdown.targets(page), ["a.md", "f.md#x", "g.svg", "h.svg", "j.md"])

    def test_a_code_span_ends_within_its_paragraph(self):
        self.assertEqual(markdown.targets("one ` [a](a.md)\n\ntwo ` [b](b.md)\n"), ["a.md", "b.md"])
        self.assertEqual(markdown.targets("one ` [a](a.md)\ntwo ` [b](b.md)\n"), ["b.md"])

    def test_links_are_rewritten_and_those_to_no_page_become_text(self):
        change = {"a.md": "b.md", "../x/y": None, "p.svg": "q.svg"}.get
        page = "[a](a.md), [the *file*](../x/y), [`y`](../x/y), [![p](p.svg)](a.md)\n```\n[a](a.md)\n```\n"
        self.assertEqual(markdown.rewrite(page, change),
                         "[a](b.md), the *file* (`x/y`), `y`, [![p](q.svg)](b.md)\n```\n[a](a.md)\n```\n")

    def test_anchors_are_those_of_forges(self):
        page = ("# `tulle why FROM TO [PATH]`, and *more*\n## A & b\n## A & b\n### [link](x.md): it's `a_b`\n## _Soft_ snake_case\n"
                "```\n# not one\n```\n## 中文 标题。\n")
        anchors = [anchor for _, _, anchor in markdown.headings(page)]
        self.assertEqual(anchors, ["tulle-why-from-to-path-and-more", "a--b", "a--b-1", "link-its-a_b", "soft-snake_case", "中文-标题"])

    def test_headings_get_anchors_in_place_of_those_set_by_hand(self):
        page = '# 一\n\n<a id="two"></a>\n## 二\n<a id="own"></a>\n'
        self.assertEqual(markdown.with_anchors(page, ["one", "two"]), '# 一 {#one}\n\n## 二 {#two}\n<a id="own"></a>\n')


class WithRepository(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        subprocess.run(["git", "init", "--quiet", self.root], check=True)
        self.write("README.md", "# Readme\n\n[a](docs/a.md#two), [code](crates/x.rs), [mesh](demo/mesh.yaml), [all](docs/parts)\n")
        self.write("docs/README.md", "# Contents\n[a](a.md)\n")
        self.write("docs/a.md", "# A\n\n[up](../README.md), [p](parts/p.md#p), ![s](s.svg)\n\n## Two\n\n```sh\ntulle up\n```\n\n[t](#two)\n")
        self.write("docs/parts/p.md", "# P\n\n[a](../a.md#two)\n")
        self.write("docs/s.svg", "<svg/>\n")
        self.write("crates/x.rs", "\n")
        self.write("demo/mesh.yaml", "a: b\n")
        self.write("docs/SUMMARY.md", "# Summary\n\n[R](../README.md)\n\n- [C](README.md)\n- [A](a.md)\n  - [P](parts/p.md)\n")

    def write(self, path, text):
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def translate(self, original, text, path=None, digest=None):
        digest = digest or pages.digest((self.root / original).read_bytes())
        path = path or pages.translation_path(original)
        self.write(path, f"<!-- translation of {original} sha256:{digest} -->\n\n{text}")
        return path

    def repository(self):
        return pages.Repository(self.root)

    def faults(self):
        return checks.check(self.repository())[0]

    GOOD = '# 甲\n\n[上](README-root.md)、[丙](parts/p.md#p)、![s](../s.svg)\n\n## 二\n\n```sh\ntulle up\n```\n\n[二](#二)\n'

    def translate_all(self):
        self.translate("README.md", "# 说明\n\n[甲](a.md#two)、[码](../../crates/x.rs)、[网](../../demo/mesh.yaml)、[全](../parts)\n")
        self.translate("docs/parts/p.md", "# 丙\n\n[甲](../a.md#二)\n")
        self.translate("docs/a.md", self.GOOD)


class Checks(WithRepository):
    def test_nothing_is_wrong_with_a_good_repository(self):
        self.assertEqual(checks.check(self.repository()), ([], []))
        self.translate_all()
        self.assertEqual(checks.check(self.repository()), ([], []))

    def test_dead_links_and_anchors_are_named(self):
        self.write("docs/a.md", "# A\n[x](x.md) [no](parts/p.md#q) [own](#here) [folder](parts) [out](https://example.org/x)\n")
        self.assertEqual(self.faults(), [
            "README.md: docs/a.md has no heading for #two", "docs/a.md: x.md leads to nothing",
            "docs/a.md: docs/parts/p.md has no heading for #q", "docs/a.md: docs/a.md has no heading for #here",
            "docs/parts/p.md: docs/a.md has no heading for #two"])

    def test_a_page_that_the_table_lacks_or_has_twice_is_named(self):
        self.write("docs/new.md", "# New\n")
        self.write("docs/SUMMARY.md", "# Summary\n\n- [C](README.md)\n- [A](a.md)\n- [A](a.md)\n- [P](parts/p.md)\n")
        self.assertEqual(self.faults(), ["README.md: it is not in docs/SUMMARY.md", "docs/new.md: it is not in docs/SUMMARY.md",
                                         "docs/SUMMARY.md: docs/a.md is there twice"])

    def test_what_git_ignores_is_no_page(self):
        self.write(".gitignore", "/docs/new.md\n")
        self.write("docs/new.md", "# New\n")
        self.assertEqual(self.faults(), [])

    def test_the_chinese_table_has_the_same_order(self):
        self.translate("docs/SUMMARY.md", "# 目录\n\n[R](../../README.md)\n\n- [A](../a.md)\n- [C](../README.md)\n- [P](../parts/p.md)\n")
        self.assertEqual(self.faults(), ["docs/zh/SUMMARY.md: entry 2 is docs/a.md, and in docs/SUMMARY.md docs/README.md"])

    def test_a_translation_that_is_older_is_a_warning(self):
        self.translate("docs/parts/p.md", "# 丙\n\n[甲](../../a.md#two)\n", digest="0123456789ab")
        faults, warnings = checks.check(self.repository())
        self.assertEqual(faults, [])
        self.assertEqual(len(warnings), 1)
        self.assertIn("docs/zh/parts/p.md is older than docs/parts/p.md", warnings[0])

    def test_what_differs_from_an_original_that_has_changed_is_part_of_the_warning(self):
        self.translate_all()
        self.write("docs/a.md", (self.root / "docs/a.md").read_text().replace("tulle up", "tulle down"))
        faults, warnings = checks.check(self.repository())
        self.assertEqual(faults, [])
        self.assertIn("fenced block 1 is not that of docs/a.md: `tulle up` instead of `tulle down`", warnings[0])

    def test_a_page_and_its_translation_find_each_other(self):
        self.write("demo/README.md", "# Demo\n")
        for page in ("README.md", "docs/README.md", "docs/parts/p.md", "demo/README.md"):
            self.translate(page, "# x\n")
        repository = self.repository()
        for page, translation in [("README.md", "docs/zh/README-root.md"), ("docs/README.md", "docs/zh/README.md"),
                                  ("docs/parts/p.md", "docs/zh/parts/p.md"), ("demo/README.md", "docs/zh/demo/README.md")]:
            self.assertEqual(pages.translation_path(page), translation)
            self.assertEqual(repository.original_of(translation), page)

    def test_a_translation_without_an_original_or_at_a_wrong_place_is_a_fault(self):
        self.write("docs/zh/b.md", "# 乙\n")
        self.write("docs/zh/c.md", "<!-- translation of docs/gone.md sha256:0123456789ab -->\n# 丙\n")
        self.translate("docs/a.md", self.GOOD.replace("README-root.md", "../../README.md").replace("parts", "../parts"), "docs/zh/d.md")
        found = "\n".join(self.faults())
        self.assertIn("docs/zh/b.md: its first line is not", found)
        self.assertIn("docs/zh/c.md: docs/gone.md, of which it is a translation, does not exist", found)
        self.assertIn("docs/zh/d.md: the translation of docs/a.md belongs to docs/zh/a.md", found)

    def test_commands_headings_and_links_of_a_translation_are_those_of_its_original(self):
        for old, new, fault in [
            ("tulle up", "tulle down", "fenced block 1 is not that of docs/a.md: `tulle down` instead of `tulle up`"),
            ("```sh\ntulle up\n```\n", "", "it has 0 fenced blocks, and docs/a.md 1"),
            ("## 二", "### 二", "its headings are 2 (1 3), and those of docs/a.md 2 (1 2)"),
            ("parts/p.md#p", "../README.md", "it has no link to docs/parts/p.md#p, as docs/a.md has"),
            ("(../s.svg)", "(../../demo/mesh.yaml)", "it has a link to demo/mesh.yaml, which docs/a.md has not"),
            ("[二](#二)", "", "it has no link to docs/a.md#two, as docs/a.md has"),
        ]:
            with self.subTest(fault):
                self.translate_all()
                self.translate("docs/a.md", self.GOOD.replace(old, new))
                self.assertIn(f"docs/zh/a.md: {fault}", self.faults())

    def test_links_to_pages_without_a_translation_are_led_to_the_english_ones(self):
        path = self.translate("docs/a.md", self.GOOD.replace("../s.svg", "s.svg"))
        self.assertIn("docs/zh/a.md: parts/p.md#p leads to nothing: docs/parts/p.md is not translated, `scripts/docs relink` mends it",
                      self.faults())
        text = checks.relinked(self.repository(), path)
        self.assertIn("[上](../../README.md)、[丙](../parts/p.md#p)、![s](../s.svg)", text)
        self.write(path, text)
        self.assertEqual(self.faults(), [])

    def test_links_that_stand_as_in_the_original_are_led_to_where_they_mean(self):
        self.translate_all()
        # From docs/zh this is docs/README.md.
        path = self.translate("docs/a.md", self.GOOD.replace("README-root.md", "../README.md"))
        self.assertIn("docs/zh/a.md: it has a link to docs/README.md, which docs/a.md has not", self.faults())
        self.write(path, checks.relinked(self.repository(), path))
        self.assertEqual(self.faults(), [])

    def test_links_to_pages_that_are_translated_now_are_led_there(self):
        self.translate("docs/a.md", "# 甲\n\n## 二\n")
        path = self.translate("docs/parts/p.md", "# 丙\n\n[甲](../../a.md#two)\n")
        self.assertIn("[甲](../a.md#二)", checks.relinked(self.repository(), path))
        self.translate("docs/a.md", '# 甲\n\n<a id="two"></a>\n## 二\n')
        self.assertIn("[甲](../a.md#two)", checks.relinked(self.repository(), path))


class Books(WithRepository):
    def page(self, page, language):
        return book.text(self.repository(), page, language)

    def test_links_lead_to_where_the_book_has_pages_and_files(self):
        self.assertEqual(self.page("README.md", "en"), "# Readme\n\n[a](a.md#two), code (`crates/x.rs`), [mesh](demo/mesh.yaml), "
                                                       "[all](parts/p.md)\n")
        self.assertIn("[up](index.md), [p](parts/p.md#p), ![s](s.svg)", self.page("docs/a.md", "en"))
        self.assertEqual(pages.book_path("docs/README.md"), "contents.md")
        self.write("docs/parts/p.md", "# P\n\n[en](../SUMMARY.md) [zh](../zh/SUMMARY.md)\n")
        self.assertEqual(self.page("docs/parts/p.md", "en"), "# P\n\n[en](../../en/index.html) [zh](../../zh/index.html)\n")
        self.assertEqual(pages.book_path("docs/parts/README.md"), "parts/index.md")

    def test_the_chinese_book_has_english_anchors_and_says_what_is_not_translated(self):
        self.translate("docs/a.md", self.GOOD.replace("README-root.md", "../../README.md").replace("parts", "../parts"))
        page = self.page("docs/a.md", "zh")
        self.assertTrue(page.startswith("# 甲 {#a}\n\n[上](index.md)、[丙](parts/p.md#p)、![s](s.svg)\n\n## 二 {#two}\n"), page)
        self.assertIn("[二](#two)", page)
        self.assertTrue(self.page("docs/parts/p.md", "zh").startswith(f"# P\n\n{book.NOT_TRANSLATED}[a](../a.md#two)"))

    def test_a_translation_that_is_older_says_so_and_leads_to_the_english_page(self):
        self.translate("docs/parts/p.md", "# 丙\n\n[甲](../../a.md#two)\n", digest="0123456789ab")
        self.assertIn("以[英文版](../../en/parts/p.html)为准", self.page("docs/parts/p.md", "zh"))

    def test_pages_files_and_the_table_are_laid_out(self):
        self.translate("docs/SUMMARY.md", "# 目录\n\n[读](../../README.md)\n\n- [C](../README.md)\n- [A](../a.md)\n  - [P](../parts/p.md)\n")
        folder = self.root / "build/source"
        book.lay_out(self.repository(), "zh", folder)
        self.assertEqual((folder / "src/SUMMARY.md").read_text(),
                         "# 目录\n\n[读](index.md)\n\n- [C](contents.md)\n- [A](a.md)\n  - [P](parts/p.md)\n")
        for path in ("index.md", "contents.md", "a.md", "parts/p.md", "s.svg", "demo/mesh.yaml"):
            self.assertTrue((folder / "src" / path).is_file(), path)
        self.assertFalse((folder / "src/crates").exists())

    def test_a_new_version_of_mdbook_that_says_something_else_is_noticed(self):
        with self.assertRaisesRegex(SystemExit, "has no `a` any more"):
            book.replaced("b", [("a", "c")], "template")

    def test_the_chinese_index_keeps_texts_and_drops_the_words(self):
        docs = {"0": {"id": "0", "title": "a'b", "body": 'say "\\n"', "breadcrumbs": "c"}}
        data = json.dumps({"doc_urls": ["a.html"], "index": {"documentStore": {"docs": docs}, "index": {"body": {}}}})
        escaped = data.replace("\\", "\\\\").replace("'", "\\'")
        script = book.chinese_index(f"window.search = Object.assign(window.search, JSON.parse('{escaped}'));")
        first = script.splitlines()[0].removeprefix("window.search = Object.assign(window.search, ").removesuffix(");")
        self.assertEqual(json.loads(first), {"doc_urls": ["a.html"], "index": {"docs": docs}})
        self.assertIn("elasticlunr.Index.load", script)


@unittest.skipUnless(shutil.which("node"), "needs Node")
class ChineseSearch(unittest.TestCase):
    DOCS = {
        "0": {"id": "0", "title": "证书", "breadcrumbs": "证书 » 证书", "body": "本页说明谁签发哪张证书，以及如何轮换根证书。"},
        "1": {"id": "1", "title": "轮换", "breadcrumbs": "概念 » 轮换", "body": "tulle ca rotate 替换根。Istio 也是。"},
        "2": {"id": "2", "title": "DNS", "breadcrumbs": "指南 » DNS", "body": "没有相关内容" + "，略" * 100 + "根"},
    }

    def search(self, question):
        code = f"const s = require({json.dumps(book.THEME + '/search.js')});" \
               f"console.log(JSON.stringify(s.load({{docs: {json.dumps(self.DOCS)}}}).search({json.dumps(question)})))"
        return json.loads(subprocess.run(["node", "-e", code], check=True, capture_output=True, text=True).stdout)

    def refs(self, question):
        return [result["ref"] for result in self.search(question)]

    def test_words_are_found_within_sentences_and_titles_come_first(self):
        self.assertEqual(self.refs("轮换"), ["1", "0"])
        self.assertEqual(self.refs("轮换根证书"), ["0"])
        self.assertEqual(self.refs("内容"), ["2"])

    def test_all_words_must_be_there_and_case_does_not_matter(self):
        self.assertEqual(self.refs("根 istio"), ["1"])
        self.assertEqual(self.refs("CA Rotate"), ["1"])
        self.assertEqual(self.refs("根 没有的词"), [])
        self.assertEqual(self.refs("  "), [])

    def test_an_excerpt_is_around_the_hit_and_sets_it_apart(self):
        body = self.search("根证")[0]["doc"]["body"]
        self.assertIn(" 根证 书", body)
        long = self.search("略")[0]["doc"]["body"]
        self.assertLess(len(long.replace(" ", "")), 90)


class Built(unittest.TestCase):
    def setUp(self):
        self.out = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.out)
        (self.out / "en/sub").mkdir(parents=True)
        self.write("sub/b.html", '<h2 id="two">Two</h2>')

    def write(self, name, text):
        (self.out / "en" / name).write_text(text)

    def test_links_within_the_book_are_followed(self):
        self.write("a.html", '<a href="sub/b.html#two">b</a> <a href="#x">x</a> <a href="c.html">c</a> <a href="sub/b.html#no">n</a>'
                             '<p id="x"><a href="https://example.org/">out</a> <img src="gone.png">')
        self.assertEqual(built.faults(self.out, "en"), [
            "en/a.html: it loads gone.png, which is not there", "en/a.html: c.html leads to nothing",
            "en/a.html: sub/b.html#no leads to a page without #no"])

    def test_nothing_is_loaded_from_another_host(self):
        self.write("a.html", '<script src="//cdn.example/x.js"></script><link rel="stylesheet" href="https://fonts.example/f.css">'
                             '<a href="https://example.org/">a link is no load</a>')
        self.write("s.css", '@import "https://fonts.example/f.css"; a { background: url(data:image/png;base64,x) url(https://x.example/p) }')
        self.assertEqual(built.faults(self.out, "en"), [
            "en/a.html: it loads //cdn.example/x.js from another host",
            "en/a.html: it loads https://fonts.example/f.css from another host",
            "en/s.css: it loads https://fonts.example/f.css from another host",
            "en/s.css: it loads https://x.example/p from another host"])


if __name__ == "__main__":
    unittest.main()
