//! Requests in a closed loop: a warm-up, then a measurement.

use super::watch::{Record, Watch};
use super::{Tool, jmeter, oha};
use crate::failure::Result;
use crate::interrupt::Interrupt;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A load generator that is there.
pub(super) struct Generator {
    /// The load generator.
    pub(super) tool: Tool,
    /// Its program or archive.
    pub(super) program: PathBuf,
}

/// A load to send.
pub(super) struct Order<'a> {
    /// Loopback port of the ingress.
    pub(super) port: u16,
    /// The path of each request.
    pub(super) path: &'a str,
    /// The expected body of every answer.
    pub(super) body: &'a str,
    /// Each with one request at a time.
    pub(super) connections: u32,
    /// Seconds before the measurement.
    pub(super) warmup: u64,
    /// Seconds of the measurement.
    pub(super) seconds: u64,
    /// The directory for its files.
    pub(super) directory: &'a Path,
}

/// The result of a load.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Measured {
    /// The start of the measurement, in seconds since 1970.
    pub(super) begin: f64,
    /// The end of the measurement.
    pub(super) end: f64,
    /// Requests answered with 200 in the measurement.
    pub(super) answered: u64,
    /// Requests answered with 200 before and after it.
    pub(super) answered_besides: u64,
    /// Requests of the measurement that were lost or answered otherwise, by what became of them.
    pub(super) lost: BTreeMap<String, u64>,
    /// The same of the warm-up.
    pub(super) lost_besides: BTreeMap<String, u64>,
    /// Figure to milliseconds.
    pub(super) latencies: BTreeMap<&'static str, f64>,
    /// Histogram in the form of [`crate::results::Sample::histogram`].
    pub(super) histogram: Option<String>,
}

impl Generator {
    /// Sends it. `watch` begins to watch, the load generator's process too.
    pub(super) fn run(
        &self,
        order: &Order<'_>,
        interrupt: &Interrupt,
        watch: impl FnOnce(u32) -> Watch,
    ) -> Result<(Measured, Record)> {
        match self.tool {
            Tool::Oha => oha::run(&self.program, order, interrupt, watch),
            Tool::Jmeter => jmeter::run(&self.program, order, interrupt, watch),
        }
    }
}
