//! Counters about the proxy itself.

use super::WorkerReport;
use super::text::header;
use std::fmt::Write;
use std::sync::Arc;

/// Most audit rules, and most plugins, counted by name; the last one also stands for any further one.
const MAX_NAMED: usize = 256;

/// Counters by code. There are a handful of codes, all constants of the program.
#[derive(Debug, Clone, Default)]
pub struct CodeCounters(pub(super) Vec<(&'static str, u64)>);

impl CodeCounters {
    /// Adds to the counter of a code.
    pub fn add(&mut self, code: &'static str, count: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == code) {
            Some((_, sum)) => *sum += count,
            None => self.0.push((code, count)),
        }
    }

    fn merge(&mut self, other: Self) {
        for (code, count) in other.0 {
            self.add(code, count);
        }
    }
}

/// Counters about the proxy itself.
#[derive(Debug, Clone, Default)]
pub struct Internals {
    /// Connections accepted from downstream.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Handshakes that succeeded, as client and as server.
    pub handshakes: u64,
    /// Handshakes among these that resumed a session.
    pub resumed: u64,
    /// Handshakes that failed, by the cause's code.
    pub handshakes_failed: CodeCounters,
    /// Connections dialled.
    pub dialled: u64,
    /// Requests sent again after a reused connection died.
    pub replays: u64,
    /// Connections taken for opaque TCP because nothing recognisable came in time.
    pub detect_timeouts: u64,
    /// Connections or streams refused at a limit.
    pub overloads: u64,
    /// Plaintext connections refused in strict mode.
    pub plaintext_refused: u64,
    /// External authorization checks, by result.
    pub external_auth: CodeCounters,
    /// Matches of audit rules, by rule.
    pub audits: Vec<(Arc<str>, u64)>,
    /// Copies of requests, by result.
    pub mirrored: CodeCounters,
    /// Requests sent again, by cause.
    pub retries: CodeCounters,
    /// Calls of plugins by their result, for each plugin.
    pub plugins: Vec<(Arc<str>, CodeCounters)>,
    /// Counters of plugins themselves: plugin, name, count.
    pub plugin_counts: Vec<(Arc<str>, String, u64)>,
    /// Retries that a limit prevented, by the limit.
    pub retries_refused: CodeCounters,
    /// Endpoints asked although they were unhealthy, because none was healthy.
    pub panics: u64,
    /// Connections closed at once at a limit.
    pub shed: u64,
}

impl Internals {
    pub(super) fn merge(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.open += other.open;
        self.handshakes += other.handshakes;
        self.resumed += other.resumed;
        self.handshakes_failed.merge(other.handshakes_failed);
        self.dialled += other.dialled;
        self.replays += other.replays;
        self.detect_timeouts += other.detect_timeouts;
        self.overloads += other.overloads;
        self.plaintext_refused += other.plaintext_refused;
        self.mirrored.merge(other.mirrored);
        self.external_auth.merge(other.external_auth);
        for (plugin, outcomes) in other.plugins {
            for (outcome, count) in outcomes.0 {
                add_plugin(&mut self.plugins, &plugin, outcome, count);
            }
        }
        for (plugin, name, count) in &other.plugin_counts {
            add_plugin_count(&mut self.plugin_counts, plugin, name, *count);
        }
        self.retries.merge(other.retries);
        self.retries_refused.merge(other.retries_refused);
        for (rule, count) in &other.audits {
            add_audit(&mut self.audits, rule, *count);
        }
        self.panics += other.panics;
        self.shed += other.shed;
    }
}

impl WorkerReport {
    /// Appends them as Prometheus text.
    pub(super) fn encode_internals(&self, out: &mut String) {
        let i = &self.internals;
        let rows = [
            ("tulle_workers", "gauge", "Worker threads.", self.workers),
            (
                "tulle_pauses_total",
                "counter",
                "Pauses of workers before they waited for events.",
                self.pauses,
            ),
            (
                "tulle_connections_open",
                "gauge",
                "Connections open now.",
                i.open,
            ),
            (
                "tulle_connections_accepted_total",
                "counter",
                "Connections accepted.",
                i.accepted,
            ),
            (
                "tulle_connections_dialled_total",
                "counter",
                "Connections dialled.",
                i.dialled,
            ),
            (
                "tulle_tls_handshakes_total",
                "counter",
                "Handshakes that succeeded.",
                i.handshakes,
            ),
            (
                "tulle_tls_resumptions_total",
                "counter",
                "Handshakes that resumed a session.",
                i.resumed,
            ),
            (
                "tulle_replays_total",
                "counter",
                "Requests sent again on a new connection.",
                i.replays,
            ),
            (
                "tulle_detect_timeouts_total",
                "counter",
                "Connections taken for opaque TCP after the detection limit.",
                i.detect_timeouts,
            ),
            (
                "tulle_overloads_total",
                "counter",
                "Connections or streams refused at a limit.",
                i.overloads,
            ),
            (
                "tulle_plaintext_refused_total",
                "counter",
                "Plaintext connections refused in strict mode.",
                i.plaintext_refused,
            ),
            (
                "tulle_endpoint_panics_total",
                "counter",
                "Endpoints asked although unhealthy: none was healthy.",
                i.panics,
            ),
            (
                "tulle_connections_shed_total",
                "counter",
                "Connections closed at once because there were too many, or memory was short.",
                i.shed,
            ),
        ];
        for (name, kind, help, value) in rows {
            header(out, name, kind, help);
            let _ = writeln!(out, "{name} {value}");
        }
        let name = "tulle_tls_handshakes_failed_total";
        header(out, name, "counter", "Handshakes that failed, by reason.");
        for (reason, count) in &i.handshakes_failed.0 {
            let _ = writeln!(out, "{name}{{reason=\"{reason}\"}} {count}");
        }
        let tallies = [
            (
                "tulle_mirrored_total",
                "outcome",
                "Copies of requests, by result.",
                &i.mirrored,
            ),
            (
                "tulle_retries_total",
                "cause",
                "Requests sent again by a retry policy.",
                &i.retries,
            ),
            (
                "tulle_retries_refused_total",
                "spent",
                "Requests not sent again because the budget or limit was spent.",
                &i.retries_refused,
            ),
        ];
        for (name, label, help, tally) in tallies {
            header(out, name, "counter", help);
            for (value, count) in &tally.0 {
                let _ = writeln!(out, "{name}{{{label}=\"{value}\"}} {count}");
            }
        }
        let name = "tulle_external_auth_total";
        let help = "External authorization checks, by result.";
        header(out, name, "counter", help);
        for (outcome, count) in &i.external_auth.0 {
            let _ = writeln!(out, "{name}{{outcome=\"{outcome}\"}} {count}");
        }
        let name = "tulle_plugin_calls_total";
        header(out, name, "counter", "Calls of plugins, by result.");
        for (plugin, outcomes) in &i.plugins {
            let plugin = plugin.escape_debug().to_string();
            for (outcome, count) in &outcomes.0 {
                let _ = writeln!(
                    out,
                    "{name}{{plugin=\"{plugin}\",outcome=\"{outcome}\"}} {count}"
                );
            }
        }
        let name = "tulle_plugin_count_total";
        header(out, name, "counter", "What plugins count themselves.");
        for (plugin, what, count) in &i.plugin_counts {
            let plugin = plugin.escape_debug();
            let _ = writeln!(out, "{name}{{plugin=\"{plugin}\",name=\"{what}\"}} {count}");
        }
        let name = "tulle_policy_audit_total";
        header(out, name, "counter", "Requests matched by audit rules.");
        for (rule, count) in &i.audits {
            let _ = writeln!(out, "{name}{{rule=\"{}\"}} {count}", rule.escape_debug());
        }
    }
}

/// Adds to a counter that a plugin has named; only so many are kept by name.
pub(crate) fn add_plugin_count(
    counts: &mut Vec<(Arc<str>, String, u64)>,
    plugin: &Arc<str>,
    name: &str,
    count: u64,
) {
    let is = |(of, known, _): &(Arc<str>, String, u64)| of == plugin && known == name;
    let new = || (plugin.clone(), name.to_owned(), 0);
    if let Some((_, _, sum)) = named(counts, is, new) {
        *sum += count;
    }
}

/// A counter by name, made if there is none yet; the last one stands for those that have no place.
fn named<T>(all: &mut Vec<T>, is: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> Option<&mut T> {
    let at = all.iter().position(is).unwrap_or_else(|| {
        if all.len() < MAX_NAMED {
            all.push(new());
        }
        all.len() - 1
    });
    all.get_mut(at)
}

/// Adds to a plugin's counter of an outcome. Plugins change with the configuration, so only so many are kept by name.
pub(crate) fn add_plugin(
    plugins: &mut Vec<(Arc<str>, CodeCounters)>,
    plugin: &Arc<str>,
    outcome: &'static str,
    count: u64,
) {
    let new = || (plugin.clone(), CodeCounters::default());
    if let Some((_, outcomes)) = named(plugins, |(known, _)| known == plugin, new) {
        outcomes.add(outcome, count);
    }
}

/// Adds to a rule's counter. Rules change with the configuration, so only so many are kept by name.
pub(super) fn add_audit(audits: &mut Vec<(Arc<str>, u64)>, rule: &Arc<str>, count: u64) {
    let new = || (rule.clone(), 0);
    if let Some((_, sum)) = named(audits, |(known, _)| known == rule, new) {
        *sum += count;
    }
}
