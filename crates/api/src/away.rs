//! Sums of what a joined host counted while it could not reach its controller, as the host keeps and sends them, the controller keeps
//! them, and the command shows them.

use crate::v1;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most reasons that sums tell apart.
pub const MAX_REASONS: usize = 16;

/// Sums of requests, and connections of TCP.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// All of them.
    pub requests: u64,
    /// The number that failed and was not refused.
    pub failed: u64,
    /// The number that policy refused.
    pub denied: u64,
    /// Refusals and failures by their reason code.
    pub reasons: BTreeMap<String, u64>,
}

impl Sums {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.failed = self.failed.saturating_add(other.failed);
        self.denied = self.denied.saturating_add(other.denied);
        for (code, count) in &other.reasons {
            if self.reasons.len() < MAX_REASONS || self.reasons.contains_key(code) {
                let sum = self.reasons.entry(code.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.requests == 0 && self.failed == 0 && self.denied == 0
    }

    /// Writes them into a message with these names.
    pub fn message(&self, names: &mut Names) -> v1::AwaySums {
        let reasons = self.reasons.iter();
        let reasons = reasons.map(|(code, count)| v1::AwayReason {
            code: names.number(code),
            count: *count,
        });
        v1::AwaySums {
            requests: self.requests,
            failed: self.failed,
            denied: self.denied,
            reasons: reasons.collect(),
        }
    }
}

/// Sums of an hour, or of all before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hour {
    /// Its begin, in Unix seconds.
    pub begin: i64,
    /// As of [`Sums`].
    pub requests: u64,
    /// As of [`Sums`].
    pub failed: u64,
    /// As of [`Sums`].
    pub denied: u64,
}

impl From<v1::AwayHour> for Hour {
    fn from(told: v1::AwayHour) -> Self {
        Self {
            begin: told.begin_unix_seconds,
            requests: told.requests,
            failed: told.failed,
            denied: told.denied,
        }
    }
}

impl From<&Hour> for v1::AwayHour {
    fn from(hour: &Hour) -> Self {
        Self {
            begin_unix_seconds: hour.begin,
            requests: hour.requests,
            failed: hour.failed,
            denied: hour.denied,
        }
    }
}

/// The names of a message. Each comes once, and the rest of the message has its number.
#[derive(Debug, Default)]
pub struct Names(Vec<String>);

impl Names {
    /// Returns the number of a name.
    pub fn number(&mut self, name: &str) -> u32 {
        let known = self.0.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        });
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// Returns all names, by their numbers.
    #[must_use]
    pub fn into_list(self) -> Vec<String> {
        self.0
    }
}
