//! Counts of an edge in a step of time, and the few bytes that they are kept in.

use std::iter;
use tulle_model::samples::BUCKETS_MS;

/// Buckets.
pub(crate) const BUCKETS: usize = BUCKETS_MS.len() + 1;
/// Codes that are told apart; there are half as many.
const MAX_REASONS: usize = 64;

/// Sums of an edge.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Counts {
    /// Requests, or connections of TCP.
    pub(crate) requests: u64,
    /// Those that failed and were not denied.
    pub(crate) failed: u64,
    /// Those that policy refused.
    pub(crate) denied: u64,
    /// Those over mutual TLS.
    pub(crate) mutual: u64,
    pub(crate) grpc: u64,
    pub(crate) tcp: u64,
    /// Bytes from the caller.
    pub(crate) received: u64,
    /// Bytes to the caller.
    pub(crate) sent: u64,
    pub(crate) durations: [u64; BUCKETS],
    /// Numbers of codes, and how often each was given.
    pub(crate) reasons: Vec<(u8, u64)>,
}

impl Counts {
    /// Adds others.
    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.numbers().into_iter().zip(other.values()) {
            *mine = mine.saturating_add(theirs);
        }
        for (mine, theirs) in self.durations.iter_mut().zip(other.durations) {
            *mine = mine.saturating_add(theirs);
        }
        for (code, count) in &other.reasons {
            self.reason(*code, *count);
        }
    }

    /// Counts a reason.
    pub(crate) fn reason(&mut self, code: u8, count: u64) {
        match self.reasons.iter_mut().find(|(known, _)| *known == code) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None => self.reasons.push((code, count)),
        }
    }

    fn values(&self) -> [u64; 8] {
        [
            self.requests,
            self.failed,
            self.denied,
            self.mutual,
            self.grpc,
            self.tcp,
            self.received,
            self.sent,
        ]
    }

    fn numbers(&mut self) -> [&mut u64; 8] {
        [
            &mut self.requests,
            &mut self.failed,
            &mut self.denied,
            &mut self.mutual,
            &mut self.grpc,
            &mut self.tcp,
            &mut self.received,
            &mut self.sent,
        ]
    }

    /// Returns the duration below which this share of requests was, in milliseconds. Within a bucket they are taken for
    /// evenly spread.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let all: u64 = self.durations.iter().sum();
        if all == 0 {
            return None;
        }
        let wanted = all as f64 * share;
        let (mut below, mut lower) = (0.0, 0.0);
        for (count, upper) in self.durations.iter().zip(BUCKETS_MS) {
            let count = *count as f64;
            if count > 0.0 && below + count >= wanted {
                return Some(lower + (upper - lower) * ((wanted - below) / count).clamp(0.0, 1.0));
            }
            below += count;
            lower = upper;
        }
        Some(lower)
    }

    /// Writes what is not 0, each number in as few bytes as it takes.
    pub(crate) fn encode(&self) -> Box<[u8]> {
        let mut out = Vec::with_capacity(48);
        for number in self.values() {
            write(&mut out, number);
        }
        let used = self.durations.iter().enumerate().filter(|(_, n)| **n > 0);
        write(&mut out, used.clone().count() as u64);
        for (bucket, count) in used {
            write(&mut out, bucket as u64);
            write(&mut out, *count);
        }
        for (code, count) in &self.reasons {
            out.push(*code);
            write(&mut out, *count);
        }
        out.into_boxed_slice()
    }

    /// Adds what [`Self::encode`] has written.
    pub(crate) fn add_encoded(&mut self, mut bytes: &[u8]) {
        for mine in self.numbers() {
            *mine = mine.saturating_add(read(&mut bytes));
        }
        for _ in 0..read(&mut bytes) {
            let bucket = usize::try_from(read(&mut bytes)).unwrap_or(usize::MAX);
            let count = read(&mut bytes);
            if let Some(mine) = self.durations.get_mut(bucket) {
                *mine = mine.saturating_add(count);
            }
        }
        while let Some((code, rest)) = bytes.split_first() {
            bytes = rest;
            let count = read(&mut bytes);
            self.reason(*code, count);
        }
    }
}

/// LEB128: seven bits a byte, the lowest first.
fn write(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn read(bytes: &mut &[u8]) -> u64 {
    let mut next = || {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(*first)
    };
    let mut number = 0;
    for (byte, shift) in iter::from_fn(&mut next).zip((0..64).step_by(7)) {
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

/// Codes by number. Proxies tell them, so there are only so many.
#[derive(Debug, Default)]
pub(crate) struct Reasons(Vec<Box<str>>);

impl Reasons {
    /// Returns the number of a code. One too many, or too long, is the first one that is not known.
    pub(crate) fn number(&mut self, code: &str) -> u8 {
        let code =
            match code.len() <= 40 && code.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') {
                true => code,
                false => "other",
            };
        let known = self.0.iter().position(|known| **known == *code);
        let number = known.unwrap_or_else(|| {
            if self.0.len() < MAX_REASONS {
                self.0.push(code.into());
            }
            self.0.len() - 1
        });
        u8::try_from(number).unwrap_or(u8::MAX)
    }

    /// The code of a number.
    pub(crate) fn code(&self, number: u8) -> &str {
        self.0.get(usize::from(number)).map_or("other", |code| code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_was_counted() {
        let mut counts = Counts {
            requests: 300,
            failed: 1,
            denied: 2,
            sent: u64::MAX,
            reasons: vec![(3, 2), (0, 1)],
            ..Counts::default()
        };
        counts.durations[2] = 200;
        counts.durations[19] = 100;
        let kept = counts.encode();
        assert!(kept.len() < 32, "{}", kept.len());
        let mut read = Counts::default();
        read.add_encoded(&kept);
        assert_eq!(read, counts);
        read.add(&counts);
        assert_eq!((read.requests, read.reasons[0]), (600, (3, 4)));
        // Bytes that nobody wrote add something odd, and nothing breaks.
        Counts::default().add_encoded(&[0xff; 40]);
        Counts::default().add_encoded(&[]);
    }

    #[test]
    fn quantiles_are_within_their_bucket() {
        let mut counts = Counts::default();
        assert_eq!(counts.quantile(0.5), None);
        counts.durations[2] = 100;
        assert_eq!(counts.quantile(0.5), Some(3.0));
        counts.durations[19] = 100;
        assert_eq!(counts.quantile(0.99), Some(3_600_000.0));
    }

    #[test]
    fn codes_are_bounded() {
        let mut reasons = Reasons::default();
        let denied = reasons.number("denied");
        for i in 0..200u8 {
            let code = format!(
                "a{}{}",
                char::from(b'a' + i % 26),
                char::from(b'a' + i / 26)
            );
            reasons.number(&code);
        }
        assert_eq!(reasons.0.len(), MAX_REASONS);
        assert_eq!(reasons.code(denied), "denied");
        assert_eq!(reasons.number("denied"), denied);
        let odd = reasons.number("<script>");
        assert!(!reasons.code(odd).contains('<'));
    }
}
