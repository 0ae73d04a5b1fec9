//! Shows requests as they end to watchers: the lines of the access log, over administration or to the controller.
//!
//! Bounded: a few watchers, with a queue for each. A watcher misses lines that it does not read in
//! time. While nobody watches it costs the look at one flag.

use crate::telemetry::line_room::{LinePlace, LineRoom};
use hyper::body::{Body, Bytes, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Sleep, sleep};

/// Watchers at a time.
pub const WATCHERS: usize = 4;
/// Lines that wait for one watcher.
const QUEUE: usize = 256;
/// Bytes of these lines.
const QUEUE_BYTES: usize = 1024 * 1024;
/// A watch ends by itself, before its connection would be cut; a watcher that wants more asks
/// again.
const LIFETIME: Duration = Duration::from_secs(50);

/// The watchers.
#[derive(Debug, Default)]
pub struct Taps {
    watched: AtomicBool,
    watchers: Mutex<Vec<Watcher>>,
}

#[derive(Debug)]
struct Watcher {
    lines: Sender<(Bytes, LinePlace)>,
    room: Arc<LineRoom>,
}

impl Taps {
    /// Whether anybody watches.
    pub fn are_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// Adds a watcher of administration; `None` if there are too many.
    pub fn watch(self: &Arc<Self>) -> Option<Tap> {
        Some(Tap {
            lines: self.lines()?,
            end: Box::pin(sleep(LIFETIME)),
        })
    }

    /// Adds a watcher; `None` if there are too many.
    pub fn lines(self: &Arc<Self>) -> Option<Lines> {
        let mut watchers = self.watchers();
        watchers.retain(|w| !w.lines.is_closed());
        if watchers.len() >= WATCHERS {
            return None;
        }
        let (sender, lines) = channel(QUEUE);
        watchers.push(Watcher {
            lines: sender,
            room: LineRoom::new(QUEUE_BYTES),
        });
        self.watched.store(true, Ordering::Relaxed);
        Some(Lines {
            taps: self.clone(),
            lines,
        })
    }

    /// Shows a line to all watchers.
    pub fn show(&self, line: &str) {
        let line = Bytes::copy_from_slice(line.as_bytes());
        for watcher in self.watchers().iter() {
            // A watcher that does not keep up misses the line.
            if let Some(place) = watcher.room.take(line.len()) {
                let _ = watcher.lines.try_send((line.clone(), place));
            }
        }
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<Watcher>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lines for one watcher.
pub struct Lines {
    taps: Arc<Taps>,
    lines: Receiver<(Bytes, LinePlace)>,
}

impl Lines {
    /// The next one, with its line feed.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.lines.recv().await.map(|(line, _)| line)
    }
}

/// Lines for one watcher, as the body of an answer.
pub struct Tap {
    lines: Lines,
    end: Pin<Box<Sleep>>,
}

impl Body for Tap {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        let line = self.lines.lines.poll_recv(context);
        line.map(|line| line.map(|(line, _)| Ok(Frame::data(line))))
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.lines.close();
        let mut watchers = self.taps.watchers();
        watchers.retain(|w| !w.lines.is_closed());
        let watched = !watchers.is_empty();
        self.taps.watched.store(watched, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_go_to_who_watches_and_cost_nothing_else() {
        let taps = Arc::new(Taps::default());
        assert!(!taps.are_watched());
        let mut watching: Vec<Tap> = (0..WATCHERS).map(|_| taps.watch().unwrap()).collect();
        assert!(taps.watch().is_none(), "more than are taken");
        // More than the queue holds: the rest is dropped, nobody waits.
        for _ in 0..2 * QUEUE {
            taps.show("line\n");
        }
        let first = &mut watching[0];
        for _ in 0..QUEUE {
            assert_eq!(first.lines.lines.try_recv().unwrap().0, "line\n");
        }
        assert!(first.lines.lines.try_recv().is_err());
        // Long ones are missed sooner.
        let long = "x".repeat(QUEUE_BYTES / 8);
        (0..10).for_each(|_| taps.show(&long));
        assert_eq!(watching[0].lines.lines.len(), 8);
        watching.clear();
        assert!(!taps.are_watched());
    }
}
