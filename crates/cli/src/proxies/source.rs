//! Where proxies are found and how they are reached: the only thing in which a cluster and a host differ.

use super::Owners;
use crate::args::cluster::Within;
use crate::failure::{Failure, OrFail, Result};
use crate::output;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Longest answer of a proxy that is read.
const LONGEST: usize = 32 << 20;
/// How long a proxy may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Proxies that are asked at a time.
const AT_A_TIME: usize = 16;

/// The mesh that a command asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MeshName {
    /// The context of a cluster, and its API server.
    Cluster { context: String, server: String },
    /// The name of a host's mesh.
    Host { name: String },
}

impl MeshName {
    /// The field that says it to programs, and the name.
    pub(crate) fn field(&self) -> (&'static str, &str) {
        match self {
            Self::Cluster { context, .. } => ("context", context),
            Self::Host { name } => ("mesh", name),
        }
    }

    /// Adds the mesh to an object for programs.
    pub(crate) fn name_in(&self, object: &mut Value) {
        let (field, name) = self.field();
        if let Some(members) = object.as_object_mut() {
            members.insert(field.to_owned(), name.into());
        }
    }
}

/// An object of one field, to be flattened into another.
impl Serialize for MeshName {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let (field, name) = self.field();
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(field, name)?;
        map.end()
    }
}

impl std::fmt::Display for MeshName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cluster { context, server } => write!(f, "cluster {context} ({server})"),
            Self::Host { name } => write!(f, "mesh {name} of this host"),
        }
    }
}

/// Says on a terminal which mesh is asked, and how to ask another that could be meant as well.
pub(crate) fn say_which(mesh: &MeshName, other: Option<&str>) {
    if output::is_terminal() {
        let other = other.map(|other| format!("; {other}")).unwrap_or_default();
        anstream::eprintln!("{mesh}{other}");
    }
}

/// A proxy: a pod's sidecar, a workload's sidecar on a host, or a gateway's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meshed {
    /// Namespace; empty on a host.
    pub(crate) namespace: String,
    /// Name of the pod, or of the workload; `gateway.NAME` for a gateway of a host.
    pub(crate) name: String,
    /// The owner: `deployment/web`; the pod itself if it has none. On a host `workload/web` or `gateway/web`.
    pub(crate) workload: String,
    /// Its service account; on a host the name in its identity.
    pub(crate) account: String,
    /// Its labels, for selectors; on a host its service.
    pub(crate) labels: Vec<(String, String)>,
    /// All its containers are ready; on a host the workload answers.
    pub(crate) ready: bool,
    /// Its sidecar runs and is ready.
    pub(crate) sidecar_ready: bool,
    /// Its sidecar runs.
    pub(crate) sidecar_runs: bool,
    /// Version of its sidecar, by its image; on a host the mesh's.
    pub(crate) version: String,
    /// How often its sidecar was started again.
    pub(crate) restarts: u64,
    /// It is a gateway's: the proxy is all there is.
    pub(crate) gateway: bool,
}

impl Meshed {
    /// Namespace and name.
    pub(crate) fn key(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    /// `namespace/name`, or the name alone on a host.
    pub(crate) fn shown(&self) -> String {
        match self.namespace.as_str() {
            "" => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }

    /// The same, to begin a message with.
    pub(crate) fn subject(&self) -> String {
        match self.namespace.as_str() {
            "" => format!("the proxy of {}", self.name),
            _ => format!("pod {}", self.shown()),
        }
    }
}

/// A connection to a proxy's administration.
pub(crate) type Pipe = Box<dyn Duplex>;

/// Bytes in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// A mesh whose proxies can be asked.
pub(crate) trait ProxySource: Clone + Send + Sync + 'static {
    /// Its name for people.
    fn mesh(&self) -> MeshName;

    /// Says why there is no proxy.
    fn no_proxies(&self) -> String;

    /// Every proxy, or those of a namespace.
    fn proxies(&self, within: &Within) -> impl Future<Output = Result<Vec<Meshed>>> + Send;

    /// The proxies that a target means, at least one; those that are ready come first.
    fn select(
        &self,
        target: &str,
        within: &Within,
    ) -> impl Future<Output = Result<Vec<Meshed>>> + Send;

    /// Connects to a proxy's administration.
    fn connect(&self, proxy: &Meshed) -> impl Future<Output = Result<Pipe>> + Send;

    /// Names the owners of addresses.
    fn owners(&self) -> impl Future<Output = Result<Owners>> + Send;
}

/// Sends a GET to a proxy; the answer is read as it comes.
pub(crate) async fn open<S: ProxySource>(
    source: &S,
    proxy: &Meshed,
    path: &str,
) -> Result<http::Response<Incoming>> {
    let what = || format!("{} does not answer {path}", proxy.subject());
    let stream = source.connect(proxy).await?;
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.or_fail(what)?;
    tokio::spawn(connection);
    let request = http::Request::builder()
        .uri(path)
        .header("host", "localhost")
        .body(Full::<Bytes>::default());
    let request = request.or_fail(what)?;
    sender.send_request(request).await.or_fail(what)
}

/// Sends a GET to a proxy and returns the whole answer.
pub(crate) async fn ask<S: ProxySource>(source: &S, proxy: &Meshed, path: &str) -> Result<String> {
    let what = || format!("{} does not answer {path}", proxy.subject());
    let asked = async {
        let answer = open(source, proxy, path).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LONGEST).collect().await;
        let bytes = body.or_fail(what)?.to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if status.is_success() {
            return Ok(text);
        }
        Err(Failure::new(what()).because(format!("{status}: {}", text.trim())))
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer,
        Err(_) => {
            let seconds = PATIENCE.as_secs();
            Err(Failure::new(what()).because(format!("nothing within {seconds} s")))
        }
    }
}

/// Asks each proxy, several at a time; answers in the order of the proxies.
pub(crate) async fn ask_all<'a, S: ProxySource>(
    source: &S,
    proxies: impl IntoIterator<Item = &'a Meshed>,
    path: &str,
) -> Vec<(&'a Meshed, Result<String>)> {
    let one = async |proxy| (proxy, ask(source, proxy, path).await);
    // A list: what makes these futures is not one that a task could hold across threads.
    let asked: Vec<_> = proxies.into_iter().map(one).collect();
    stream::iter(asked).buffered(AT_A_TIME).collect().await
}
