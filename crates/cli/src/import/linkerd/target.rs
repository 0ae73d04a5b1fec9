//! Subjects of policies: Servers, which choose pods and a port, and HTTPRoutes of Servers, which choose requests. One that
//! lost a part is kept all the same, so that no policy is made about it: without the part it would be about more.

use super::overlap::may_lose;
use crate::import::fields::{list, lose_rest, take, text, text_map};
use crate::import::imported::Imported;
use crate::import::services::{Service, labels};
use crate::import::source::Source;
use crate::import::{POLICY, texts};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Pods and a port of theirs.
pub(super) struct Server {
    pub(super) id: String,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// Labels of its pods.
    labels: BTreeMap<String, String>,
    pub(super) own_labels: BTreeMap<String, String>,
    port: Value,
    /// Access without any policy.
    pub(super) access: String,
    /// Whether no part was lost.
    pub(super) is_whole: bool,
}

/// Requests to Servers.
pub(super) struct Route {
    pub(super) id: String,
    /// API group and kind. Routes of Linkerd's own group and of Gateway API's may have the same name.
    group_kind: (String, String),
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// Names of Servers in its namespace.
    pub(super) servers: Vec<String>,
    /// Empty: they could not be read.
    requests: Vec<Map<String, Value>>,
    is_whole: bool,
}

/// Group of Linkerd's Servers and policies.
const POLICY_GROUP: &str = "policy.linkerd.io";

/// Whether it is a route of Gateway API with a Server among its parents: Linkerd obeys it as it does its own.
pub(super) fn is_gateway_route(source: &Source) -> bool {
    let parents = source.spec["parentRefs"].as_array();
    let mut parents = parents.into_iter().flatten();
    source.group() == "gateway.networking.k8s.io"
        && matches!(source.kind.as_str(), "HTTPRoute" | "GRPCRoute")
        && parents.any(|parent| parent["group"] == POLICY_GROUP && parent["kind"] == "Server")
}

/// The subject of a policy: a port of Services, and requests to it.
pub(super) struct Target<'s> {
    pub(super) server: &'s Server,
    /// HTTPRoutes of which the requests are meant. Empty: all requests are.
    pub(super) routes: Vec<&'s Route>,
}

impl Server {
    pub(super) fn read(mut source: Source, imported: &mut Imported) -> Self {
        let mut spec = std::mem::take(&mut source.spec);
        let id = source.id.clone();
        let before = imported.lost.len();
        let pods = text_map(&mut spec, "podSelector/matchLabels");
        if !list(&mut spec, "podSelector/matchExpressions").is_empty() {
            imported.lose(
                &id,
                "spec.podSelector.matchExpressions",
                "a Service chooses its pods by labels alone, so nobody can say which Services it is about",
                POLICY,
            );
        }
        let selector = take(&mut spec, "podSelector");
        if take(&mut spec, "externalWorkloadSelector").is_some() {
            imported.lose(
                &id,
                "spec.externalWorkloadSelector",
                "a mesh is one cluster, or hosts, and has no workloads outside of it",
                "guard them where they run",
            );
        } else if !selector.as_ref().is_some_and(Value::is_object) {
            imported.lose(&id, "spec.podSelector", "it chooses no pods", POLICY);
        }
        let left = selector.unwrap_or_default();
        lose_rest(imported, &id, "spec.podSelector", &left, POLICY);
        let port = take(&mut spec, "port").unwrap_or_default();
        let access = text(&mut spec, "accessPolicy").unwrap_or_else(|| "deny".into());
        // The sidecar finds out what is spoken, or `appProtocol` of the Service says it.
        take(&mut spec, "proxyProtocol");
        lose_rest(imported, &id, "spec", &spec, POLICY);
        Self {
            own_labels: labels(&source.labels()),
            is_whole: imported.lost.len() == before,
            id,
            namespace: source.namespace,
            name: source.name,
            labels: pods,
            port,
            access,
        }
    }

    /// Services that have only its pods, with their ports that lead to its port.
    pub(super) fn services<'s>(&self, services: &'s [Service]) -> Vec<(&'s Service, Vec<u64>)> {
        let of = services
            .iter()
            .filter(|s| s.is_of(self.namespace.as_deref(), &self.labels));
        let ports = of.map(|service| {
            (
                service,
                service
                    .ports_to(&self.port)
                    .into_iter()
                    .collect::<Vec<u64>>(),
            )
        });
        ports.filter(|(_, ports)| !ports.is_empty()).collect()
    }

    pub(super) fn no_service(&self, id: &str, imported: &mut Imported) {
        let why = format!(
            "{}: no Service among the objects has only its pods and leads to its port, and a policy is about Services",
            self.id
        );
        imported.lose(
            id,
            "spec",
            &why,
            "give the Services, too, and for a port by its name the workloads: kubectl get services,deployments,statefulsets,daemonsets -A -o yaml",
        );
    }
}

impl Route {
    pub(super) fn read(mut source: Source, imported: &mut Imported) -> Self {
        let mut spec = std::mem::take(&mut source.spec);
        let id = source.id.clone();
        let group_kind = (source.group().to_owned(), source.kind.clone());
        let before = imported.lost.len();
        let servers = servers(&source, &mut spec, imported);
        if source.kind == "GRPCRoute" {
            let why = "the conditions of a policy are about requests of HTTP, and without it a policy about its Server would allow more";
            let instead = "write the methods as paths of an HTTPRoute, `/package.Service/Method`, or write the policy anew: docs/manifests/access.md";
            imported.lose(&id, "spec.rules", why, instead);
            return Self {
                id,
                group_kind,
                namespace: source.namespace,
                name: source.name,
                servers,
                requests: Vec::new(),
                is_whole: false,
            };
        }
        let hosts = texts(&mut spec, "hostnames");
        let mut requests = Vec::new();
        for (number, mut rule) in list(&mut spec, "rules").into_iter().enumerate() {
            let at = format!("spec.rules[{number}]");
            let mut matches = list(&mut rule, "matches");
            if matches.is_empty() {
                matches.push(json!({}));
            }
            for (other, one) in matches.into_iter().enumerate() {
                let at = format!("{at}.matches[{other}]");
                requests.push(request(&id, &at, one, &hosts, imported));
            }
            take(&mut rule, "name");
            if !list(&mut rule, "filters").is_empty() {
                imported.lose(
                    &id,
                    &format!("{at}.filters"),
                    "a policy says who may call, and changes no request",
                    "put them into an HTTPRoute of the Service: docs/manifests/routes.md",
                );
            }
            lose_rest(imported, &id, &at, &rule, POLICY);
        }
        lose_rest(imported, &id, "spec", &spec, POLICY);
        if requests.is_empty() {
            imported.lose(&id, "spec.rules", "it names no requests", "name them");
        }
        Self {
            is_whole: imported.lost.len() == before,
            id,
            group_kind,
            namespace: source.namespace,
            name: source.name,
            servers,
            requests,
        }
    }

    pub(super) fn is_of(&self, server: &Server) -> bool {
        self.namespace == server.namespace && self.servers.contains(&server.name)
    }

    /// Whether another one may be the better match of a request that both match.
    pub(super) fn may_lose(&self, other: &Self) -> bool {
        let mut pairs = self.requests.iter();
        other.requests.is_empty()
            || pairs.any(|one| other.requests.iter().any(|other| may_lose(one, other)))
    }

    /// Whether the `targetRef` of a policy of its namespace, with or without a group, is about it.
    pub(super) fn is_named(&self, group: Option<&str>, kind: &str, name: &str) -> bool {
        let (own_group, own_kind) = &self.group_kind;
        own_group == group.unwrap_or(POLICY_GROUP) && own_kind == kind && self.name == name
    }
}

/// Names of the Servers that are a route's parents. Another parent is lost.
fn servers(source: &Source, spec: &mut Value, imported: &mut Imported) -> Vec<String> {
    let id = &source.id;
    let mut servers = Vec::new();
    for (number, mut parent) in list(spec, "parentRefs").into_iter().enumerate() {
        let at = format!("spec.parentRefs[{number}]");
        take(&mut parent, "group");
        let is_server = text(&mut parent, "kind").as_deref() == Some("Server");
        let namespace = text(&mut parent, "namespace");
        let name = text(&mut parent, "name");
        lose_rest(imported, id, &at, &parent, POLICY);
        if is_server && (namespace.is_none() || namespace == source.namespace) {
            servers.extend(name);
        } else {
            let why = "it is no Server of the route's namespace, and other parents are";
            imported.lose(id, &at, why, "give this parent a route of its own");
        }
    }
    servers
}

/// The conditions of a match, and the hosts of its route.
fn request(
    id: &str,
    at: &str,
    mut one: Value,
    hosts: &[String],
    imported: &mut Imported,
) -> Map<String, Value> {
    let mut to = Map::new();
    if let Some(mut path) = take(&mut one, "path") {
        let kind = text(&mut path, "type").unwrap_or_else(|| "PathPrefix".into());
        let value = text(&mut path, "value").unwrap_or_else(|| "/".into());
        to.insert("paths".into(), json!([{ "type": kind, "value": value }]));
        lose_rest(imported, id, &format!("{at}.path"), &path, POLICY);
    }
    if let Some(method) = take(&mut one, "method") {
        to.insert("methods".into(), json!([method]));
    }
    let headers = list(&mut one, "headers");
    if !headers.is_empty() {
        to.insert("headers".into(), headers.into());
    }
    if !hosts.is_empty() {
        to.insert("hosts".into(), json!(hosts));
    }
    // Without a condition for HTTP the rule would be about TCP, too.
    if to.is_empty() {
        let all = json!([{ "type": "PathPrefix", "value": "/" }]);
        to.insert("paths".into(), all);
    }
    if !list(&mut one, "queryParams").is_empty() {
        imported.lose(
            id,
            &format!("{at}.queryParams"),
            "the lists of a rule know no query",
            "write the policy anew, with `request.query` in `to.when`: docs/features/expressions.md",
        );
    }
    lose_rest(imported, id, at, &one, POLICY);
    to
}

impl<'s> Target<'s> {
    /// The requests that are meant. Empty: all of them.
    pub(super) fn requests(&self) -> Vec<&'s Map<String, Value>> {
        let routes = self.routes.iter();
        routes.flat_map(|route| route.requests.iter()).collect()
    }

    /// Objects that it is made of and that lost a part.
    fn broken(&self) -> Vec<&'s str> {
        let server = (!self.server.is_whole).then_some(self.server.id.as_str());
        let routes = self.routes.iter().filter(|route| !route.is_whole);
        let routes = routes.map(|route| route.id.as_str());
        server.into_iter().chain(routes).collect()
    }
}

/// Names the objects of a policy's targets that lost a part, as the policy is not made then.
pub(super) fn lose_broken(id: &str, at: &str, targets: &[Target<'_>], imported: &mut Imported) {
    let broken: BTreeSet<&str> = targets.iter().flat_map(|target| target.broken()).collect();
    for object in broken {
        let why = format!("{object} lost a part, and without it the policy would allow more");
        imported.lose(id, at, &why, POLICY);
    }
}
