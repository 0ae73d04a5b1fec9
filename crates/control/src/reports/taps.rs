//! Requests that proxies show as they end.

use super::{Proxy, claims, lock};
use crate::index::Nodes;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tulle_api::v1;
use tulle_model::identity::SpiffeId;

/// Taps at a time; a proxy has places for as many.
const MAX_TAPS: usize = 4;
/// Messages that wait for a watcher.
const QUEUE: usize = 64;

/// Lines of one proxy, or how many were dropped.
#[derive(Debug)]
pub(crate) struct Tapped {
    pub(crate) proxy: Arc<str>,
    pub(crate) lines: Vec<String>,
    pub(crate) dropped: u64,
}

/// The taps.
#[derive(Default)]
pub(crate) struct Taps {
    running: Mutex<HashMap<u64, Running>>,
    next: AtomicU64,
}

struct Running {
    wanted: v1::Tap,
    /// Proxies that are asked by identity; none: all.
    of: Vec<SpiffeId>,
    sender: mpsc::Sender<Tapped>,
    /// Lines that the watcher had no room for.
    dropped: u64,
}

/// A tap; it has to be ended.
pub(crate) struct Tapping {
    pub(crate) id: u64,
    pub(crate) lines: mpsc::Receiver<Tapped>,
}

impl Taps {
    /// Begins to show requests; `None`: there are too many taps.
    pub(crate) fn begin(
        &self,
        mut wanted: v1::Tap,
        of: Vec<SpiffeId>,
        proxies: &[Arc<Proxy>],
    ) -> Option<Tapping> {
        let (sender, lines) = mpsc::channel(QUEUE);
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        wanted.id = id;
        let running = Running {
            wanted,
            of,
            sender,
            dropped: 0,
        };
        let mut all = lock(&self.running);
        all.retain(|_, running| !running.sender.is_closed());
        if all.len() >= MAX_TAPS {
            return None;
        }
        for proxy in proxies {
            ask(&running, proxy);
        }
        all.insert(id, running);
        Some(Tapping { id, lines })
    }

    /// Ends a tap at all proxies.
    pub(crate) fn end(&self, id: u64, proxies: &[Arc<Proxy>]) {
        lock(&self.running).remove(&id);
        let end = v1::ToProxy {
            end_tap: id,
            ..Default::default()
        };
        for proxy in proxies {
            // One that does not hear it ends the tap by itself after a while.
            let _ = proxy.send(end.clone());
        }
    }

    /// A proxy that comes late shows its requests, too.
    pub(super) fn joined(&self, proxy: &Proxy) {
        for running in lock(&self.running).values() {
            ask(running, proxy);
        }
    }

    /// Takes lines of a proxy that was asked, as far as they are its own to tell. Those that the watcher has no room for are
    /// counted.
    pub(super) fn hear(&self, proxy: &Proxy, nodes: &Nodes, mut told: v1::TapLines) {
        let asked = lock(&self.running).get(&told.tap).map(|r| r.asks(proxy));
        match asked {
            Some(true) => {}
            Some(false) => return proxy.dropped(),
            None => return,
        }
        let given = told.lines.len();
        told.lines.retain(|line| claims::line(proxy, nodes, line));
        for _ in told.lines.len()..given {
            proxy.dropped();
        }
        // Without a line of its own it takes no place of the queue, which all proxies share.
        if told.lines.is_empty() {
            return;
        }
        let mut all = lock(&self.running);
        let Some(running) = all.get_mut(&told.tap) else {
            return;
        };
        let count = told.lines.len() as u64;
        let tapped = Tapped {
            proxy: proxy.shared_id.clone(),
            lines: told.lines,
            dropped: u64::from(told.dropped) + running.dropped,
        };
        match running.sender.try_send(tapped) {
            Ok(()) => running.dropped = 0,
            Err(_) => running.dropped += count + u64::from(told.dropped),
        }
    }
}

impl Running {
    fn asks(&self, proxy: &Proxy) -> bool {
        self.of.is_empty() || self.of.contains(&proxy.identity)
    }
}

fn ask(running: &Running, proxy: &Proxy) {
    if running.asks(proxy) {
        let tap = v1::ToProxy {
            tap: Some(running.wanted.clone()),
            ..Default::default()
        };
        // One that is slow to listen shows nothing.
        let _ = proxy.send(tap);
    }
}
