//! The stream of what changes in the mesh. A change is put into words once for all consoles.

use crate::stream::{End, Next, Source, event};
use hyper::body::Bytes;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{Notify, broadcast};
use tulle_control::observe::{GraphDelta, Mark, Observer};

/// Frames that a browser may be behind. One comes each five seconds, and some more with marks.
const BACKLOG: usize = 32;
/// Most marks in one frame.
const MARKS: usize = 256;

/// One or several events.
#[derive(Debug, Clone)]
struct Told {
    /// The revision of the graph in it.
    revision: Option<u64>,
    bytes: Bytes,
}

/// Why the feed tells of no more changes.
#[derive(Debug, PartialEq, Eq)]
enum Observed {
    /// There is no stream.
    Unfollowed,
    /// The observer is gone.
    Ended,
}

/// The source of all streams of events.
pub(crate) struct Feed {
    observer: Observer,
    told: broadcast::Sender<Told>,
    /// Wakes the feed: there is a stream again.
    followed: Notify,
    ids: AtomicU64,
}

impl Feed {
    pub(crate) fn new(observer: Observer) -> Arc<Self> {
        Arc::new(Self {
            observer,
            told: broadcast::channel(BACKLOG).0,
            followed: Notify::new(),
            ids: AtomicU64::new(1),
        })
    }

    /// Follows the mesh from its beginning: the whole graph first.
    pub(crate) fn follow(&self) -> Follower {
        let told = self.told.subscribe();
        self.followed.notify_one();
        let whole = self.observer.whole();
        let mut first = String::new();
        event(&mut first, self.id(), "graph", &whole);
        let (count, errors) = self.count();
        self.findings(&mut first, count, errors);
        Follower {
            first: VecDeque::from([first.into()]),
            known: whole.revision,
            told,
        }
    }

    /// Tells all streams of changes, until the observer is gone. Without a stream it asks for no changes, so that
    /// the controller prepares no graph for nobody.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            while self.told.receiver_count() == 0 {
                self.followed.notified().await;
            }
            if self.tell_followers().await == Observed::Ended {
                return;
            }
        }
    }

    /// Tells of changes while there are streams.
    async fn tell_followers(&self) -> Observed {
        let mut changes = self.observer.changes();
        let mut marks = self.observer.new_marks();
        // Nothing is known of the time before: the first change is told whole.
        let mut known = 0;
        let mut counted = self.count();
        while self.told.receiver_count() > 0 {
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return Observed::Ended;
                    }
                    let delta = changes.borrow_and_update().clone();
                    known = self.tell_graph(&delta, known, &mut counted);
                }
                mark = marks.recv() => match mark {
                    Ok(mark) => self.tell_marks(mark, &mut marks),
                    // Whoever wants them all asks for them.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return Observed::Ended,
                },
            }
        }
        Observed::Unfollowed
    }

    /// Tells of a change, or of everything if one was missed. Returns the revision that is told.
    fn tell_graph(&self, delta: &GraphDelta, known: u64, counted: &mut (usize, usize)) -> u64 {
        if delta.revision <= known {
            return known;
        }
        let mut text = String::new();
        let revision = if delta.revision == known + 1 {
            event(&mut text, self.id(), "graph", delta);
            delta.revision
        } else {
            let whole = self.observer.whole();
            event(&mut text, self.id(), "graph", &whole);
            whole.revision
        };
        let now = self.count();
        if now != *counted {
            *counted = now;
            self.findings(&mut text, now.0, now.1);
        }
        self.tell(Some(revision), text);
        revision
    }

    fn tell_marks(&self, first: Mark, more: &mut broadcast::Receiver<Mark>) {
        let mut text = String::new();
        event(&mut text, self.id(), "mark", &first);
        for _ in 1..MARKS {
            match more.try_recv() {
                Ok(mark) => event(&mut text, self.id(), "mark", &mark),
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        self.tell(None, text);
    }

    fn tell(&self, revision: Option<u64>, text: String) {
        // An error means that nobody listens.
        let _ = self.told.send(Told {
            revision,
            bytes: text.into(),
        });
    }

    fn count(&self) -> (usize, usize) {
        let findings = self.observer.findings();
        let errors = findings.iter().filter(|f| f.severity == "error").count();
        (findings.len(), errors)
    }

    fn findings(&self, text: &mut String, count: usize, errors: usize) {
        let data = json!({ "count": count, "errors": errors });
        event(text, self.id(), "findings", &data);
    }

    fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }
}

/// One stream of events.
pub(crate) struct Follower {
    first: VecDeque<Bytes>,
    told: broadcast::Receiver<Told>,
    /// The revision of the graph that the browser has.
    known: u64,
}

impl Source for Follower {
    async fn next(&mut self) -> Next {
        if let Some(first) = self.first.pop_front() {
            return Next::Frame(first);
        }
        loop {
            match self.told.recv().await {
                Ok(told) if told.revision.is_some_and(|told| told <= self.known) => {}
                Ok(told) => {
                    self.known = told.revision.unwrap_or(self.known);
                    return Next::Frame(told.bytes);
                }
                Err(RecvError::Lagged(_)) => return Next::End(End::Slow),
                Err(RecvError::Closed) => return Next::End(End::Shutdown),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follower(sender: &broadcast::Sender<Told>, known: u64) -> Follower {
        Follower {
            first: VecDeque::new(),
            told: sender.subscribe(),
            known,
        }
    }

    fn told(revision: u64) -> Told {
        Told {
            revision: Some(revision),
            bytes: revision.to_string().into(),
        }
    }

    #[tokio::test]
    async fn what_the_whole_graph_has_is_not_told_again() {
        let sender = broadcast::channel(BACKLOG).0;
        let mut follower = follower(&sender, 2);
        (1..=3).for_each(|n| drop(sender.send(told(n))));
        assert_eq!(follower.next().await, Next::Frame("3".into()));
        drop(sender);
        assert_eq!(follower.next().await, Next::End(End::Shutdown));
    }

    #[tokio::test]
    async fn who_falls_behind_is_slow() {
        let sender = broadcast::channel(BACKLOG).0;
        let mut follower = follower(&sender, 0);
        let most = u64::try_from(BACKLOG).unwrap() + 1;
        (1..=most).for_each(|n| drop(sender.send(told(n))));
        assert_eq!(follower.next().await, Next::End(End::Slow));
    }
}
