//! How results are printed: aligned columns for people, JSON and YAML for programs.

use crate::args::output::Format;
use crate::failure::{OrFail, Result};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use tulle_model::to_yaml;

/// Drawing over itself and colours are for a terminal that can do it.
pub(crate) fn is_terminal() -> bool {
    !is_dumb() && std::io::stdout().is_terminal()
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|t| t == "dumb")
}

/// Whether progress can be drawn over itself.
pub(crate) fn is_progress_drawn() -> bool {
    !is_dumb() && std::io::stderr().is_terminal()
}

/// Whether to colour (`NO_COLOR`, see no-color.org).
pub(crate) fn has_colour() -> bool {
    is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Columns and rows of the terminal; one that does not know its size is taken for the usual one.
pub(crate) fn terminal_size() -> (usize, usize) {
    size_of(std::io::stdout())
}

fn size_of(terminal: impl std::os::fd::AsFd) -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(terminal);
    let size = size.map_or((0, 0), |s| (usize::from(s.ws_col), usize::from(s.ws_row)));
    match size {
        (columns, rows) if columns > 0 && rows > 0 => size,
        _ => (80, 24),
    }
}

/// How a line is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// No problem.
    Good,
    /// Worth a look.
    Doubtful,
    /// Wrong.
    Bad,
}

/// A text in the colour of its meaning, if there are colours.
pub(crate) fn paint(text: &str, mark: Mark) -> String {
    use owo_colors::OwoColorize;
    if !has_colour() {
        return text.to_owned();
    }
    match mark {
        Mark::Good => text.green().to_string(),
        Mark::Doubtful => text.yellow().to_string(),
        Mark::Bad => text.red().to_string(),
    }
}

/// Prints a line; a reader that went away (`| head`) ends the command quietly.
pub(crate) fn line(line: &str) {
    text(&format!("{line}\n"));
}

/// Prints a text that has its own line ends; a reader that went away ends the command quietly.
pub(crate) fn text(text: &str) {
    print(&harmless(text));
}

fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_all(text.as_bytes())
        && e.kind() == std::io::ErrorKind::BrokenPipe
    {
        std::process::exit(0);
    }
}

/// Prints a line of progress. Standard output is for results, so this goes to standard error.
pub(crate) fn progress(text: &str) {
    // The reader may have gone away; the work goes on.
    let _ = writeln!(anstream::stderr().lock(), "{}", harmless(text));
}

/// Prints a line of progress over what the terminal has on its line by now.
pub(crate) fn progress_over(text: &str) {
    if is_progress_drawn() {
        // As above.
        let _ = write!(anstream::stderr().lock(), "\r\x1b[K");
    }
    progress(text);
}

/// Prints for programs; false if a table was asked for.
pub(crate) fn structured<T: Serialize>(value: &T, format: Format) -> Result<bool> {
    match format {
        Format::Table | Format::Wide => return Ok(false),
        // One writer of JSON for all types, as of YAML.
        Format::Json => {
            let value = serde_json::to_value(value).or_fail(|| "cannot print JSON".to_owned())?;
            print(&format!("{value:#}\n"));
        }
        Format::Yaml => {
            let text = to_yaml(value).or_fail(|| "cannot print YAML".to_owned())?;
            print(&format!("{}\n", text.trim_end()));
        }
    }
    Ok(true)
}

/// Rows under a heading.
pub(crate) struct Columns {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// No rows yet.
    pub(crate) fn new(heads: &[&'static str]) -> Self {
        Self {
            heads: heads.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. A text of several lines becomes one line, so that it stays in its cell.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows
            .push(cells.into_iter().map(|c| one_line(&c)).collect());
    }

    /// Whether there is anything to show.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Aligned by spaces, for `grep`, `awk` and eyes alike; an empty cell is `-`.
    pub(crate) fn render(&self) -> String {
        let heads: Vec<String> = self.heads.iter().map(ToString::to_string).collect();
        let mut widths = vec![0; heads.len()];
        for cells in std::iter::once(&heads).chain(&self.rows) {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(visible(cell)).max(1);
            }
        }
        let render = |cells: &Vec<String>| {
            let mut text = String::new();
            for (cell, width) in cells.iter().zip(&widths) {
                let cell = if cell.is_empty() { "-" } else { cell };
                let gap = width.saturating_sub(visible(cell)) + 2;
                text.push_str(cell);
                text.extend(std::iter::repeat_n(' ', gap));
            }
            text.trim_end().to_owned()
        };
        let rows = self.rows.iter().map(render);
        std::iter::once(bold(&render(&heads)))
            .chain(rows)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Joins the lines of a text.
pub(crate) fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}

/// A text that a terminal shows and does not obey, but for colours: applications and tenants of a cluster choose names, and
/// what their sidecars answer.
fn harmless(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(obeyed) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(obeyed) {
        let (before, control) = rest.split_at(at);
        out.push_str(before);
        let colour = colour(control);
        out.push_str(if colour.is_empty() { " " } else { colour });
        let first = control.chars().next().map_or(0, char::len_utf8);
        rest = control.get(first.max(colour.len())..).unwrap_or_default();
    }
    out.push_str(rest);
    out.into()
}

/// The sequence at the beginning of a text that changes colours (ECMA-48, SGR), if it is one.
fn colour(text: &str) -> &str {
    let parameters = text.strip_prefix("\x1b[").unwrap_or_default();
    let is_parameter = |c: char| c.is_ascii_digit() || c == ';';
    let end = parameters.trim_start_matches(is_parameter);
    match end.strip_prefix('m') {
        Some(after) => text.strip_suffix(after).unwrap_or_default(),
        None => "",
    }
}

fn bold(text: &str) -> String {
    use owo_colors::OwoColorize;
    if has_colour() {
        text.bold().to_string()
    } else {
        text.to_owned()
    }
}

/// How many columns a line takes, colours apart.
pub(crate) fn visible(text: &str) -> usize {
    let mut count = 0;
    let mut escape = false;
    for c in text.chars() {
        match (escape, c) {
            (true, _) => escape = !c.is_ascii_alphabetic(),
            (false, '\x1b') => escape = true,
            (false, _) => count += 1,
        }
    }
    count
}

/// A line that fits; what is cut off is marked, what is coloured ends so.
fn cut(text: &str, columns: usize) -> String {
    if visible(text) <= columns {
        return text.to_owned();
    }
    let (mut out, mut count, mut escape, mut coloured) = (String::new(), 0, false, false);
    for c in text.chars() {
        match (escape, c) {
            (true, _) => escape = !c.is_ascii_alphabetic(),
            (false, '\x1b') => (escape, coloured) = (true, true),
            (false, _) if count + 1 >= columns => break,
            (false, _) => count += 1,
        }
        out.push(c);
    }
    out.push('…');
    if coloured {
        out.push_str("\x1b[0m");
    }
    out
}

/// A part of the terminal that is drawn over itself. It hides nothing and changes no setting of
/// the terminal, so nothing has to be restored however the command ends.
#[derive(Default)]
pub(crate) struct Screen {
    drawn: usize,
    size: (usize, usize),
    /// Draws on standard error.
    progress: bool,
}

impl Screen {
    /// A screen for progress, on standard error.
    pub(crate) fn for_progress() -> Self {
        Self {
            progress: true,
            ..Self::default()
        }
    }

    /// Draws over what was drawn before. If the terminal is too low, lines before the last `foot`
    /// are left out.
    pub(crate) fn draw(&mut self, lines: &[String], foot: usize) {
        let size = match self.progress {
            true => size_of(std::io::stderr()),
            false => terminal_size(),
        };
        let lines = fit(lines, foot, size);
        let mut frame = String::new();
        if self.drawn > 0 && self.size != size {
            // Lines may have been broken anew: nobody knows where they are.
            frame.push_str("\x1b[2J\x1b[H");
        } else if self.drawn > 0 {
            frame.push_str(&format!("\x1b[{}A\r", self.drawn));
        }
        for line in &lines {
            frame.push_str(line);
            frame.push_str("\x1b[K\n");
        }
        frame.push_str("\x1b[J");
        (self.drawn, self.size) = (lines.len(), size);
        self.print(&frame);
    }

    /// Takes away what was drawn.
    pub(crate) fn clear(&mut self) {
        if self.drawn > 0 {
            self.print(&format!("\x1b[{}A\r\x1b[J", self.drawn));
            self.drawn = 0;
        }
    }

    /// A terminal that is gone sends a hang-up too.
    fn print(&self, text: &str) {
        fn all(mut out: impl Write, text: &str) -> std::io::Result<()> {
            out.write_all(text.as_bytes())?;
            out.flush()
        }
        let _ = match self.progress {
            true => all(std::io::stderr().lock(), text),
            false => all(std::io::stdout().lock(), text),
        };
    }
}

/// Lines for a terminal of this size; its last row is left to the cursor.
fn fit(lines: &[String], foot: usize, (columns, rows): (usize, usize)) -> Vec<String> {
    let room = rows.saturating_sub(1).max(1);
    let lines = lines.iter().map(|line| harmless(line));
    let mut fitting: Vec<String> = lines.map(|line| cut(&line, columns)).collect();
    if fitting.len() > room {
        let foot = foot.min(room.saturating_sub(1));
        let from = room - foot - 1;
        let out = fitting.len() - foot - from;
        let note = format!("… {out} more lines: `tulle status` shows all");
        let keep_from = fitting.len() - foot;
        fitting.splice(from..keep_from, [cut(&note, columns)]);
    }
    fitting
}

/// `1.5 MiB`.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn bytes(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{count} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// A moment in UTC, from Unix seconds.
pub(crate) fn clock(seconds: i64) -> String {
    let seconds = seconds.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    let moment = Timestamp::from_second(seconds).unwrap_or_default();
    // RFC 3339, without what only programs need.
    moment.to_string().trim_end_matches('Z').replace('T', " ")
}

/// A duration until a point in time, coarse: `23h`, `4m`, `12s`.
pub(crate) fn coarse(seconds: i64) -> String {
    match seconds {
        i64::MIN..=-1 => "expired".into(),
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_but_colours() {
        for (text, shown) in [
            ("plain\ttext\n", "plain\ttext\n"),
            ("\x1b[31;1mred\x1b[0m", "\x1b[31;1mred\x1b[0m"),
            ("\x1b[2J\x1b[H", " [2J [H"),
            ("\x1b]0;title\x07", " ]0;title "),
            ("over\rwritten\x08\u{9b}2J", "over written  2J"),
            ("\x1b[31", " [31"),
            ("\x1b", " "),
            ("ü\x1b[mü\x1b[ü", "ü\x1b[mü [ü"),
        ] {
            assert_eq!(harmless(text), shown, "{text:?}");
        }
        assert_eq!(fit(&["\x1b[2Ja".into()], 0, (80, 24)), [" [2Ja"]);
    }

    #[test]
    fn plain_columns_are_aligned_and_have_no_empty_cell() {
        let mut columns = Columns::new(&["NAME", "X"]);
        columns.row(vec!["a-long-name".into(), "1".into()]);
        columns.row(vec!["b".into(), String::new()]);
        assert_eq!(
            columns.render(),
            "NAME         X\na-long-name  1\nb            -"
        );
    }

    #[test]
    fn a_text_of_several_lines_stays_in_its_row() {
        let mut columns = Columns::new(&["NAME", "NOTE", "X"]);
        let note = "cannot start: no port\n  what to do: choose one\r\n".into();
        columns.row(vec!["a".into(), note, "1".into()]);
        assert_eq!(
            columns.render(),
            "NAME  NOTE                                           X\n\
             a     cannot start: no port; what to do: choose one  1"
        );
    }

    #[test]
    fn colours_take_no_room() {
        let mut columns = Columns::new(&["A", "B"]);
        columns.row(vec!["\x1b[32myes\x1b[39m".into(), "1".into()]);
        columns.row(vec!["maybe".into(), "2".into()]);
        assert_eq!(
            columns.render(),
            "A      B\n\x1b[32myes\x1b[39m    1\nmaybe  2"
        );
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
        assert_eq!(cut("\x1b[32mabcd\x1b[39m", 3), "\x1b[32mab…\x1b[0m");
    }

    #[test]
    fn a_low_terminal_keeps_the_foot() {
        let lines: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(fit(&lines, 1, (80, 11)), lines);
        assert_eq!(
            fit(&lines, 1, (80, 6)),
            [
                "0",
                "1",
                "2",
                "… 6 more lines: `tulle status` shows all",
                "9"
            ]
        );
        for rows in 0..4 {
            assert!(fit(&lines, 3, (80, rows)).len() <= rows.saturating_sub(1).max(1));
        }
    }

    #[test]
    fn units() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(8 << 20), "8.0 MiB");
        assert_eq!(coarse(-1), "expired");
        assert_eq!(coarse(90), "90s");
        assert_eq!(coarse(86_400), "24h");
    }
}
