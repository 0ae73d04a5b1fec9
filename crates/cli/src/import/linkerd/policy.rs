//! Policies about callers. Theirs are about Servers, which choose pods and a port; ours are about Services. A policy
//! of which a part has no counterpart is not made at all: without the part it would be another policy.

use super::authentication::{ANYBODY_KNOWN, identities, networks};
use crate::import::cel::account;
use crate::import::fields::{list, lose_rest, take, text};
use crate::import::imported::{Imported, object};
use crate::import::services::{Service, labels};
use crate::import::source::Source;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const POLICY: &str = "write the policy anew: docs/manifests/access.md";

/// The objects that belong together, until all of them have been read.
#[derive(Default)]
pub(super) struct Policies {
    servers: Vec<Server>,
    routes: Vec<Source>,
    authentications: Vec<Source>,
    policies: Vec<Source>,
}

/// Pods and a port of theirs.
struct Server {
    id: String,
    namespace: Option<String>,
    name: String,
    labels: BTreeMap<String, String>,
    own_labels: BTreeMap<String, String>,
    port: Value,
    access: Option<String>,
}

/// The subject of a policy: a port of Services, and requests to it.
struct Target<'s> {
    server: &'s Server,
    requests: Vec<Map<String, Value>>,
}

impl Policies {
    pub(super) fn add(&mut self, source: Source) {
        match source.kind.as_str() {
            "HTTPRoute" => self.routes.push(source),
            "MeshTLSAuthentication" | "NetworkAuthentication" => self.authentications.push(source),
            "Server" => self.servers.push(Server::read(source)),
            _ => self.policies.push(source),
        }
    }

    pub(super) fn finish(mut self, services: &[Service], imported: &mut Imported) {
        for server in &self.servers {
            server.by_itself(services, imported);
        }
        for policy in std::mem::take(&mut self.policies) {
            match policy.kind.as_str() {
                "ServerAuthorization" => self.server_authorization(policy, services, imported),
                "HTTPLocalRateLimitPolicy" => self.rate_limit(policy, services, imported),
                _ => self.authorization(policy, services, imported),
            }
        }
    }

    /// AuthorizationPolicy: a target, and authentications that are all required.
    fn authorization(&self, mut source: Source, services: &[Service], imported: &mut Imported) {
        let mut spec = std::mem::take(&mut source.spec);
        let id = source.id.clone();
        let before = imported.lost.len();
        let kind = text(&mut spec, "targetRef/kind").unwrap_or_default();
        let name = text(&mut spec, "targetRef/name").unwrap_or_default();
        take(&mut spec, "targetRef");
        let targets = self.targets(&kind, &name, &source);
        if targets.is_empty() {
            let why = format!("the {kind} {name} is not among the objects");
            imported.lose(&id, "spec.targetRef", &why, "give it, too");
        }
        let mut conditions = Vec::new();
        for (number, mut reference) in list(&mut spec, "requiredAuthenticationRefs")
            .into_iter()
            .enumerate()
        {
            let at = format!("spec.requiredAuthenticationRefs[{number}]");
            let kind = text(&mut reference, "kind").unwrap_or_default();
            let name = text(&mut reference, "name").unwrap_or_default();
            let namespace = text(&mut reference, "namespace").or_else(|| source.namespace.clone());
            take(&mut reference, "group");
            lose_rest(imported, &id, &at, &reference, POLICY);
            match self.authentication(&kind, &name, namespace.as_deref()) {
                Ok(condition) => conditions.push(condition),
                Err(why) => imported.lose(&id, &at, &why, POLICY),
            }
        }
        lose_rest(imported, &id, "spec", &spec, POLICY);
        if imported.lost.len() == before {
            make(
                (&id, &source.name),
                &targets,
                &conditions,
                services,
                imported,
            );
        }
    }

    /// HTTPLocalRateLimitPolicy, of which the total has a counterpart: a RateLimit counts for all callers together.
    fn rate_limit(&self, mut source: Source, services: &[Service], imported: &mut Imported) {
        let mut spec = std::mem::take(&mut source.spec);
        let id = source.id.clone();
        let kind = text(&mut spec, "targetRef/kind").unwrap_or_default();
        let name = text(&mut spec, "targetRef/name").unwrap_or_default();
        take(&mut spec, "targetRef");
        let count = take(&mut spec, "total/requestsPerSecond");
        lose_rest(
            imported,
            &id,
            "spec",
            &spec,
            "limit by caller in an HTTPFilter of a Gateway's route: `rateLimit.by` of docs/manifests/routes.md",
        );
        let Some(count) = count else {
            return;
        };
        let targets = self.targets(&kind, &name, &source);
        if targets.is_empty() {
            let why = format!("the {kind} {name} is not among the objects");
            imported.lose(&id, "spec.targetRef", &why, "give it, too");
        }
        for target in &targets {
            let found = target.server.services(services);
            if found.is_empty() {
                target.server.no_service(&id, imported);
            }
            for (service, ports) in &found {
                let reference =
                    |port: &u64| json!({ "kind": "Service", "name": service.name, "port": port });
                let refs: Vec<Value> = ports.iter().map(reference).collect();
                let spec = json!({
                    "targetRefs": refs, "requests": { "count": count, "per": "1s" },
                });
                let name = match found.as_slice() {
                    [_] => source.name.clone(),
                    _ => format!("{}-{}", source.name, service.name),
                };
                imported.make(&id, object("RateLimit", source.namespace(), &name, spec));
            }
        }
    }

    fn targets(&self, kind: &str, name: &str, source: &Source) -> Vec<Target<'_>> {
        let here = |namespace: &Option<String>| *namespace == source.namespace;
        let servers = self.servers.iter().filter(|s| here(&s.namespace));
        match kind {
            "Server" => servers
                .filter(|s| s.name == name)
                .map(Server::whole)
                .collect(),
            "Namespace" => servers.map(Server::whole).collect(),
            "HTTPRoute" => {
                let route = self
                    .routes
                    .iter()
                    .find(|r| here(&r.namespace) && r.name == name);
                let Some(route) = route else {
                    return Vec::new();
                };
                let parents = route.spec["parentRefs"].as_array().into_iter().flatten();
                let names: Vec<&str> = parents.filter_map(|p| p["name"].as_str()).collect();
                let of_route = |server| Target {
                    server,
                    requests: requests(route),
                };
                servers
                    .filter(|s| names.contains(&s.name.as_str()))
                    .map(of_route)
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The condition that an authentication is.
    fn authentication(
        &self,
        kind: &str,
        name: &str,
        namespace: Option<&str>,
    ) -> Result<String, String> {
        if kind == "ServiceAccount" {
            return Ok(account(name, namespace));
        }
        let found = self.authentications.iter();
        let mut found =
            found.filter(|a| a.kind == kind && a.name == name && a.namespace() == namespace);
        let Some(source) = found.next() else {
            return Err(format!("the {kind} {name} is not among the objects"));
        };
        let mut spec = source.spec.clone();
        let condition = match kind {
            "MeshTLSAuthentication" => identities(&mut spec, source.namespace()),
            _ => networks(&mut spec),
        };
        condition.ok_or_else(|| format!("{}: no caller is named that can be read", source.id))
    }

    /// ServerAuthorization: one of clients is enough.
    fn server_authorization(
        &self,
        mut source: Source,
        services: &[Service],
        imported: &mut Imported,
    ) {
        let mut spec = std::mem::take(&mut source.spec);
        let id = source.id.clone();
        let before = imported.lost.len();
        let name = text(&mut spec, "server/name");
        let selector = labels(&take(&mut spec, "server/selector/matchLabels").unwrap_or_default());
        take(&mut spec, "server/selector");
        let is_meant = |server: &&Server| {
            server.namespace == source.namespace
                && match &name {
                    Some(name) => server.name == *name,
                    None => selector
                        .iter()
                        .all(|(label, value)| server.own_labels.get(label) == Some(value)),
                }
        };
        let targets: Vec<Target<'_>> = self
            .servers
            .iter()
            .filter(is_meant)
            .map(Server::whole)
            .collect();
        if targets.is_empty() {
            imported.lose(
                &id,
                "spec.server",
                "no Server that it is about is among the objects",
                "give them, too",
            );
        }
        let mut conditions = Vec::new();
        let mut client = take(&mut spec, "client").unwrap_or_else(|| json!({}));
        conditions.extend(networks(&mut client));
        if take(&mut client, "unauthenticated") != Some(Value::Bool(true)) {
            let mut tls = take(&mut client, "meshTLS").unwrap_or_else(|| json!({}));
            if take(&mut tls, "unauthenticatedTLS") != Some(Value::Bool(true)) {
                let accounts: Vec<Value> = list(&mut tls, "serviceAccounts")
                    .into_iter()
                    .map(|mut a| {
                        a["kind"] = "ServiceAccount".into();
                        a
                    })
                    .collect();
                if !accounts.is_empty() {
                    tls["identityRefs"] = accounts.into();
                }
                match identities(&mut tls, source.namespace()) {
                    Some(condition) => conditions.push(condition),
                    None => imported.lose(
                        &id,
                        "spec.client.meshTLS",
                        "no caller is named that can be read",
                        POLICY,
                    ),
                }
            }
            lose_rest(imported, &id, "spec.client.meshTLS", &tls, POLICY);
        }
        lose_rest(imported, &id, "spec.client", &client, POLICY);
        lose_rest(imported, &id, "spec", &spec, POLICY);
        if imported.lost.len() == before {
            make(
                (&id, &source.name),
                &targets,
                &conditions,
                services,
                imported,
            );
        }
    }
}

/// The requests that a route matches; none: all of them.
fn requests(route: &Source) -> Vec<Map<String, Value>> {
    let rules = route.spec["rules"].as_array().into_iter().flatten();
    let matches = rules.flat_map(|rule| rule["matches"].as_array().into_iter().flatten());
    let request = |one: &Value| {
        let mut to = Map::new();
        if let Some(path) = one.get("path") {
            let kind = path["type"].as_str().unwrap_or("PathPrefix");
            let value = path["value"].as_str().unwrap_or("/");
            to.insert("paths".into(), json!([{ "type": kind, "value": value }]));
        }
        if let Some(method) = one.get("method") {
            to.insert("methods".into(), json!([method]));
        }
        if let Some(headers) = one.get("headers") {
            to.insert("headers".into(), headers.clone());
        }
        to
    };
    matches.map(request).collect()
}

/// Makes a policy of Tulle for each Service that a target of theirs, `(id, name)`, is about.
fn make(
    (id, name): (&str, &str),
    targets: &[Target<'_>],
    conditions: &[String],
    services: &[Service],
    imported: &mut Imported,
) {
    for target in targets {
        let found = target.server.services(services);
        if found.is_empty() {
            target.server.no_service(id, imported);
        }
        for (service, ports) in &found {
            let everything = [Map::new()];
            let requests = if target.requests.is_empty() {
                &everything[..]
            } else {
                &target.requests
            };
            let rule = |request: &Map<String, Value>| {
                let mut to = request.clone();
                to.insert("ports".into(), json!(ports));
                if !conditions.is_empty() {
                    to.insert("when".into(), conditions.join(" && ").into());
                }
                json!({ "to": to })
            };
            let rules: Vec<Value> = requests.iter().map(rule).collect();
            let ours = json!({
                "targetRefs": [{ "kind": "Service", "name": service.name }], "action": "Allow", "rules": rules,
            });
            let mut parts = vec![name];
            if targets.len() > 1 {
                parts.push(&target.server.name);
            }
            if found.len() > 1 {
                parts.push(&service.name);
            }
            let name = parts.join("-");
            let namespace = target.server.namespace.as_deref();
            let made = imported.make(id, object("AuthorizationPolicy", namespace, &name, ours));
            made.notes
                .push("it has an effect where the Mesh says `permissiveMode: false`".into());
        }
    }
}

impl Server {
    fn read(mut source: Source) -> Self {
        let mut spec = std::mem::take(&mut source.spec);
        let own_labels = labels(&source.labels());
        Self {
            id: source.id.clone(),
            labels: labels(&take(&mut spec, "podSelector/matchLabels").unwrap_or_default()),
            port: take(&mut spec, "port").unwrap_or_default(),
            access: text(&mut spec, "accessPolicy"),
            namespace: source.namespace,
            name: source.name,
            own_labels,
        }
    }

    /// All requests to it.
    fn whole(&self) -> Target<'_> {
        Target {
            server: self,
            requests: Vec::new(),
        }
    }

    /// Services that have only its pods, with their ports that lead to its port.
    fn services<'s>(&self, services: &'s [Service]) -> Vec<(&'s Service, Vec<u64>)> {
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

    fn no_service(&self, id: &str, imported: &mut Imported) {
        let why = format!(
            "{}: no Service among the objects has only its pods and leads to its port, and a policy is about Services",
            self.id
        );
        imported.lose(
            id,
            "spec",
            &why,
            "give the Services, too: kubectl get services -A -o yaml",
        );
    }

    /// Lets in those whom a Server lets in without any policy.
    fn by_itself(&self, services: &[Service], imported: &mut Imported) {
        let conditions = match self.access.as_deref().unwrap_or("deny") {
            // So it is here with `permissiveMode: false`.
            "deny" => return,
            "all-authenticated" => vec![ANYBODY_KNOWN.to_owned()],
            "all-unauthenticated" => Vec::new(),
            "audit" => {
                let why = "everybody is let in, and the log says whom a policy would not";
                let instead = "apply policies with `mode: Audit` before `permissiveMode: false`";
                return imported.lose(&self.id, "spec.accessPolicy", why, instead);
            }
            other => {
                let why = format!("{other} goes by the networks of the cluster");
                let instead = "write an AuthorizationPolicy with `networks`";
                return imported.lose(&self.id, "spec.accessPolicy", &why, instead);
            }
        };
        let target = [self.whole()];
        make(
            (&self.id, &self.name),
            &target,
            &conditions,
            services,
            imported,
        );
    }
}
