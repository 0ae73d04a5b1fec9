//! Every page and completion is written, and says what the command line is.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

fn written() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_tulle-man"));
    assert!(program.arg(place.path()).status().unwrap().success());
    place
}

fn page(place: &Path, name: &str) -> String {
    fs::read_to_string(place.join("man1").join(name)).unwrap()
}

#[test]
fn each_command_has_a_page_with_its_options_and_examples() {
    let place = written();
    let tulle = page(place.path(), "tulle.1");
    for has in [
        ".TH tulle 1  \"tulle ",
        "\ntulle \\- Tulle: a light service mesh\n",
        "\ntulle\\-up(1)\n",
        ".SH \"EXIT STATUS\"",
        "\n.SH EXAMPLES\n.nf\ntulle up mesh.yaml \\-\\-detach  ",
    ] {
        assert!(tulle.contains(has), "{has}: {tulle}");
    }
    let up = page(place.path(), "tulle-up.1");
    assert!(up.contains("\\-\\-detach"), "{up}");
    assert!(up.contains("TULLE_STATE"), "{up}");
    assert!(up.contains("\\fBtulle\\fR(1)"), "{up}");
    assert!(
        page(place.path(), "tulle-ca-rotate.1").contains("tulle\\-ca"),
        "a command below another one"
    );
    let names: Vec<_> = fs::read_dir(place.path().join("man1"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.len() > 40, "{names:?}");
    assert!(!names.iter().any(|n| n.contains("help")), "{names:?}");
}

#[test]
fn other_programs_have_pages_with_every_option_of_their_help() {
    let place = written();
    for (name, help, options) in [
        (
            "tulle-proxy.1",
            include_str!("../../proxy/src/help.txt"),
            13,
        ),
        ("tulle-envoy.1", include_str!("../../envoy/src/help.txt"), 7),
    ] {
        let page = page(place.path(), name);
        let words = help.split_whitespace();
        let seen: Vec<_> = words.filter(|word| word.starts_with("--")).collect();
        assert_eq!(seen.len(), options, "{seen:?}");
        for option in seen {
            let escaped = option.replace('-', "\\-");
            assert!(page.contains(&escaped), "{option}: {page}");
        }
        let described = "\n.TP\n\\fB\\-\\-config FILE\\fR\nRead identity";
        assert!(page.contains(described), "{page}");
    }
    let envoy = page(place.path(), "tulle-envoy.1");
    assert!(
        envoy.contains("\n.SH DESCRIPTION\n`tulle up \\-\\-data\\-plane envoy`"),
        "{envoy}"
    );
}

#[test]
fn completions_are_of_three_shells() {
    let place = written();
    for (name, has) in [
        ("tulle.bash", "complete -F _tulle"),
        ("tulle.fish", "complete -c tulle"),
        ("_tulle", "#compdef tulle"),
    ] {
        let script = fs::read_to_string(place.path().join("completions").join(name)).unwrap();
        assert!(script.contains(has), "{name}");
    }
}

#[test]
fn a_wrong_command_line_is_refused() {
    let run = Command::new(env!("CARGO_BIN_EXE_tulle-man"))
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(64));
    let run = Command::new(env!("CARGO_BIN_EXE_tulle-man"))
        .arg("/dev/null/nowhere")
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).contains("/dev/null/nowhere"));
}
