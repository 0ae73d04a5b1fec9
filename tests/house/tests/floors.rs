//! No arrow runs up: modules import only what stands below them (`floors.txt` of a crate).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tests_house::Floors;
use tests_house::sources::Sources;

fn holds(name: &str) {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    if let Err(found) = tests_house::check(&crates.join(name)) {
        panic!("{found}");
    }
}

#[test]
fn of_the_proxy() {
    holds("proxy");
}

#[test]
fn of_the_controller() {
    holds("control");
}

#[test]
fn of_the_part_for_kubernetes() {
    holds("kube");
}

#[test]
fn of_the_command() {
    holds("cli");
}

#[test]
fn of_the_console() {
    holds("console");
}

#[test]
fn of_the_lab() {
    holds("bench");
}

fn found(floors: &str, files: &[(&str, &str)]) -> String {
    let text = |(name, text): &(&str, &str)| (PathBuf::from(name), (*text).to_owned());
    let texts: BTreeMap<_, _> = files.iter().map(text).collect();
    Floors::parse(floors)
        .expect("the floors make sense")
        .check(&Sources::of_texts(&texts))
}

#[test]
fn an_arrow_that_runs_up_is_found_however_it_is_written() {
    let floors = "lib\ntop\nmiddle side\nground\n";
    let look = |text: &str| {
        let files = [
            ("lib.rs", "mod top;"),
            ("top/mod.rs", "use crate::{ground, middle::{self, Deep}};"),
            ("top/child.rs", ""),
            ("middle.rs", text),
            ("side.rs", ""),
            ("ground.rs", ""),
        ];
        found(floors, &files)
    };
    let up = |line: usize, path: &str| {
        format!("middle.rs:{line}: `{path}` runs up: top stands above middle\n")
    };
    assert_eq!(look("use crate::ground::Thing;"), "");
    assert_eq!(look("\nuse crate::top::Thing;"), up(2, "top::Thing"));
    assert_eq!(
        look("use super::top::child::Thing;"),
        up(1, "top::child::Thing")
    );
    let group = "use crate::{\n ground,\n top::{child::{A}},\n};";
    assert_eq!(look(group), up(1, "top::child::A"));
    assert_eq!(look("fn f() -> crate::top::A {}"), up(1, "top::A"));
    let across = "middle.rs:1: `side::A` runs across: side stands beside middle\n";
    assert_eq!(look("use crate::side::A;"), across);
    for nothing in [
        "// use crate::top::A;",
        "const A: &str = \"crate::top::A\";",
        "const A: &str = r#\"crate::top::A\"#;",
        "#[cfg(test)]\nmod tests { use crate::top::A; fn a() { {} } }",
        "#[cfg(test)]\nmod top_tests;",
        "macro_rules! m { () => { $crate::top::A } }",
    ] {
        assert_eq!(look(nothing), "", "{nothing}");
    }
    let behind = "const Q: char = '\"';\n// it's\nfn f<'a>(a: &'a str) { crate::top::run(\"}\") }";
    assert_eq!(look(behind), up(3, "top::run"));
    let field = "struct S {\n #[cfg(test)]\n seen: Map<u8, u8>,\n all: u8,\n}\nimpl S { fn f() { crate::top::run() } }";
    assert_eq!(look(field), up(6, "top::run"));
}

#[test]
fn each_module_has_one_floor() {
    let files = [("a.rs", ""), ("b.rs", "")];
    assert_eq!(found("b\na", &files), "");
    assert_eq!(found("a", &files), "b: this module has no floor\n");
    assert_eq!(found("a\nb\nc", &files), "c: this floor has no module\n");
    assert!(Floors::parse("a\na b").is_err());
}

/// Crates without floors have no long circles, either.
#[test]
fn no_crate_has_a_circle_of_more_than_three_files() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let mut seen = 0;
    for folder in std::fs::read_dir(crates).unwrap().flatten() {
        let sources = Sources::read(&folder.path().join("src")).unwrap();
        let found = tests_house::circles(&sources);
        assert!(found.is_empty(), "{}: {found}", folder.path().display());
        seen += 1;
    }
    assert!(seen > 10);
}

#[test]
fn a_circle_of_more_than_three_files_is_found() {
    let ring = |n: usize| -> String {
        let texts: Vec<(String, String)> = (0..n)
            .map(|i| {
                (
                    format!("a/f{i}.rs"),
                    format!("use super::f{};", (i + 1) % n),
                )
            })
            .collect();
        let files: Vec<(&str, &str)> = texts.iter().map(|(a, b)| (&**a, &**b)).collect();
        let files: Vec<_> = [("a/mod.rs", "")].into_iter().chain(files).collect();
        found("a", &files)
    };
    assert_eq!(ring(3), "");
    let four = ring(4);
    assert!(
        four.starts_with("4 files import each other:\n  a/f0.rs -> a/f1.rs: a::f1\n"),
        "{four}"
    );
}
