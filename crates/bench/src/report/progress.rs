//! Shows the progress: a bar with the time left on a terminal, plain lines in a pipe.

use crate::results::{Results, Sample, figure};
use indicatif::{ProgressBar, ProgressStyle};
use owo_colors::OwoColorize;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new() -> Self {
        // Hidden by itself when standard error is no terminal.
        let bar = ProgressBar::new(0);
        let colours = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        let template = if colours && std::io::stderr().is_terminal() {
            "{bar:30.cyan/dim} {percent:>3}%  {prefix}  {msg:.bold}"
        } else {
            "{bar:30} {percent:>3}%  {prefix}  {msg}"
        };
        let style = ProgressStyle::with_template(template);
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("━╸─"));
        Self { bar }
    }

    pub(super) fn expect(&mut self, time: Duration) {
        self.bar.inc_length(millis(time));
        self.left();
    }

    pub(super) fn begin(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    pub(super) fn done(&mut self, estimate: Duration) {
        self.bar.inc(millis(estimate));
        self.left();
    }

    /// Shows the time left, from the estimates and not from the speed so far: cells differ too much.
    fn left(&self) {
        let whole = self.bar.length().unwrap_or(0);
        let left = whole.saturating_sub(self.bar.position()) / 1000;
        let text = format!("{}:{:02} left", left / 60, left % 60);
        self.bar.set_prefix(text);
    }

    /// One line for one sample, above the bar; colours only where they are seen.
    pub(super) fn sample(&self, sample: &Sample, results: &Results) {
        let width = |of: &mut dyn Iterator<Item = &str>| of.map(str::len).max().unwrap_or(0);
        let scenarios = width(&mut results.scenarios.iter().map(|s| s.name.as_str()));
        let number = format!("[{}/{}]", results.done + 1, results.planned);
        let rest = describe(sample, scenarios);
        self.bar
            .suspend(|| anstream::println!("{} {rest}", number.dimmed()));
    }

    pub(super) fn finish(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn describe(sample: &Sample, width: usize) -> String {
    let mut line = format!(
        "run {}  {:width$}  {:18}",
        sample.repeat + 1,
        sample.scenario,
        sample.peer
    );
    let figures = [
        (figure::RPS, "requests/s", 0),
        (figure::CPU_US_PER_REQUEST, "µs CPU/request", 1),
        (figure::MIB_PER_S, "MiB/s", 0),
        (figure::CPU_MS_PER_GIB, "ms CPU/GiB", 0),
        (figure::P50_MS, "ms p50", 2),
        (figure::P99_MS, "ms p99", 2),
        (figure::RSS_IDLE_MIB, "MiB idle", 1),
        (figure::RSS_PEAK_MIB, "MiB peak", 1),
        (figure::START_MS, "ms to start", 1),
    ];
    for (name, unit, digits) in figures {
        if let Some(value) = sample.figure(name) {
            let _ = write!(line, "  {value:7.digits$} {unit}");
        }
    }
    if let Some(why) = &sample.invalid {
        let _ = write!(line, "  {} {why}", "INVALID".red().bold());
    }
    for remark in &sample.remarks {
        let _ = write!(line, "  {}", format!("({remark})").yellow());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_who_what_and_whether_it_counts() {
        let mut sample = Sample::invalid("3 requests were lost");
        sample.scenario = "saturated-200B".into();
        sample.peer = "nginx".into();
        sample.figures.insert(figure::RPS.into(), 19_470.4);
        sample.remarks.push("load generator saturated".into());
        let line = anstream::adapter::strip_str(&describe(&sample, 16)).to_string();
        assert_eq!(
            line,
            "run 1  saturated-200B    nginx                 19470 requests/s  INVALID 3 requests were lost  (load generator saturated)"
        );
    }
}
