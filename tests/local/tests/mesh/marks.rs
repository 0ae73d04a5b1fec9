//! Marks of pages: comments above a block of commands, which readers do not see, say how a test runs it, or why none does.
//!
//! | mark | meaning |
//! |---|---|
//! | `not run: REASON` | no test runs the block |
//! | `not run, LINE: REASON` | none runs this line of it |
//! | `first: COMMAND` | what is done before it, until it ends with 0 |
//! | `between: COMMAND` | what is done after each line |
//! | `until Ctrl-C: LINE` | the line runs until it is interrupted |
//! | `on another host: LINE` | it runs beside the others, as another host would |
//! | `blocks of this page are not run: REASON`, `… run by: TEST` | at the end of a page, for all of its blocks |

use crate::reference_pages::is_followed;
use std::fs;
use std::path::{Path, PathBuf};
use tests_local::repository;

/// The mark of a whole page.
const OF_PAGE: &str = "blocks of this page are ";
/// The kinds of blocks whose lines are commands.
const COMMANDS: [&str; 2] = ["sh", "console"];

/// A fenced block, with what stands above it.
pub(crate) struct Block<'a> {
    /// The first word behind its fence.
    pub(crate) kind: &'a str,
    /// The number of its first line in the page.
    pub(crate) number: usize,
    pub(crate) lines: Vec<&'a str>,
    marks: Vec<&'a str>,
}

impl<'a> Block<'a> {
    /// Returns what its marks of a kind say, such as `first: `.
    pub(crate) fn marked(&self, kind: &str) -> Vec<&'a str> {
        let marks = self.marks.iter();
        marks.filter_map(|mark| mark.strip_prefix(kind)).collect()
    }

    /// Whether no test shall run it.
    pub(crate) fn is_left_out(&self) -> bool {
        !self.marked("not run: ").is_empty()
    }

    /// Whether no test shall run this line of it.
    pub(crate) fn leaves_out(&self, line: &str) -> bool {
        let marks = self.marked("not run, ").into_iter();
        marks
            .filter_map(|mark| mark.rsplit_once(": "))
            .any(|(left_out, _)| left_out == line)
    }

    pub(crate) fn holds_commands(&self) -> bool {
        COMMANDS.contains(&self.kind)
    }

    /// Its lines without remarks, those that go on in the next one together with it. Of a console block those that are
    /// commands.
    pub(crate) fn commands(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for &line in &self.lines {
            let line = match self.kind {
                "console" => match line.trim_start().strip_prefix("$ ") {
                    Some(command) => command,
                    None => continue,
                },
                _ => line,
            };
            match all.last_mut() {
                Some(last) if last.ends_with('\\') => {
                    last.push('\n');
                    last.push_str(line);
                }
                _ => all.push(line.to_owned()),
            }
        }
        let all = all.iter().map(|line| without_remark(line).to_owned());
        all.filter(|line| !line.is_empty()).collect()
    }

    /// Says what is wrong with its marks.
    fn faults(&self) -> Vec<String> {
        let commands = self.commands();
        let is_line = |line: &str| commands.iter().any(|command| command == line);
        let mut wrong = Vec::new();
        for mark in &self.marks {
            let is_right = match mark.split_once(": ") {
                Some(("not run" | "first" | "between", text)) => !text.is_empty(),
                Some(("until Ctrl-C" | "on another host", line)) => is_line(line),
                _ => mark
                    .strip_prefix("not run, ")
                    .and_then(|rest| rest.rsplit_once(": "))
                    .is_some_and(|(line, _)| is_line(line)),
            };
            if !is_right {
                wrong.push(format!(
                    "`{mark}` is no mark, or names no line of the block"
                ));
            }
        }
        wrong
    }
}

fn without_remark(line: &str) -> &str {
    let (command, _) = line.split_once(" # ").unwrap_or((line, ""));
    command.trim_end()
}

fn comment(line: &str) -> Option<&str> {
    line.strip_prefix("<!-- ")?.strip_suffix(" -->")
}

/// All fenced blocks of a page.
pub(crate) fn marked_blocks(page: &str) -> Vec<Block<'_>> {
    let (mut found, mut marks) = (Vec::new(), Vec::new());
    let mut open: Option<Block<'_>> = None;
    for (at, line) in page.lines().enumerate() {
        let text = line.trim();
        if let Some(mut block) = open.take() {
            if text == "```" {
                found.push(block);
            } else {
                block.lines.push(line);
                open = Some(block);
            }
        } else if let Some(kind) = text.strip_prefix("```") {
            open = Some(Block {
                kind: kind.split(' ').next().unwrap_or_default(),
                number: at + 2,
                lines: Vec::new(),
                marks: std::mem::take(&mut marks),
            });
        } else if let Some(mark) = comment(text) {
            marks.push(mark);
        } else if !text.is_empty() {
            marks.clear();
        }
    }
    found
}

/// Says what is wrong with the mark of a whole page; none if it has no such mark.
fn page_mark(page: &str) -> Option<Vec<String>> {
    let last = comment(page.lines().last()?)?.strip_prefix(OF_PAGE)?;
    let is_right = match last.split_once(": ") {
        Some(("run by", test)) => repository().join(test).is_file(),
        Some(("not run", reason)) => !reason.is_empty(),
        _ => false,
    };
    let wrong = (!is_right).then(|| format!("`{last}` is no reason, or names no test"));
    Some(wrong.into_iter().collect())
}

/// Whether a block without a kind shows commands.
fn hides_commands(block: &Block<'_>) -> bool {
    let first = block.lines.first().copied().unwrap_or_default();
    let begin = ["$ ", "tulle ", "curl "];
    block.kind.is_empty() && begin.iter().any(|word| first.starts_with(*word))
}

fn pages_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("docs/zh") {
            pages_below(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

/// The English pages; a check of `scripts/docs` holds the blocks of translations against them.
fn pages() -> Vec<PathBuf> {
    let top = repository();
    let of_top = fs::read_dir(&top).unwrap().map(|e| e.unwrap().path());
    let mut found: Vec<_> = of_top
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    for directory in ["docs", "demo"] {
        pages_below(&top.join(directory), &mut found);
    }
    found.sort();
    found
}

#[test]
fn every_block_of_commands_is_run_or_says_why_not() {
    let (mut run, mut left_out, mut wrong) = (0, 0, Vec::new());
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(repository()).unwrap().to_str().unwrap();
        let of_page = page_mark(&page);
        let is_marked = of_page.is_some();
        let told = of_page.unwrap_or_default().into_iter();
        wrong.extend(told.map(|fault| format!("{name}: {fault}")));
        for block in marked_blocks(&page) {
            let at = format!("{name}:{}", block.number);
            if hides_commands(&block) {
                wrong.push(format!("{at}: commands are in blocks of `sh` or `console`"));
            }
            if !block.holds_commands() {
                continue;
            }
            let faults = block.faults().into_iter();
            wrong.extend(faults.map(|fault| format!("{at}: {fault}")));
            match (is_marked || block.is_left_out(), is_followed(name)) {
                (true, _) => left_out += 1,
                (false, true) => run += 1,
                (false, false) => {
                    wrong.push(format!("{at}: no test runs it, and no mark says why"))
                }
            }
        }
    }
    println!("{run} blocks of commands are run, {left_out} not");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(run > 90, "{run}");
}

#[test]
fn marks_belong_to_the_block_below() {
    let page = "\
text

<!-- first: a -->
<!-- not run, c d: e: f -->
```sh
c d    # remark
g \\
  h
```

<!-- not run: i -->
text
```console
$ j
k
```
";
    let blocks = marked_blocks(page);
    let [sh, console] = &blocks[..] else {
        panic!("two blocks");
    };
    assert_eq!(sh.commands(), ["c d", "g \\\n  h"]);
    assert_eq!(sh.marked("first: "), ["a"]);
    assert!(!sh.leaves_out("g"));
    assert!(!sh.is_left_out() && !console.is_left_out());
    assert_eq!(console.commands(), ["j"]);
}
