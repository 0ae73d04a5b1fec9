"""The checks of language, tried on small sources."""

import contextlib
import importlib.util
import io
import pathlib
import tempfile
import unittest

import comments
import names


def opened(text):
    return [first for _, first in comments.openings(text)]


class Comments(unittest.TestCase):
    def test_lines_of_one_kind_are_one_block(self):
        self.assertEqual(opened("/// One\n/// What\nfn a() {}\n/// Two\n"), ["One", "Two"])

    def test_another_kind_opens_another_block(self):
        self.assertEqual(opened("//! Module\n/// Item\n// Note\n"), ["Module", "Item", "Note"])

    def test_a_paragraph_of_a_doc_comment_opens_no_block(self):
        self.assertEqual(opened("/// One\n///\n/// What\n/// of\n"), ["One"])
        self.assertEqual(opened("//! One\n//!\n//! What\n"), ["One"])

    def test_a_plain_comment_after_a_gap_is_a_block(self):
        self.assertEqual(opened("// One\n//\n// Two\n// What\n"), ["One", "Two"])

    def test_headless_words_are_found_with_their_place(self):
        source = "/// Of a peer.\nfn a() {}\n    // Whom it asks.\n/// Whether it is.\nfn b() {}\n/// Whatever.\n"
        self.assertEqual(comments.headless([("x.rs", source)]), ["x.rs:1: Of a peer.", "x.rs:3: Whom it asks."])

    def test_what_is_built_is_not_read(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path in ("crates/a/src/lib.rs", "target/debug/out.rs", "fuzz/target/out.rs", "build/x.rs", "notes.md"):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text("")
            self.assertEqual([str(path) for path in comments.sources(root)], ["crates/a/src/lib.rs"])


class Names(unittest.TestCase):
    files = [("crates/a/src/lib.rs", "pub struct Port;\npub(crate) enum Hidden {}\nstruct Own;\n"),
             ("crates/a/src/two.rs", "pub struct Once;\npub struct Port;\n"),
             ("crates/b/src/lib.rs", "\npub enum Port {}\npub struct Hidden;\npub struct Own;\n"),
             ("tests/local/src/lib.rs", "pub struct Once;\n")]

    def test_a_public_name_of_two_crates_is_found(self):
        self.assertEqual(names.shared(self.files, []), ["Port: crates/a/src/lib.rs:1, crates/b/src/lib.rs:2"])

    def test_a_reason_holds_for_its_crates_alone(self):
        reasons = [("both are ports", {"a", "b"}, "Port")]
        self.assertEqual(names.shared(self.files, reasons), [])
        third = [*self.files, ("crates/c/src/lib.rs", "pub type Port = u16;\n")]
        self.assertEqual(len(names.shared(third, reasons)), 1)

    def test_a_reason_that_nothing_needs_is_a_fault(self):
        reasons = [("both are ports", {"a", "b"}, "Port"), ("one is gone", {"a", "b"}, "Own")]
        self.assertEqual([line.split()[0] for line in names.stale(self.files, reasons)], ["Own"])

    def test_functions_named_of_are_found(self):
        source = "fn off() {}\n    pub(crate) async fn of(a: u8) {}\nfn of<T>() {}\n// fn of\nlet of = 1;\n"
        self.assertEqual([line.split(" ")[0] for line in names.functions_named_of([("x.rs", source)])],
                         ["x.rs:2:", "x.rs:3:"])


class Budgets(unittest.TestCase):
    def report(self, found, budget):
        spec = importlib.util.spec_from_file_location("language", pathlib.Path(__file__).with_name("__main__.py"))
        program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(program)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            failed = program.report("things", found, budget, "Mend them.", False)
        return failed, printed.getvalue()

    def test_above_the_budget_it_fails_and_names_what_is_beyond(self):
        self.assertEqual(self.report(["a", "b", "c"], 2), (True, "c\n3 things, and the budget is 2. Mend them.\n"))

    def test_at_the_budget_it_says_nothing(self):
        self.assertEqual(self.report(["a", "b"], 2), (False, ""))

    def test_below_the_budget_it_asks_for_a_lower_one(self):
        failed, printed = self.report(["a"], 2)
        self.assertFalse(failed)
        self.assertIn("note: 1 things: lower the budget of 2", printed)


if __name__ == "__main__":
    unittest.main()
