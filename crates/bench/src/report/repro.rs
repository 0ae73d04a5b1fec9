//! `repro.sh`: the command line that measures it again.

use crate::results::Results;

/// Returns this process's program and arguments. `--out` is left out, so that a repetition does not
/// overwrite the results that it repeats.
pub(super) fn command() -> Vec<String> {
    let program = std::env::current_exe().map_or_else(
        |_| "tulle".to_owned(),
        |path| path.to_string_lossy().into_owned(),
    );
    let arguments = std::env::args_os().skip(1);
    let arguments = arguments.map(|a| a.to_string_lossy().into_owned());
    std::iter::once(program)
        .chain(without_out(arguments))
        .collect()
}

/// Returns the working directory: paths on the command line and `bench-out` are relative to it.
pub(super) fn directory() -> String {
    std::env::current_dir().map_or_else(
        |_| ".".to_owned(),
        |path| path.to_string_lossy().into_owned(),
    )
}

fn without_out(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        if argument == "--out" {
            arguments.next();
        } else if !argument.starts_with("--out=") {
            kept.push(argument);
        }
    }
    kept
}

/// Quotes a command for a shell.
pub(super) fn line(command: &[String]) -> String {
    let words: Vec<String> = command.iter().map(|word| quote(word)).collect();
    words.join(" ")
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The script.
pub(super) fn script(results: &Results) -> String {
    let commit = results.environment.commit.as_deref().unwrap_or("unknown");
    let versions: Vec<String> = results
        .versions
        .iter()
        .map(|(name, version)| format!("#   {name}: {}", version.replace('\n', " ")))
        .collect();
    let incomplete = results.incomplete();
    let incomplete = incomplete.map_or_else(String::new, |why| format!(" ({why})"));
    format!(
        "#!/bin/sh\n# Measures again what this directory holds: {}, {}{incomplete}.\n# Commit: {commit}. Versions:\n{}\n# Results go to a new directory below bench-out; other options may be added.\ncd {} || exit\nexec {} \"$@\"\n",
        results.study,
        results.date,
        versions.join("\n"),
        quote(&results.directory),
        line(&results.command)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repetition_has_a_directory_of_its_own() {
        let kept = |line: &str| without_out(line.split(' ').map(str::to_owned)).join(" ");
        assert_eq!(kept("bench pair --out x --quick"), "bench pair --quick");
        assert_eq!(kept("bench pair --quick --out=x"), "bench pair --quick");
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        let command = ["a b".to_owned(), "it's".into(), "--vs=none,envoy".into()];
        assert_eq!(line(&command), r"'a b' 'it'\''s' --vs=none,envoy");
    }
}
