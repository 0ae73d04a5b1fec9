//! Room for lines of the access log that wait for whoever takes them. Queues are bounded in lines, and here in bytes, as
//! a client chooses how long the lines about its requests are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that the lines of a queue may take.
#[derive(Debug)]
pub(crate) struct LineRoom {
    most: usize,
    taken: AtomicUsize,
}

/// Room that a line takes; free again when dropped.
#[derive(Debug)]
pub(crate) struct LinePlace {
    room: Arc<LineRoom>,
    bytes: usize,
}

impl LineRoom {
    /// Room for so many bytes.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: AtomicUsize::new(0),
        })
    }

    /// Takes room for a line; `None`: there is too little.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<LinePlace> {
        let add = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        Some(LinePlace {
            room: self.clone(),
            bytes,
        })
    }
}

impl Drop for LinePlace {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::access_log::{AccessLog, ExchangeEnd, QUEUE_BYTES, RequestLine};
    use crate::telemetry::log_rules::LogRules;
    use crate::telemetry::metrics::{Labels, Reporter};
    use crate::telemetry::reason::Reason;
    use std::io::{self, Write};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;
    use tulle_model::resource::MeshSettings;

    /// Standard output whose reader takes nothing before the other end of `begin` is dropped.
    struct Slow {
        begin: Receiver<()>,
        written: Sender<Vec<u8>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // An error says that the other end is gone.
            let _ = self.begin.recv();
            let _ = self.written.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A request whose head is as long as it may be. In JSON each of its bytes takes six.
    fn longest() -> RequestLine {
        RequestLine {
            method: "GET".into(),
            target: "\u{1}".repeat(32 * 1024),
            protocol: "HTTP/1.1",
            authority: String::new(),
            user_agent: String::new(),
            x_forwarded_for: String::new(),
            request_id: String::new(),
            upstream: None,
            policy_audit: String::new(),
            server_name: String::new(),
            sampled: true,
            fields: Vec::new(),
        }
    }

    #[test]
    fn long_lines_that_nobody_reads_are_dropped() {
        const LINES: u64 = 200;
        let (go, begin) = channel();
        let (written, read) = channel();
        let log = AccessLog::writing(Slow { begin, written }).unwrap();
        let mesh = MeshSettings {
            access_log: true,
            ..MeshSettings::default()
        };
        let rules = LogRules::compile(&mesh).unwrap().unwrap();
        let labels = Labels {
            reporter: Reporter::Source,
            source: None,
            source_workload: None,
            destination_service: "b".into(),
            destination: None,
            destination_workload: None,
            mutual_tls: false,
            tcp: false,
        };
        let (line, now) = (longest(), Instant::now());
        let ended = ExchangeEnd {
            answer: 200.into(),
            reason: Reason::Ok,
            started: now,
            first_byte: None,
            now,
            received: 0,
            sent: 0,
            upstream: None,
            upstream_time: None,
        };
        for _ in 0..LINES {
            log.request(&line, &ended, &labels, Some(&rules));
        }
        let dropped = log.dropped();
        assert!((100..LINES).contains(&dropped), "{dropped} of {LINES}");
        let room = log.room().clone();
        let taken = room.taken.load(Ordering::Relaxed);
        assert!(taken > QUEUE_BYTES / 2 && taken <= QUEUE_BYTES, "{taken}");
        // The others are written once somebody reads, and the writer ends with the log.
        drop((go, log));
        let ends = |bytes: Vec<u8>| bytes.iter().filter(|b| **b == b'\n').count() as u64;
        assert_eq!(read.iter().map(ends).sum::<u64>(), LINES - dropped);
        assert_eq!(room.taken.load(Ordering::Relaxed), 0);
    }
}
