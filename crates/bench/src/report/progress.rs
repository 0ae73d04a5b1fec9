//! What the person who waits sees: a bar with the time left on a terminal, plain lines in a pipe.

use crate::results::{Sample, figure};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Write as _;
use std::time::Duration;

pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new() -> Self {
        // Hidden by itself when standard error is no terminal.
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{bar:30} {percent:>3}%  {msg}  {prefix}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
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

    /// From the estimates, not from the speed so far: cells differ too much.
    fn left(&self) {
        let left = self
            .bar
            .length()
            .unwrap_or(0)
            .saturating_sub(self.bar.position())
            / 1000;
        let text = format!("{}:{:02} left", left / 60, left % 60);
        self.bar.set_prefix(text);
    }

    pub(super) fn line(&self, text: &str) {
        self.bar.suspend(|| anstream::println!("{text}"));
    }

    pub(super) fn finish(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// One line for one sample.
pub(super) fn describe(sample: &Sample) -> String {
    let mut line = format!(
        "run {}  {:28} {:20}",
        sample.repeat + 1,
        sample.scenario,
        sample.peer
    );
    let figures = [
        (figure::RPS, "requests/s", 0),
        (figure::CPU_US_PER_REQUEST, "µs CPU/request", 1),
        (figure::P50_MS, "ms p50", 2),
        (figure::P99_MS, "ms p99", 2),
    ];
    for (name, unit, digits) in figures {
        if let Some(value) = sample.figure(name) {
            let _ = write!(line, "  {value:9.digits$} {unit}");
        }
    }
    if let Some(why) = &sample.invalid {
        let _ = write!(line, "  INVALID: {why}");
    }
    for remark in &sample.remarks {
        let _ = write!(line, "  ({remark})");
    }
    line
}
