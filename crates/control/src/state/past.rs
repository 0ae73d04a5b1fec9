//! The mesh as it was: changes are kept for a while, so that a call can be judged as it was.

use super::{MeshState, Refused};
use crate::history::{KEPT as KEPT_STEPS, STEP};
use crate::index::{Edit, Index, Nodes, Undo};
use crate::reports::now;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tulle_api::v1;
use tulle_model::manifest::{OBSERVED, Object, Problem, Severity};

/// Most changes that are kept.
const MAX_CHANGES: usize = 4096;
/// Most bytes of them, at a guess.
const MAX_BYTES: usize = 4 << 20;
/// How long they are kept, in seconds.
const KEPT: f64 = 960.0;
/// Nodes are listed so often at most, in seconds.
const LOOK: f64 = 1.0;

/// Changes, the oldest first, each as what takes it back.
#[derive(Default)]
pub(super) struct Past(Mutex<Changes>);

#[derive(Default)]
struct Changes {
    all: VecDeque<(f64, Edit, usize)>,
    bytes: usize,
    /// Before this it is not known how the mesh was.
    since: f64,
}

impl Changes {
    /// Begins anew.
    fn begin(&mut self, now: f64) {
        self.since = now;
    }

    /// Where the clock was ahead, moves what was in the future to the present: it has happened already, and until the future
    /// came a call would be judged as if it had not, and the history would not have begun.
    fn set_back(&mut self, now: f64) {
        self.since = self.since.min(now);
        for (at, ..) in self.all.iter_mut().rev().take_while(|(at, ..)| *at > now) {
            *at = now;
        }
    }

    fn add(&mut self, at: f64, undo: Undo) {
        self.set_back(at);
        self.bytes += undo.bytes;
        self.all.push_back((at, undo.edit, undo.bytes));
        while let Some((first, _, bytes)) = self.all.front() {
            let is_old = *first < at - KEPT;
            if !is_old && self.all.len() <= MAX_CHANGES && self.bytes <= MAX_BYTES {
                return;
            }
            self.since = *first;
            self.bytes -= bytes;
            self.all.pop_front();
        }
    }

    /// Returns what takes back all since a time, the newest first.
    fn since(&self, time: f64) -> Option<impl Iterator<Item = &Edit>> {
        let later = self.all.iter().rev().take_while(move |(at, ..)| *at > time);
        (time >= self.since).then(|| later.map(|(_, edit, _)| edit))
    }
}

/// Nodes as of a revision of the index and a time.
#[derive(Default)]
pub(super) struct Known(Mutex<Option<(u64, f64, Arc<Nodes>)>>);

impl MeshState {
    /// Keeps from now on what changes.
    pub(crate) fn observe(&self) {
        self.begin_past();
        self.reports.begin();
    }

    /// Time goes on, or back: called every few seconds, so that what a clock that was ahead has noted is moved to about when
    /// it happened.
    pub(crate) fn tick(&self) {
        let now = now();
        self.past().set_back(now);
        self.reports.tick(now);
    }

    fn past(&self) -> MutexGuard<'_, Changes> {
        self.past.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers edits that are about to be made.
    pub(super) fn remember(&self, index: &Index, edits: &[Edit], who: &str) {
        if !self.reports.are_wanted() {
            return;
        }
        let at = now();
        for edit in edits {
            let Some(undo) = index.undo(edit) else {
                continue;
            };
            if let Some((kind, name, verb)) = &undo.done {
                self.reports
                    .happened("object", format!("{kind} {name}"), verb, who);
            }
            self.past().add(at, undo);
        }
    }

    /// The first objects of a cluster are no change.
    pub(super) fn begin_past(&self) {
        self.past().begin(now());
    }

    /// Why a call was allowed or not, with the objects of then.
    pub(crate) fn explain_at(
        &self,
        asked: &v1::ExplainRequest,
        at: f64,
    ) -> Result<v1::Explanation, Refused> {
        let past = {
            let index = self.index();
            let mut past = self.past();
            past.set_back(now());
            let Some(undone) = past.since(at).filter(|_| self.reports.are_wanted()) else {
                return Err(Refused::Conflict(self.beyond(past.since)));
            };
            index.before(undone)
        };
        let explained = past.explain(asked);
        explained.map_err(|e| Refused::NotFound(e.to_string()))
    }

    fn beyond(&self, since: f64) -> String {
        match self.reports.are_wanted() {
            true => format!(
                "it is not known how the mesh was then: the history begins {:.0} s ago",
                (now() - since).max(0.0)
            ),
            false => "this controller keeps no history: start it with the console".to_owned(),
        }
    }

    /// Returns of these calls those that are allowed now, and would not be with these objects.
    fn would_deny(
        &self,
        objects: &[Object],
        calls: impl Iterator<Item = (String, String)>,
    ) -> Vec<(String, String)> {
        let index = self.index();
        let after = index.after(objects);
        let (allowed, allowed_then) = (index.allows(), after.allows());
        let denied = calls.filter(|(from, to)| {
            let asked = v1::ExplainRequest {
                from: from.clone(),
                to: to.clone(),
                ..Default::default()
            };
            allowed(&asked) == Ok(true) && allowed_then(&asked) == Ok(false)
        });
        denied.collect()
    }

    /// Lists who has called whom in the last seconds, by names that can be asked about.
    pub(crate) fn observed(&self, seconds: u32) -> Vec<v1::ObservedEdge> {
        let nodes = self.nodes_known();
        let history = self.reports.history();
        let span = history.span(now() + f64::from(STEP), seconds);
        let name = |id: &str| nodes.all.get(id).map(|node| node.name.clone());
        let edges = history.edges(span).filter_map(|((from, to), counts)| {
            Some(v1::ObservedEdge {
                from: name(from)?,
                to: name(to)?,
                requests: counts.requests,
                denied: counts.denied,
            })
        });
        let mut edges: Vec<_> = edges.collect();
        edges.sort_unstable_by(|a, b| (&a.from, &a.to).cmp(&(&b.from, &b.to)));
        edges
    }

    /// Finds the services whose callers of the last fifteen minutes these objects would deny.
    pub(super) fn observed_denials(&self, objects: &[Object]) -> Vec<Problem> {
        if !self.reports.are_wanted() {
            return Vec::new();
        }
        let edges = self.observed(KEPT_STEPS * STEP);
        let calls = edges.iter().map(|e| (e.from.clone(), e.to.clone()));
        let denied = self.would_deny(objects, calls);
        let mut callers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for edge in &edges {
            if denied
                .iter()
                .any(|(from, to)| (from, to) == (&edge.from, &edge.to))
            {
                let caller = format!("{} ({} requests)", edge.from, edge.requests);
                callers.entry(&edge.to).or_default().push(caller);
            }
        }
        let problems = callers.into_iter().map(|(service, callers)| Problem {
            code: OBSERVED.into(),
            severity: Severity::Warning,
            object: format!("service/{service}"),
            field: String::new(),
            message: format!(
                "it was called in the last 15 minutes by {}; these manifests would deny that",
                callers.join(", ")
            ),
        });
        problems.collect()
    }

    /// Returns who there is. It may be a second old.
    pub(crate) fn nodes_known(&self) -> Arc<Nodes> {
        let mut known = self.known.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = now();
        if let Some((_, looked, nodes)) = &*known
            && (looked..=&(looked + LOOK)).contains(&&at)
        {
            return nodes.clone();
        }
        let index = self.index();
        let revision = index.revision();
        let nodes = match &*known {
            Some((same, _, nodes)) if *same == revision => nodes.clone(),
            _ => Arc::new(index.nodes()),
        };
        *known = Some((revision, at, nodes.clone()));
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Actor, testing};
    use serde_json::json;
    use tokio::sync::mpsc;

    fn undo(bytes: usize) -> Undo {
        Undo {
            edit: Edit::Unplace {
                workload: "w".into(),
            },
            done: None,
            bytes,
        }
    }

    #[test]
    fn changes_are_bounded_and_say_where_they_begin() {
        let mut changes = Changes::default();
        for i in 0..10 {
            changes.add(f64::from(i), undo(MAX_BYTES / 4));
        }
        assert_eq!((changes.all.len(), changes.since), (4, 5.0));
        assert!(changes.since(4.0).is_none());
        assert_eq!(changes.since(7.0).unwrap().count(), 2);
        for i in 0..2 * MAX_CHANGES {
            changes.add(20.0, undo(i % 2));
        }
        assert_eq!(changes.all.len(), MAX_CHANGES);
        changes.add(20.0 + KEPT + 1.0, undo(1));
        assert_eq!((changes.all.len(), changes.bytes), (1, 1));
    }

    #[test]
    fn a_clock_that_was_ahead_neither_hides_nor_invents_a_change() {
        let undone = |changes: &Changes, time: f64| changes.since(time).map(Iterator::count);
        let mut changes = Changes::default();
        changes.begin(1000.0);
        changes.add(1010.0, undo(1));
        // The clock is ten minutes ahead.
        changes.add(1620.0, undo(1));
        changes.add(1630.0, undo(1));
        changes.set_back(1040.0);
        // All of it has happened by now, and before there was less.
        assert_eq!(undone(&changes, 1040.0), Some(0));
        assert_eq!(undone(&changes, 1035.0), Some(2));
        assert_eq!(undone(&changes, 1005.0), Some(3));
        // A change of later is later, also if nothing else has told of the clock.
        changes.add(1640.0, undo(1));
        changes.add(1050.0, undo(1));
        assert_eq!(undone(&changes, 1045.0), Some(2));
        assert_eq!(undone(&changes, 1050.0), Some(0));

        // One that began ahead has begun by now.
        let mut changes = Changes::default();
        changes.begin(1600.0);
        changes.add(1610.0, undo(1));
        assert_eq!(undone(&changes, 1010.0), None);
        changes.set_back(1010.0);
        assert_eq!(undone(&changes, 1010.0), Some(0));
        assert_eq!(undone(&changes, 1009.0), None);
        changes.add(1020.0, undo(1));
        assert_eq!(undone(&changes, 1015.0), Some(1));
    }

    #[test]
    fn a_dry_run_tells_the_operator_alone_who_calls_whom() {
        let state = MeshState::in_memory().unwrap();
        state.observe();
        let allowed = json!({
            "apiVersion": "access.smi-spec.io/v1alpha3", "kind": "TrafficTarget",
            "metadata": { "name": "a-calls-b" },
            "spec": {
                "destination": { "kind": "ServiceAccount", "name": "b" },
                "sources": [{ "kind": "ServiceAccount", "name": "a" }],
            },
        });
        let [a, b] = ["a", "b"].map(|name| testing::workload("edge", name));
        for object in [&a, &b, &allowed] {
            testing::apply(&state, &Actor::Operator, object);
        }
        let called = v1::EdgeCounts {
            at_source: true,
            source: testing::id("svc/a").to_string(),
            destination_service: "b".into(),
            destination: testing::id("svc/b").to_string(),
            outcomes: vec![v1::OutcomeCount {
                status_class: 2,
                count: 3,
                ..Default::default()
            }],
            ..Default::default()
        };
        let told = v1::FromProxy {
            interval: Some(v1::Interval {
                milliseconds: 5000,
                edges: vec![called],
                ..Default::default()
            }),
            ..Default::default()
        };
        let (to, _asked) = mpsc::channel(1);
        let joined = state
            .reports
            .join(testing::id("svc/a"), v1::Reporter::default(), to);
        let proxy = joined.unwrap();
        state.reports.hear(&proxy, &state.nodes_known(), told);

        let mut other = a;
        other["spec"]["identity"] = json!("other");
        let asked = v1::ApplyRequest {
            objects: vec![v1::Object {
                kind: "Workload".into(),
                name: "a".into(),
                json: other.to_string(),
            }],
            dry_run: true,
            ..Default::default()
        };
        let found = |actor: &Actor| state.apply(actor, &asked).unwrap().findings;
        let of_operator = found(&Actor::Operator);
        assert_eq!(of_operator.len(), 1, "{of_operator:?}");
        assert_eq!(of_operator[0].code, OBSERVED);
        assert!(of_operator[0].message.contains("a (3 requests)"));
        let of_host = found(&Actor::Node("edge".into()));
        assert!(of_host.is_empty(), "{of_host:?}");
    }
}
