//! A namespace is never cut out of a name at a dot where `dots.txt` says so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tests_house::dots;

#[test]
fn names_are_types_where_namespaces_decide() {
    let house = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = std::fs::read_to_string(house.join("dots.txt")).expect("the list of folders");
    if let Err(found) = dots::check(&list, &house.join("../../crates")) {
        panic!("{found}");
    }
}

fn found(text: &str) -> Vec<String> {
    let files = [
        ("index/mod.rs", text),
        ("state.rs", "fn f() { \"\".split('.'); }"),
    ];
    let files = files.map(|(name, text)| (PathBuf::from(name), text.to_owned()));
    dots::found(&BTreeMap::from(files), Path::new("index"))
}

#[test]
fn a_name_that_is_cut_or_joined_at_a_dot_is_found_with_its_line() {
    let line = "let (name, namespace) = key.rsplit_once('.')?;";
    let text = format!("fn f() {{\n    {line} // the last one\n}}");
    assert_eq!(found(&text), [format!("index/mod.rs:2: {line}")]);
    for cut in [
        "name.split('.')",
        "name.splitn(2, '.')",
        "name.rfind(\".\")",
        "name.strip_suffix('.')",
        "name.ends_with(\".shop\")",
        "name.ends_with(&format!(\".{namespace}\"))",
        "format!(\"{name}.{namespace}\")",
        "format!(\"{}.{}\", name, namespace)",
    ] {
        assert_eq!(found(cut).len(), 1, "{cut}");
    }
}

#[test]
fn other_dots_are_nobodys_business() {
    for other in [
        "// key.rsplit_once('.')",
        "/// Splits `a.b` with `split('.')`.",
        "name.contains('.')",
        "name.split_once('/')",
        "name.push('.')",
        "name.strip_prefix(\"x\".trim())",
        "println!(\"{name}. {namespace}\")",
        "#[cfg(test)]\nmod tests {\n    fn f() { key.rsplit_once('.'); }\n}",
    ] {
        assert!(found(other).is_empty(), "{other}");
    }
}
