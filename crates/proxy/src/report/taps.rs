//! Shows requests to the controller as they end. A tap is bounded in lines and in time; while there is none, no line is
//! built.

use super::{MAX_PART, Sender};
use crate::telemetry::tap;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tulle_api::v1;
use tulle_net::task;

/// A controller that forgets a tap does not have it for ever.
const LIFETIME: Duration = Duration::from_secs(660);
/// Lines are sent together so often.
const TOGETHER: Duration = Duration::from_millis(200);
/// Most lines of a tap in that time.
const MAX_LINES: usize = 40;

/// The taps of a stream. They end with it.
pub struct Taps {
    taps: Arc<tap::Taps>,
    sender: Sender,
    running: HashMap<u64, JoinHandle<()>>,
}

impl Taps {
    /// Without a tap.
    pub fn new(taps: Arc<tap::Taps>, sender: Sender) -> Self {
        Self {
            taps,
            sender,
            running: HashMap::new(),
        }
    }

    /// Begins to show requests. One tap more than there is room for shows nothing.
    pub fn begin(&mut self, wanted: v1::Tap) {
        self.running.retain(|_, task| !task.is_finished());
        self.end(wanted.id);
        if let Some(lines) = self.taps.lines() {
            let id = wanted.id;
            let task = task::start(show(lines, wanted, self.sender.clone()));
            self.running.insert(id, task);
        }
    }

    /// Shows no more.
    pub fn end(&mut self, id: u64) {
        if let Some(task) = self.running.remove(&id) {
            task.abort();
        }
    }
}

impl Drop for Taps {
    fn drop(&mut self) {
        self.running.values().for_each(JoinHandle::abort);
    }
}

async fn show(mut lines: tap::Lines, wanted: v1::Tap, sender: Sender) {
    let end = Instant::now() + LIFETIME;
    while let Ok(Some(first)) = timeout_at(end, lines.next()).await {
        let mut part = v1::TapLines {
            tap: wanted.id,
            ..Default::default()
        };
        add(&mut part, &wanted, &first);
        let until = Instant::now() + TOGETHER;
        while let Ok(Some(line)) = timeout_at(until, lines.next()).await {
            add(&mut part, &wanted, &line);
        }
        if part.lines.is_empty() {
            continue;
        }
        let message = v1::FromProxy {
            tap: Some(part),
            ..Default::default()
        };
        if sender.send(Box::new(message)).await.is_err() {
            return;
        }
    }
}

fn add(part: &mut v1::TapLines, wanted: &v1::Tap, line: &[u8]) {
    let Ok(entry) = serde_json::from_slice::<Value>(line) else {
        return;
    };
    if !matches(wanted, &entry) {
        return;
    }
    let bytes: usize = part.lines.iter().map(String::len).sum();
    if part.lines.len() >= MAX_LINES || bytes + line.len() > MAX_PART {
        part.dropped += 1;
        return;
    }
    let text = String::from_utf8_lossy(line.trim_ascii_end());
    part.lines.push(text.into_owned());
}

fn matches(wanted: &v1::Tap, entry: &Value) -> bool {
    let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
    let is_one_of =
        |all: &[String], text: &str| all.is_empty() || all.iter().any(|one| one == text);
    let status = entry
        .get("response_code")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    let flags = text("response_flags");
    is_one_of(&wanted.sources, text("source_principal"))
        && is_one_of(&wanted.destination_services, text("upstream_cluster"))
        && text("path").starts_with(&wanted.path_prefix)
        && (wanted.method.is_empty() || wanted.method == text("method"))
        && (wanted.status == 0 || u64::from(wanted.status) == status)
        && (!wanted.failed || status >= 500 || flags != "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(path: &str, status: u16, flags: &str) -> Value {
        serde_json::json!({
            "path": path, "method": "GET", "response_code": status, "response_flags": flags,
            "source_principal": "spiffe://t/svc/a", "upstream_cluster": "b",
        })
    }

    #[test]
    fn only_what_is_wanted_is_shown() {
        let all = v1::Tap::default();
        let some = v1::Tap {
            sources: vec!["spiffe://t/svc/a".into()],
            destination_services: vec!["c".into(), "b".into()],
            path_prefix: "/x".into(),
            method: "GET".into(),
            failed: true,
            ..Default::default()
        };
        let cases = [
            (line("/x/y", 403, "denied"), true),
            (line("/x", 500, "-"), true),
            (line("/x", 200, "-"), false),
            (line("/y", 403, "denied"), false),
        ];
        for (line, wanted) in cases {
            assert!(matches(&all, &line));
            assert_eq!(matches(&some, &line), wanted, "{line}");
        }
        let other = v1::Tap {
            sources: vec!["-".into()],
            ..Default::default()
        };
        assert!(!matches(&other, &line("/x", 200, "-")));
    }

    #[tokio::test]
    async fn a_watcher_that_is_slow_hears_how_much_it_missed() {
        let watched = Arc::new(tap::Taps::default());
        let (sender, mut messages) = tokio::sync::mpsc::channel(1);
        let mut taps = Taps::new(watched.clone(), sender);
        taps.begin(v1::Tap {
            id: 7,
            ..Default::default()
        });
        assert!(watched.are_watched());
        for _ in 0..100 {
            watched.show(&format!("{}\n", line("/x", 200, "-")));
        }
        let message = messages.recv().await.unwrap();
        let shown = message.tap.unwrap();
        assert_eq!((shown.lines.len(), shown.dropped), (MAX_LINES, 60));
        taps.end(7);
        drop(taps);
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!watched.are_watched(), "nothing is built for nobody");
    }
}
