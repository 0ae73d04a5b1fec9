//! Pages for `man`, in roff.
//!
//! `clap_mangen` makes each section of a command's page. Only the end of a command's help is read here: its examples are lines
//! that must stay as they are, and `clap_mangen` would fill them.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;

/// A page.
pub(crate) struct Page {
    /// The command, with `-` between its words.
    pub(crate) name: String,
    /// Its roff.
    pub(crate) text: String,
}

const MANUAL: &str = "Tulle";

/// Pages of a command and of all commands below it that its help shows.
pub(crate) fn of_command(command: Command, version: &str) -> io::Result<Vec<Page>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, None, version, &mut pages)?;
    Ok(pages)
}

fn add(
    command: &Command,
    parent: Option<&str>,
    version: &str,
    pages: &mut Vec<Page>,
) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let man = Man::new(command.clone())
        .source(format!("tulle {version}"))
        .manual(MANUAL);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let below: Vec<&Command> = command
        .get_subcommands()
        .filter(|c| !c.is_hide_set())
        .collect();
    if !below.is_empty() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut end = Roff::new();
    let help = command
        .get_after_long_help()
        .or_else(|| command.get_after_help());
    if let Some(help) = help {
        sections(&help.to_string(), &mut end);
    }
    if let Some(parent) = parent {
        end.control("SH", ["SEE ALSO"]);
        end.text([bold(parent), roman("(1)")]);
    }
    end.to_writer(&mut page)?;
    pages.push(Page {
        name: name.to_owned(),
        text: with_one_preamble(&String::from_utf8_lossy(&page)),
    });
    for command in below {
        add(command, Some(name), version, pages)?;
    }
    Ok(())
}

/// Writes paragraphs of a help's end. One that begins with a word and a colon has a section of its own.
fn sections(help: &str, roff: &mut Roff) {
    for paragraph in help.split("\n\n") {
        let mut lines = paragraph.lines();
        let first = lines.next().unwrap_or_default();
        if let Some(codes) = first.strip_prefix("Exit codes: ") {
            roff.control("SH", ["EXIT STATUS"]);
            roff.text([roman(codes)]);
            lines.for_each(|line| {
                roff.text([roman(line)]);
            });
            continue;
        }
        match first.strip_suffix(':') {
            Some(heading) => {
                // A long one is a heading with what it says about itself.
                let (heading, more) = heading.split_once(", ").unwrap_or((heading, ""));
                roff.control("SH", [heading.to_uppercase().as_str()]);
                if !more.is_empty() {
                    roff.text([roman(format!("{more}:"))]);
                }
            }
            None => {
                roff.control("PP", []);
                roff.text([roman(first)]);
            }
        }
        verbatim(lines, roff);
    }
}

fn verbatim<'a>(lines: impl Iterator<Item = &'a str>, roff: &mut Roff) {
    roff.control("nf", []);
    for line in lines {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []);
}

/// A page of the text that `--help` prints: a sentence, `Usage:`, what else there is to say, and `Options:`.
pub(crate) fn of_help(name: &str, help: &str, version: &str) -> Page {
    let mut parts = help.split("\n\n");
    let about = parts.next().unwrap_or_default();
    let source = format!("tulle {version}");
    let mut roff = Roff::new();
    roff.control("TH", [name, "1", "", source.as_str(), MANUAL]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {about}"))]);
    for part in parts {
        if let Some(usage) = part.strip_prefix("Usage: ") {
            roff.control("SH", ["SYNOPSIS"]);
            verbatim(usage.lines().map(str::trim_start), &mut roff);
        } else if let Some(options) = part.strip_prefix("Options:\n") {
            roff.control("SH", ["OPTIONS"]);
            for option in options.lines().map(str::trim_start) {
                let (option, does) = option.split_once("  ").unwrap_or((option, ""));
                roff.control("TP", []);
                roff.text([bold(option)]);
                roff.text([roman(does.trim_start())]);
            }
        } else {
            roff.control("SH", ["DESCRIPTION"]);
            roff.text([roman(part)]);
        }
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("tulle"), roman("(1)")]);
    Page {
        name: name.to_owned(),
        text: roff.render(),
    }
}

/// Each section comes with the lines that say how to print an apostrophe: once is enough.
fn with_one_preamble(page: &str) -> String {
    let preamble = Roff::new().render();
    preamble.clone() + &page.replace(&preamble, "")
}
