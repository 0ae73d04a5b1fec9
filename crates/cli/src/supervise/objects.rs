//! Follows the stored objects, which say what is wanted, over the controller's watch.

use super::context::Context;
use super::line::Line;
use crate::client::Objects;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tonic::{Code, Status};
use tulle_api::v1::watch_event::Event;
use tulle_api::v1::{Object, WatchRequest};
use tulle_model::manifest::{GatewaySpec, Manifest, MeshSpec, Metadata, WorkloadSpec};

pub(crate) use tulle_model::manifest::NODE_LABEL;

/// Annotation of a Workload or Gateway; a new value asks for a restart.
pub(crate) const RESTART_MARK: &str = "tulle.dev/restarted-at";
/// Annotation of a Workload; a new value asks for a new process of its sidecar, which takes over while the application goes on.
pub(crate) const SIDECAR_MARK: &str = "tulle.dev/sidecar-restarted-at";
const RECONNECT: Duration = Duration::from_millis(250);
/// The longest pause where the controller is elsewhere.
const RECONNECT_FAR: Duration = Duration::from_secs(2);
/// A controller that restarts is not away yet.
const SILENT: Duration = Duration::from_secs(3);

/// News from the controller.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// All objects, at the start and whenever the connection was made anew.
    All(Vec<Object>),
    /// All objects that a joined host knew last; its controller cannot be asked.
    Known(Vec<Object>),
    /// One was made or changed.
    Applied(Object),
    /// One is gone.
    Deleted(Object),
    /// The controller has been silent for a while.
    Away,
}

/// Follows the controller.
pub(crate) struct Watcher {
    objects: Objects,
    line: Arc<Line>,
    tell: mpsc::Sender<Change>,
    /// Longest pause between tries.
    longest: Duration,
    /// When the controller was heard last.
    heard: Instant,
}

impl Watcher {
    /// One that tells what it sees.
    pub(crate) fn new(context: &Context, tell: mpsc::Sender<Change>) -> Self {
        Self {
            objects: context.objects.clone(),
            line: Arc::clone(&context.line),
            tell,
            // Its own host's answers or refuses at once, and asking it costs nothing.
            longest: match context.node.is_empty() {
                true => RECONNECT,
                false => RECONNECT_FAR,
            },
            heard: Instant::now(),
        }
    }

    /// Runs for as long as somebody listens.
    pub(crate) async fn run(mut self) {
        let mut pause = RECONNECT;
        let mut told = false;
        while !self.tell.is_closed() {
            let before = self.heard;
            let changed = self.line.changed();
            let ended = tokio::select! {
                ended = self.follow() => ended,
                () = changed => continue,
            };
            if let Err(status) = ended {
                tracing::debug!(%status, "the watch on the controller ended");
                // A host that was removed is told so here first.
                if matches!(
                    status.code(),
                    Code::PermissionDenied | Code::Unauthenticated
                ) {
                    self.line.ask();
                }
            }
            let was_heard = self.heard != before;
            if was_heard {
                self.heard = Instant::now();
                (pause, told) = (RECONNECT, false);
            }
            if !told && self.heard.elapsed() > SILENT && !was_heard {
                told = true;
                // A supervisor that ends needs no news.
                let _ = self.tell.send(Change::Away).await;
            }
            sleep(pause).await;
            pause = (pause * 2).min(self.longest);
        }
    }

    async fn follow(&mut self) -> Result<(), Status> {
        let failed = self.line.failed();
        let opened = tokio::select! {
            opened = self.objects.watch(WatchRequest {}) => opened,
            () = failed => Err(Status::unavailable("no connection to the controller")),
        };
        let mut events = opened?.into_inner();
        let mut first = Some(Vec::new());
        loop {
            let message = events.message().await;
            self.heard = match &message {
                Ok(Some(_)) => Instant::now(),
                _ => self.heard,
            };
            let Some(message) = message? else {
                return Ok(());
            };
            let change = match (message.event, &mut first) {
                (Some(Event::Ask(_)), _) => {
                    self.line.told();
                    continue;
                }
                (Some(Event::Applied(object)), Some(all)) => {
                    all.push(object);
                    continue;
                }
                (Some(Event::Synced(_)), _) => match first.take() {
                    Some(all) => Change::All(all),
                    None => continue,
                },
                (Some(Event::Applied(object)), None) => Change::Applied(object),
                (Some(Event::Deleted(object)), None) => Change::Deleted(object),
                (Some(Event::Deleted(_)) | None, _) => continue,
            };
            if self.tell.send(change).await.is_err() {
                return Ok(());
            }
            // Certificates that a joined host may sign depend on the Mesh and on its workloads.
            self.line.ask();
        }
    }
}

/// The objects, and which of them are for this host.
#[derive(Debug)]
pub(crate) struct Wanted {
    node: String,
    objects: BTreeMap<(String, String), Object>,
}

impl Wanted {
    /// Nothing yet. `node` is empty on the controller's own host.
    pub(crate) fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            objects: BTreeMap::new(),
        }
    }

    /// Takes news in.
    pub(crate) fn change(&mut self, change: Change) {
        match change {
            Change::All(all) | Change::Known(all) => {
                self.objects.clear();
                for object in all {
                    self.put(object);
                }
            }
            Change::Applied(object) => self.put(object),
            Change::Away => {}
            Change::Deleted(object) => {
                self.objects.remove(&(object.kind, object.name));
            }
        }
    }

    fn put(&mut self, object: Object) {
        let key = (object.kind.clone(), object.name.clone());
        self.objects.insert(key, object);
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// The mesh's settings, if there are any.
    pub(crate) fn mesh(&self) -> Option<MeshSpec> {
        self.of_kind::<MeshSpec>("Mesh").map(|(_, m)| m.spec).next()
    }

    /// Workloads to run here.
    pub(crate) fn workloads(&self) -> BTreeMap<String, WorkloadSpec> {
        self.mine("Workload")
    }

    /// Gateways to run here.
    pub(crate) fn gateways(&self) -> BTreeMap<String, GatewaySpec> {
        self.mine("Gateway")
    }

    /// Marks of restarts that were asked for by this annotation, by name of the object.
    pub(crate) fn marks(&self, kind: &str, annotation: &str) -> BTreeMap<String, String> {
        self.of_kind::<serde_json::Value>(kind)
            .filter_map(|(name, m)| Some((name, m.metadata.annotations.get(annotation)?.clone())))
            .collect()
    }

    fn mine<S: serde::de::DeserializeOwned>(&self, kind: &str) -> BTreeMap<String, S> {
        self.of_kind::<S>(kind)
            .filter(|(_, m)| node_of(&m.metadata) == self.node)
            .map(|(name, m)| (name, m.spec))
            .collect()
    }

    fn of_kind<S: serde::de::DeserializeOwned>(
        &self,
        kind: &str,
    ) -> impl Iterator<Item = (String, Manifest<S>)> {
        self.objects
            .iter()
            .filter(move |((k, _), _)| k == kind)
            .filter_map(|((kind, name), object)| match serde_json::from_str(&object.json) {
                Ok(manifest) => Some((name.clone(), manifest)),
                Err(error) => {
                    // The controller validated it, so this is a newer controller's object.
                    tracing::error!(kind, name, %error, "cannot read this object of a newer controller; ignoring it");
                    None
                }
            })
    }
}

fn node_of(metadata: &Metadata) -> &str {
    metadata.labels.get(NODE_LABEL).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::objects_over;
    use std::future::pending;
    use tonic::transport::Endpoint;
    use tulle_proxy::control::dial;

    #[tokio::test]
    async fn a_line_that_answers_nothing_is_told_of_at_the_first_failure() {
        let connect = dial::connector(pending);
        let channel =
            Endpoint::from_static("http://controller").connect_with_connector_lazy(connect);
        let (tell, mut told) = mpsc::channel(1);
        let line = Arc::new(Line::default());
        let watcher = Watcher {
            objects: objects_over(channel),
            line: Arc::clone(&line),
            tell,
            longest: RECONNECT_FAR,
            heard: Instant::now().checked_sub(SILENT * 2).unwrap(),
        };
        let watching = tokio::spawn(watcher.run());
        let told = loop {
            tokio::select! {
                told = told.recv() => break told,
                () = sleep(RECONNECT) => line.fail(),
            }
        };
        assert!(matches!(told, Some(Change::Away)), "{told:?}");
        watching.abort();
    }

    fn workload(name: &str, node: Option<&str>) -> Object {
        let labels = node.map_or(String::new(), |n| {
            format!(r#","labels":{{"{NODE_LABEL}":"{n}"}}"#)
        });
        Object {
            kind: "Workload".into(),
            name: name.into(),
            json: format!(
                r#"{{"apiVersion":"tulle.dev/v1alpha1","kind":"Workload","metadata":{{"name":"{name}"{labels}}},"spec":{{"command":["x"]}}}}"#
            ),
        }
    }

    #[test]
    fn each_host_runs_its_own() {
        let all = vec![workload("a", None), workload("b", Some("edge"))];
        let mut here = Wanted::new("");
        let mut edge = Wanted::new("edge");
        here.change(Change::All(all.clone()));
        edge.change(Change::All(all));
        let names = |w: &Wanted| w.workloads().into_keys().collect::<Vec<_>>();
        assert_eq!(names(&here), ["a"]);
        assert_eq!(names(&edge), ["b"]);
        here.change(Change::Applied(workload("c", None)));
        here.change(Change::Deleted(workload("a", None)));
        assert_eq!(names(&here), ["c"]);
        here.change(Change::All(Vec::new()));
        assert!(here.workloads().is_empty());
    }

    #[test]
    fn a_mark_asks_for_a_restart() {
        let mut wanted = Wanted::new("");
        wanted.change(Change::Applied(workload("a", None)));
        let marks = |wanted: &Wanted| wanted.marks("Workload", RESTART_MARK);
        assert!(marks(&wanted).is_empty());
        let mut marked = workload("a", None);
        let annotation = format!(r#""annotations":{{"{RESTART_MARK}":"1"}},"name""#);
        marked.json = marked.json.replacen(r#""name""#, &annotation, 1);
        wanted.change(Change::Applied(marked));
        assert_eq!(marks(&wanted).get("a").map(String::as_str), Some("1"));
        assert!(wanted.marks("Workload", SIDECAR_MARK).is_empty());
        assert_eq!(wanted.workloads().len(), 1);
    }

    #[test]
    fn an_unreadable_object_hides_no_other() {
        let mut wanted = Wanted::new("");
        wanted.change(Change::Applied(workload("a", None)));
        wanted.change(Change::Applied(Object {
            json: "{".into(),
            ..workload("b", None)
        }));
        assert_eq!(wanted.workloads().len(), 1);
    }
}
