//! Makes the listeners and routes of one gateway of the Ingresses of a namespace and class. Pure.
//!
//! Of two Ingresses that say different things of the same requests the older one holds, as of routes.

use super::seen::{Backend, Ingress, Spec};
use super::{Class, Member, Served, key, problem};
use crate::gateway_fields::{Gateway, Key};
use crate::object::{NO_BACKEND, qualified};
use serde_json::{Value, json};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tulle_control::index::{Attachment, ObjectProblem, common_hosts};
use tulle_model::manifest::Object;

/// Hosts of a namespace that TLS ends for. Each is a listener of every pod.
const MOST_TLS_HOSTS: usize = 256;
/// The listener of port 80.
const PLAIN: &str = "http";
/// The listener of port 443 for names that no other has.
const ANY_NAME: &str = "https";

/// Looks up the ports of a Service with their names; `None`: there is no such Service.
pub(crate) type Ports<'a> = &'a dyn Fn(&str) -> Option<Vec<(String, u16)>>;

/// The gateway and routes of a namespace and class.
pub(crate) struct Translated {
    pub(crate) served: Served,
    /// HTTPRoutes for the index, by name.
    pub(crate) routes: BTreeMap<String, Object>,
}

/// Translates. `ports` knows the Services of the namespace by their bare names.
pub(crate) fn translate(
    namespace: &str,
    (class_name, class): (&str, &Class),
    ingresses: &[(&str, &Ingress)],
    ports: Ports<'_>,
) -> Translated {
    let mut all = Translation {
        namespace,
        gateway: key(namespace, class_name),
        ports,
        claims: BTreeMap::new(),
        default: None,
        secrets: BTreeMap::new(),
        asked: BTreeMap::new(),
        hosts: BTreeMap::new(),
        routes: BTreeMap::new(),
        problems: Vec::new(),
    };
    // Ingresses made in the same second are ordered by name.
    let mut ingresses = ingresses.to_vec();
    ingresses.sort_unstable_by(|a, b| (&a.1.created, a.0).cmp(&(&b.1.created, b.0)));
    let mut members = Vec::new();
    for (name, ingress) in &ingresses {
        all.say_what_is_ignored(name, ingress, class);
        let before = all.routes.len();
        if let Some(spec) = &ingress.spec {
            all.tls(name, spec);
            all.rules(name, ingress, spec);
        }
        members.push(Member {
            name: (*name).to_owned(),
            uid: ingress.uid.clone(),
            resource_version: ingress.resource_version.clone(),
            status: ingress.status.clone(),
            in_force: all.routes.len() > before,
        });
    }
    // Default backends come after all rules: they take the rest.
    for (name, ingress) in &ingresses {
        if let Some(backend) = ingress
            .spec
            .as_ref()
            .and_then(|s| s.default_backend.as_ref())
        {
            let done = all.default_backend(name, ingress, backend);
            let member = members.iter_mut().find(|m| m.name == *name);
            member.into_iter().for_each(|m| m.in_force |= done);
        }
    }
    let oldest = ingresses
        .first()
        .map(|(_, ingress)| ingress.created.as_str());
    Translated {
        served: Served {
            gateway: Gateway {
                created: oldest.unwrap_or_default().to_owned(),
                ..all.gateway_object()
            },
            annotations: class.annotations.clone(),
            attached: all.attached(),
            asked: all.asked,
            members,
            problems: all.problems,
        },
        routes: all.routes,
    }
}

/// Host, whether the path is exact, and the path without a slash at its end if it is not.
type Claim = (String, bool, String);

struct Translation<'a> {
    namespace: &'a str,
    gateway: Key,
    ports: Ports<'a>,
    /// The Ingress that has certain requests.
    claims: BTreeMap<Claim, String>,
    /// The Ingress that has the requests that no rule matches.
    default: Option<String>,
    /// Secret of each host that TLS ends for; an empty host is every name.
    secrets: BTreeMap<String, String>,
    /// The Ingress that asked for each listener.
    asked: BTreeMap<String, String>,
    /// Host of each route.
    hosts: BTreeMap<String, String>,
    routes: BTreeMap<String, Object>,
    problems: Vec<ObjectProblem>,
}

impl Translation<'_> {
    fn problem(&mut self, ingress: &str, text: String) {
        self.problems.push(problem(self.namespace, ingress, text));
    }

    fn say_what_is_ignored(&mut self, name: &str, ingress: &Ingress, class: &Class) {
        if let Some(why) = &ingress.refused {
            let then = match ingress.spec {
                Some(_) => "its last valid version stays in force",
                None => "nothing of it is served",
            };
            self.problem(name, format!("{why}; {then}"));
        }
        if class.has_parameters {
            let text =
                "the parameters of its IngressClass are not read: use annotations of the class";
            self.problem(name, text.into());
        }
        if !ingress.ignored.is_empty() {
            let keys = ingress.ignored.join(", ");
            let text = format!(
                "its annotations {keys} are not read: use an HTTPRoute for what Ingress cannot say"
            );
            self.problem(name, text);
        }
    }

    fn tls(&mut self, name: &str, spec: &Spec) {
        for tls in &spec.tls {
            let Some(secret) = tls.secret_name.as_deref().filter(|s| !s.is_empty()) else {
                let text = "a part of its `tls` has no secretName: there is no certificate to show";
                self.problem(name, text.into());
                continue;
            };
            let mut hosts: Vec<String> = tls.hosts.iter().map(|h| h.to_ascii_lowercase()).collect();
            if hosts.is_empty() {
                hosts.push(String::new());
            }
            for host in hosts {
                self.tls_host(name, host, secret);
            }
        }
    }

    fn tls_host(&mut self, name: &str, host: String, secret: &str) {
        let shown = shown_host(&host).to_owned();
        if !host.is_empty() && !is_host(&host) {
            let text = format!("{shown} has no TLS: no client can ask for this name");
            return self.problem(name, text);
        }
        if !self.secrets.contains_key(&host) && self.secrets.len() >= MOST_TLS_HOSTS {
            let text = format!(
                "{shown} has no TLS: the Ingresses of a namespace may have TLS for {MOST_TLS_HOSTS} hosts"
            );
            return self.problem(name, text);
        }
        match self.secrets.entry(host) {
            Entry::Vacant(entry) => {
                let listener = listener_name(entry.key());
                entry.insert(secret.to_owned());
                self.asked.insert(listener, name.to_owned());
            }
            Entry::Occupied(entry) if entry.get() == secret => {}
            Entry::Occupied(entry) => {
                let (listener, other) = (listener_name(entry.key()), entry.get().clone());
                let older = self.asked.get(&listener).cloned().unwrap_or_default();
                let text = format!(
                    "the certificate of Secret {secret} is not shown for {shown}: {older} names {other} for it, and is older"
                );
                self.problem(name, text);
            }
        }
    }

    fn rules(&mut self, name: &str, ingress: &Ingress, spec: &Spec) {
        // Each host has one route, whichever rules name it.
        let mut by_host: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for rule in &spec.rules {
            let host = rule.host();
            let Some(http) = &rule.http else {
                self.whole_host(name, spec, host, &mut by_host);
                continue;
            };
            for path in &http.paths {
                let text = path.path();
                if self.claim(name, &host, path.is_exact(), text) {
                    let backend = self.backend(name, &path.backend);
                    let kind = if path.is_exact() {
                        "Exact"
                    } else {
                        "PathPrefix"
                    };
                    let rule = http_rule(&host, kind, text, &backend);
                    by_host.entry(host.clone()).or_default().push(rule);
                }
            }
        }
        for (host, rules) in by_host {
            let part = (!host.is_empty()).then_some(host.as_str());
            self.route(name, ingress, part, &host, &rules);
        }
    }

    /// A rule for a host alone: all its requests go to the default backend.
    fn whole_host(
        &mut self,
        name: &str,
        spec: &Spec,
        host: String,
        by_host: &mut BTreeMap<String, Vec<Value>>,
    ) {
        let Some(backend) = &spec.default_backend else {
            let shown = shown_host(&host);
            let text = format!("its rule for {shown} has no paths, and there is no defaultBackend");
            return self.problem(name, text);
        };
        // A rule for every host does the same as the default backend.
        if !host.is_empty() && self.claim(name, &host, false, "/") {
            let backend = self.backend(name, backend);
            let rule = http_rule(&host, "PathPrefix", "/", &backend);
            by_host.entry(host).or_default().push(rule);
        }
    }

    fn default_backend(&mut self, name: &str, ingress: &Ingress, backend: &Backend) -> bool {
        if let Some(older) = &self.default {
            let text =
                format!("its defaultBackend has no effect: {older} has one, too, and is older");
            self.problem(name, text);
            return false;
        }
        self.default = Some(name.to_owned());
        let everything = (String::new(), false, String::new());
        if let Some(other) = self.claims.get(&everything).filter(|o| *o != name) {
            let text =
                format!("its defaultBackend gets no requests: {other} has `/` of every host");
            self.problem(name, text);
            return false;
        }
        if self.claims.contains_key(&everything) {
            return false;
        }
        let backend = self.backend(name, backend);
        let rule = http_rule("", "PathPrefix", "/", &backend);
        // No host has an upper-case letter, so this name is free.
        self.route(name, ingress, Some("defaultBackend"), "", &[rule])
    }

    /// Takes certain requests for an Ingress, unless an older one has them.
    fn claim(&mut self, name: &str, host: &str, exact: bool, path: &str) -> bool {
        let compared = if exact {
            path
        } else {
            path.trim_end_matches('/')
        };
        let claim = (host.to_owned(), exact, compared.to_owned());
        match self.claims.entry(claim) {
            Entry::Vacant(entry) => {
                entry.insert(name.to_owned());
                true
            }
            Entry::Occupied(entry) => {
                let kind = if exact { "Exact" } else { "Prefix" };
                let what = format!("{kind} {path} of {}", shown_host(host));
                let text = match entry.get() {
                    same if same == name => {
                        format!("it has two rules for {what}: only the first has an effect")
                    }
                    older => {
                        format!(
                            "its rule for {what} has no effect: {older} has the same rule and is older"
                        )
                    }
                };
                self.problem(name, text);
                false
            }
        }
    }

    /// Returns a backend. One that cannot be resolved answers with an error: its requests go nowhere else.
    fn backend(&mut self, name: &str, backend: &Backend) -> Value {
        match resolve(self.namespace, self.ports, backend) {
            Ok((service, port)) => json!({ "name": service, "port": port }),
            Err(why) => {
                self.problem(
                    name,
                    format!("{why}; requests for it are answered with 500"),
                );
                json!({ "name": NO_BACKEND, "port": 1 })
            }
        }
    }

    /// Makes a route; returns whether it is possible.
    fn route(
        &mut self,
        name: &str,
        ingress: &Ingress,
        part: Option<&str>,
        host: &str,
        rules: &[Value],
    ) -> bool {
        let mut spec = json!({ "parentRefs": [{ "name": "ingress" }], "rules": rules });
        if !host.is_empty() {
            spec["hostnames"] = json!([host]);
        }
        let manifest = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {
                "name": "ingress", "namespace": self.namespace, "creationTimestamp": ingress.created,
            },
            "spec": spec,
        });
        match qualified(&manifest) {
            Ok(Object::HttpRoute(mut route)) => {
                let part = part.map_or(String::new(), |part| format!("/{part}"));
                let name = format!("Ingress/{name}{part}.{}", self.namespace);
                route.metadata.name.clone_from(&name);
                for parent in &mut route.spec.parent_refs {
                    parent.name = self.gateway.object_name().to_string();
                }
                self.hosts.insert(name.clone(), host.to_owned());
                self.routes.insert(name, Object::HttpRoute(route));
                return true;
            }
            Ok(_) => {}
            Err(why) => self.problem(name, format!("{} is not served: {why}", shown_host(host))),
        }
        false
    }

    fn gateway_object(&self) -> Gateway {
        let mut listeners = vec![json!({ "name": PLAIN, "port": 80, "protocol": "HTTP" })];
        listeners.extend(self.secrets.iter().map(|(host, secret)| {
            let mut listener = json!({
                "name": listener_name(host), "port": 443, "protocol": "HTTPS",
                "tls": { "mode": "Terminate", "certificateRefs": [{ "kind": "Secret", "name": secret }] },
            });
            if !host.is_empty() {
                listener["hostname"] = host.as_str().into();
            }
            listener
        }));
        Gateway::with_spec(json!({ "listeners": listeners }))
    }

    /// A route is attached to port 80, and to TLS of its host.
    fn attached(&self) -> BTreeSet<Attachment> {
        let mut attached = BTreeSet::new();
        for (route, host) in &self.hosts {
            let hosts: Vec<String> = Some(host.clone())
                .into_iter()
                .filter(|h| !h.is_empty())
                .collect();
            let tls = self.secrets.keys();
            let tls = tls.filter(|listener| common_hosts(listener, &hosts).is_some());
            let tls = tls.map(|host| listener_name(host));
            attached.extend(tls.chain([PLAIN.to_owned()]).map(|listener| Attachment {
                route: route.clone(),
                listener,
            }));
        }
        attached
    }
}

/// Names the listener that ends TLS for a host.
fn listener_name(host: &str) -> String {
    match (host, host.strip_prefix("*.")) {
        ("", _) => ANY_NAME.to_owned(),
        (_, Some(suffix)) => format!("any.{suffix}"),
        (host, None) => format!("host.{host}"),
    }
}

/// Returns whether a listener can be for this name. The API server lets more through: long labels, addresses.
fn is_host(host: &str) -> bool {
    let name = host.strip_prefix("*.").unwrap_or(host);
    let label = |label: &str| {
        let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(known)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // The listener's name is longer by a word.
    name.len() <= 240 && name.split('.').all(label) && name.parse::<IpAddr>().is_err()
}

fn shown_host(host: &str) -> &str {
    match host {
        "" => "every host",
        host => host,
    }
}

/// `*.example.com` covers one label here, other than in Gateway API: the rest is a condition.
fn http_rule(host: &str, kind: &str, path: &str, backend: &Value) -> Value {
    let mut matches = json!({ "path": { "type": kind, "value": path } });
    if let Some(suffix) = host.strip_prefix("*.") {
        let suffix = regex::escape(suffix);
        matches["headers"] = json!([{
            "type": "RegularExpression", "name": "host",
            "value": format!(r"(?i)[^.]+\.{suffix}\.?(:[0-9]*)?"),
        }]);
    }
    json!({ "matches": [matches], "backendRefs": [backend] })
}

/// Finds the Service and the number of its port.
fn resolve(namespace: &str, ports: Ports<'_>, backend: &Backend) -> Result<(String, u16), String> {
    if let Some(resource) = &backend.resource {
        let text = |field: &str| resource[field].as_str().unwrap_or_default().to_owned();
        return Err(format!(
            "its backend is the {} {}: a backend must be a Service",
            text("kind"),
            text("name")
        ));
    }
    let Some(service) = &backend.service else {
        return Err("a backend names no Service".into());
    };
    let name = &service.name;
    let Some(known) = ports(name) else {
        return Err(format!(
            "there is no Service {name} in the namespace {namespace} (one of type ExternalName does not count)"
        ));
    };
    let (wanted, found) = match (&service.port.name, service.port.number) {
        (Some(wanted), _) => {
            let mut known = known.iter().filter(|(name, _)| name == wanted);
            (wanted.clone(), known.next())
        }
        (None, Some(number)) => {
            let mut known = known.iter().filter(|(_, port)| *port == number);
            (number.to_string(), known.next())
        }
        (None, None) => return Err(format!("its backend {name} names no port")),
    };
    let missing = || format!("Service {name} of the namespace {namespace} has no port {wanted}");
    found
        .map(|(_, port)| (name.clone(), *port))
        .ok_or_else(missing)
}
