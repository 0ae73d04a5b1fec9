//! Proof on screen: requests through every route of every gateway, then who really talked to
//! whom and how, as the proxies counted it.
//!
//! A route's path is a prefix as often as not, and what is below it only the application knows.
//! The annotation `tulle.dev/verify` on an HTTPRoute names paths to ask for instead, separated by
//! spaces.

use crate::client::{self, Rpc};
use crate::failure::{Failure, Result};
use crate::http;
use crate::output::Columns;
use crate::paths::Paths;
use crate::status::{collect, edges_table, verdict};
use crate::supervise::state::RunState;
use std::net::SocketAddr;
use std::time::Duration;
use tulle_api::v1::ListRequest;
use tulle_model::manifest::{HttpRouteSpec, Manifest};

/// Annotation with the paths to ask for.
pub(crate) const ANNOTATION: &str = "tulle.dev/verify";
const TIMEOUT: Duration = Duration::from_secs(15);

/// A request to make.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Try {
    address: SocketAddr,
    host: String,
    path: String,
}

/// The requests that were sent and their result.
pub(crate) struct Proof {
    /// Every hop was mutual TLS between two known identities.
    pub(crate) good: bool,
    /// The requests and their answers, as text.
    pub(crate) answers: String,
    edges: String,
}

impl Proof {
    /// Answers, edges and verdict.
    pub(crate) fn text(&self) -> String {
        format!("{}\n\n{}", self.answers, self.edges)
    }
}

/// Sends the requests; then who talked to whom, and how.
pub(crate) async fn verify(paths: &Paths) -> Result<Proof> {
    let mut answers = Columns::new(&["ANSWER", "REQUEST"]);
    for request in tries(paths).await? {
        let url = format!("http://{}{}", request.address, request.path);
        let asked = tokio::task::spawn_blocking(move || {
            http::get_tcp(request.address, &request.host, &request.path, TIMEOUT)
        });
        let answer = match asked.await {
            Ok(Ok(answer)) => answer.status.to_string(),
            Ok(Err(e)) => e.to_string(),
            Err(e) => e.to_string(),
        };
        answers.row(vec![answer, url]);
    }
    // Counters are merged when they are read; the last request's is there already.
    let report = collect(paths).await?;
    let edges = edges_table(&report.edges, false).ok_or_else(|| {
        Failure::new("no request reached a service")
            .fix("`tulle status` and `tulle logs` show more")
    })?;
    let (good, verdict) = verdict(&report.edges);
    Ok(Proof {
        good,
        answers: answers.render(),
        edges: format!("{edges}\n{verdict}"),
    })
}

async fn tries(paths: &Paths) -> Result<Vec<Try>> {
    let state = RunState::of_running(paths)?;
    let mut objects = client::lazy(&paths.socket());
    let request = ListRequest {
        kind: "HTTPRoute".into(),
        name: String::new(),
    };
    let stored = objects
        .list(request)
        .await
        .rpc(|| "cannot list the routes".to_owned())?;
    let routes = stored
        .objects
        .iter()
        .filter_map(|o| serde_json::from_str::<Manifest<HttpRouteSpec>>(&o.json).ok());
    let mut tries = Vec::new();
    for route in routes {
        for parent in &route.spec.parent_refs {
            let gateway = state.gateways.iter().find(|g| {
                g.name == parent.name && parent.kind.as_deref().unwrap_or("Gateway") == "Gateway"
            });
            let Some(address) = gateway.and_then(|g| g.listeners.first()) else {
                continue;
            };
            for path in asked_paths(&route) {
                let host = host(&route.spec, *address);
                let address = *address;
                tries.push(Try {
                    address,
                    host,
                    path,
                });
            }
        }
    }
    Ok(tries)
}

fn asked_paths(route: &Manifest<HttpRouteSpec>) -> Vec<String> {
    if let Some(named) = route.metadata.annotations.get(ANNOTATION) {
        return named.split_whitespace().map(str::to_owned).collect();
    }
    let matches = route.spec.rules.iter().flat_map(|r| &r.matches);
    let mut paths: Vec<String> = matches
        .filter_map(|m| m.path.as_ref())
        .filter(|p| p.kind.as_deref() != Some("RegularExpression"))
        .filter_map(|p| p.value.clone())
        .collect();
    if paths.is_empty() {
        paths.push("/".into());
    }
    paths
}

/// A host the route takes; `*.x` takes any name below `x`.
fn host(route: &HttpRouteSpec, address: SocketAddr) -> String {
    match route.hostnames.first() {
        Some(host) => host.replacen('*', "verify", 1),
        None => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(json: &str) -> Manifest<HttpRouteSpec> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_annotation_comes_before_the_rules() {
        let rules = r#""spec":{"parentRefs":[],"hostnames":["*.example.org"],"rules":[
            {"matches":[{"path":{"value":"/a"}},{"path":{"type":"RegularExpression","value":"/x.*"}}]},
            {"matches":[{"path":{"type":"Exact","value":"/b"}}]}]}}"#;
        let head = r#"{"apiVersion":"v","kind":"HTTPRoute","metadata":{"name":"r""#;
        let plain = route(&format!("{head}}},{rules}"));
        assert_eq!(asked_paths(&plain), ["/a", "/b"]);
        let noted = route(&format!(
            r#"{head},"annotations":{{"{ANNOTATION}":"/a/1 /b"}}}},{rules}"#
        ));
        assert_eq!(asked_paths(&noted), ["/a/1", "/b"]);
        let address = "127.0.0.1:80".parse().unwrap();
        assert_eq!(host(&plain.spec, address), "verify.example.org");
    }
}
