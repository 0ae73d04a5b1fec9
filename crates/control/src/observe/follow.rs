//! Changes in the graph of the last minute: looked at once for all who follow it.

use super::shown::{Graph, GraphDelta, Mark};
use super::{Observer, mark};
use crate::history::STEP;
use crate::reports::now;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::time::{MissedTickBehavior, interval};

/// The window, in seconds.
const WINDOW: u32 = 60;
/// Marks that a watcher may be behind.
const MARKS: usize = 256;

/// The newest graph and who follows.
pub(super) struct Followed {
    latest: Mutex<Latest>,
    changes: watch::Sender<Arc<GraphDelta>>,
    pub(super) marks: broadcast::Sender<Mark>,
}

#[derive(Default)]
struct Latest {
    revision: u64,
    graph: Arc<Graph>,
}

impl Default for Followed {
    fn default() -> Self {
        Self {
            latest: Mutex::default(),
            changes: watch::Sender::default(),
            marks: broadcast::channel(MARKS).0,
        }
    }
}

impl Followed {
    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer {
    /// The number of the newest delta.
    pub(super) fn revision(&self) -> u64 {
        self.followed.changes.borrow().revision
    }

    /// The graph of the last 60 seconds as the first event of a stream. The deltas after its revision are about it.
    pub fn whole(&self) -> GraphDelta {
        let age = now() - self.followed.latest().graph.at;
        // One of the future is old, too: the clock was set back.
        if !(0.0..=f64::from(STEP)).contains(&age) {
            self.look();
        }
        let latest = self.followed.latest();
        let graph = Graph::clone(&latest.graph);
        GraphDelta {
            whole: true,
            revision: latest.revision,
            at: graph.at,
            nodes: graph.nodes,
            edges: graph.edges,
            rest: graph.rest,
            coverage: graph.coverage,
            ..GraphDelta::default()
        }
    }

    /// Follows what changes in the graph of the last 60 seconds, each five seconds.
    pub fn changes(&self) -> watch::Receiver<Arc<GraphDelta>> {
        self.followed.changes.subscribe()
    }

    /// Looks at the mesh anew, and tells what changed.
    fn look(&self) {
        let graph = Arc::new(self.graph(None, WINDOW));
        let mut latest = self.followed.latest();
        let mut delta = delta(&latest.graph, &graph);
        latest.revision += 1;
        latest.graph = graph;
        delta.revision = latest.revision;
        self.followed.changes.send_replace(Arc::new(delta));
    }

    /// Lets time go on, for as long as the controller runs.
    pub(crate) async fn keep(self) {
        let mut turns = interval(Duration::from_secs(STEP.into()));
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events = self.state.reports.events();
        loop {
            tokio::select! {
                _ = turns.tick() => {
                    self.state.tick();
                    // Nobody looks: then nothing is prepared.
                    if self.followed.changes.receiver_count() > 0 {
                        self.look();
                    }
                }
                event = events.recv() => if let Ok(event) = event {
                    // It fails when nobody watches.
                    let _ = self.followed.marks.send(mark(event));
                },
            }
        }
    }
}

/// Says what is new, what changed and what is gone.
fn delta(before: &Graph, after: &Graph) -> GraphDelta {
    let (nodes, removed_nodes) = changed(&before.nodes, &after.nodes, |node| &node.id);
    let (edges, removed_edges) = changed(&before.edges, &after.edges, |edge| &edge.id);
    GraphDelta {
        whole: false,
        revision: 0,
        at: after.at,
        nodes,
        removed_nodes,
        edges,
        removed_edges,
        rest: after.rest,
        coverage: after.coverage,
    }
}

fn changed<T: Clone + PartialEq>(
    before: &[T],
    after: &[T],
    id: impl Fn(&T) -> &str,
) -> (Vec<T>, Vec<String>) {
    let mut known: BTreeMap<&str, &T> = before.iter().map(|one| (id(one), one)).collect();
    let changed = after
        .iter()
        .filter(|one| known.remove(id(one)) != Some(one));
    let changed = changed.cloned().collect();
    (changed, known.into_keys().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::super::shown::Edge;
    use super::*;

    fn graph(edges: &[(&str, f64)]) -> Graph {
        let edges = edges.iter().map(|(id, rate)| Edge {
            id: (*id).to_owned(),
            rate: *rate,
            ..Edge::default()
        });
        Graph {
            edges: edges.collect(),
            ..Graph::default()
        }
    }

    #[test]
    fn a_delta_has_what_differs() {
        let before = graph(&[("a>b", 1.0), ("a>c", 1.0), ("a>d", 1.0)]);
        let after = graph(&[("a>b", 1.0), ("a>c", 2.0), ("a>e", 1.0)]);
        let delta = delta(&before, &after);
        let ids: Vec<&str> = delta.edges.iter().map(|e| e.id.as_str()).collect();
        assert_eq!(ids, ["a>c", "a>e"]);
        assert_eq!(delta.removed_edges, ["a>d"]);
    }
}
