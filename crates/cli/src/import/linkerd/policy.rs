//! Policies about callers. Theirs are about Servers, which choose pods and a port; ours are about Services. A policy
//! of which a part has no counterpart is not made at all: without the part it would be another policy.

use super::authentication::{ANYBODY_KNOWN, Callers, identities, networks};
use super::target::{Route, Server, Target, lose_broken};
use super::unused;
use crate::import::POLICY;
use crate::import::cel::account;
use crate::import::fields::{list, lose_rest, take, text, text_map};
use crate::import::imported::{Imported, object};
use crate::import::services::Service;
use crate::import::source::Source;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The objects that belong together, until all of them have been read.
#[derive(Default)]
pub(super) struct Policies {
    servers: Vec<Server>,
    routes: Vec<Route>,
    authentications: Vec<Source>,
    policies: Vec<Source>,
}

impl Policies {
    pub(super) fn add(&mut self, source: Source, imported: &mut Imported) {
        match source.kind.as_str() {
            "HTTPRoute" | "GRPCRoute" => self.routes.push(Route::read(source, imported)),
            "MeshTLSAuthentication" | "NetworkAuthentication" => self.authentications.push(source),
            "Server" => self.servers.push(Server::read(source, imported)),
            _ => self.policies.push(source),
        }
    }

    pub(super) fn finish(mut self, services: &[Service], imported: &mut Imported) {
        let about = (self.servers.as_slice(), self.routes.as_slice());
        unused::lose(&self.policies, &self.authentications, about, imported);
        for server in &self.servers {
            by_itself(&self.whole(server), services, imported);
        }
        let mut open = BTreeSet::new();
        for policy in std::mem::take(&mut self.policies) {
            match policy.kind.as_str() {
                "ServerAuthorization" => {
                    open.extend(self.server_authorization(policy, services, imported));
                }
                "HTTPLocalRateLimitPolicy" => self.rate_limit(policy, services, imported),
                _ => open.extend(self.authorization(policy, services, imported)),
            }
        }
        // A policy that is made has a note that it needs `permissiveMode: false`. Such a Server has none.
        for server in &self.servers {
            if server.is_whole && server.access == "deny" && !open.contains(&server.id) {
                imported.lose(
                    &server.id,
                    "spec.accessPolicy",
                    "it refuses every caller, and becomes no object",
                    "set `permissiveMode: false` of the Mesh, or write an AuthorizationPolicy with `action: Deny` for its port: docs/manifests/access.md",
                );
            }
        }
    }

    /// AuthorizationPolicy: a target, and authentications that are all required. Returns the Servers that it opens.
    fn authorization(
        &self,
        mut source: Source,
        services: &[Service],
        imported: &mut Imported,
    ) -> Vec<String> {
        let mut spec = std::mem::take(&mut source.spec);
        let id = source.id.clone();
        let before = imported.lost.len();
        let targets = self.targets(&source, &mut spec, imported);
        let mut callers = Callers::default();
        if !spec["requiredAuthenticationRefs"].is_array() {
            let why = "it is no list; only an empty list lets in everybody";
            imported.lose(&id, "spec.requiredAuthenticationRefs", why, POLICY);
        }
        let required = list(&mut spec, "requiredAuthenticationRefs");
        for (number, mut reference) in required.into_iter().enumerate() {
            let at = format!("spec.requiredAuthenticationRefs[{number}]");
            let kind = text(&mut reference, "kind").unwrap_or_default();
            let name = text(&mut reference, "name").unwrap_or_default();
            let namespace = text(&mut reference, "namespace").or_else(|| source.namespace.clone());
            take(&mut reference, "group");
            lose_rest(imported, &id, &at, &reference, POLICY);
            if let Err(why) = self.authentication(&kind, &name, namespace.as_deref(), &mut callers)
            {
                imported.lose(&id, &at, &why, POLICY);
            }
        }
        lose_rest(imported, &id, "spec", &spec, POLICY);
        if imported.lost.len() > before {
            return Vec::new();
        }
        make((&id, &source.name), &targets, &callers, services, imported)
    }

    /// HTTPLocalRateLimitPolicy, of which the total has a counterpart: a RateLimit counts for all callers together.
    fn rate_limit(&self, mut source: Source, services: &[Service], imported: &mut Imported) {
        let mut spec = std::mem::take(&mut source.spec);
        let id = source.id.clone();
        let before = imported.lost.len();
        let targets = self.targets(&source, &mut spec, imported);
        let is_known = imported.lost.len() == before;
        let count = take(&mut spec, "total/requestsPerSecond");
        lose_rest(
            imported,
            &id,
            "spec",
            &spec,
            "limit by caller in an HTTPFilter of a Gateway's route: `rateLimit.by` of docs/manifests/routes.md",
        );
        let Some(count) = count.filter(|_| is_known) else {
            return;
        };
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

    /// Finds what a policy is about.
    fn targets(
        &self,
        source: &Source,
        spec: &mut Value,
        imported: &mut Imported,
    ) -> Vec<Target<'_>> {
        let group = text(spec, "targetRef/group");
        let kind = text(spec, "targetRef/kind").unwrap_or_default();
        let name = text(spec, "targetRef/name").unwrap_or_default();
        take(spec, "targetRef");
        let here = |namespace: &Option<String>| *namespace == source.namespace;
        let servers = self.servers.iter().filter(|s| here(&s.namespace));
        let targets: Vec<Target<'_>> = match kind.as_str() {
            "Server" => servers
                .filter(|s| s.name == name)
                .map(|server| self.whole(server))
                .collect(),
            "Namespace" => servers.map(|server| self.whole(server)).collect(),
            "HTTPRoute" | "GRPCRoute" => {
                let is_named = |r: &&Route| r.is_named(group.as_deref(), &kind, &name);
                let mut routes = self.routes.iter().filter(is_named);
                let route = routes.find(|r| here(&r.namespace));
                servers
                    .filter(|s| route.is_some_and(|r| r.servers.contains(&s.name)))
                    .map(|server| Target {
                        server,
                        routes: route.into_iter().collect(),
                    })
                    .collect()
            }
            _ => Vec::new(),
        };
        if targets.is_empty() {
            let why = format!("the {kind} {name} is not among the objects");
            imported.lose(&source.id, "spec.targetRef", &why, "give it, too");
        }
        lose_broken(&source.id, "spec.targetRef", &targets, imported);
        if kind == "HTTPRoute" {
            for other in self.better(&targets) {
                let why = format!(
                    "{other} may be the better match of some requests; then its policies alone count, and this one would let callers send them here"
                );
                let instead = "make the matches of the two differ, or write the policy anew with `to.when`: docs/manifests/access.md";
                imported.lose(&source.id, "spec.targetRef", &why, instead);
            }
        }
        targets
    }

    /// All requests to a Server. One with HTTPRoutes answers none that no route of it matches.
    fn whole<'s>(&'s self, server: &'s Server) -> Target<'s> {
        let routes = self.routes.iter().filter(|route| route.is_of(server));
        Target {
            server,
            routes: routes.collect(),
        }
    }

    /// HTTPRoutes of the same Servers that may be better matches than those of targets.
    fn better(&self, targets: &[Target<'_>]) -> BTreeSet<&str> {
        let mut better = BTreeSet::new();
        for target in targets {
            let others = self.routes.iter().filter(|r| r.is_of(target.server));
            // A namesake of the other group is another one.
            let is_it = |other: &&Route| target.routes.iter().any(|r| std::ptr::eq(*r, *other));
            for other in others.filter(|other| !is_it(other)) {
                if target.routes.iter().any(|route| route.may_lose(other)) {
                    better.insert(other.id.as_str());
                }
            }
        }
        better
    }

    /// Adds what an authentication demands of callers.
    fn authentication(
        &self,
        kind: &str,
        name: &str,
        namespace: Option<&str>,
        callers: &mut Callers,
    ) -> Result<(), String> {
        if kind == "ServiceAccount" {
            callers.is_known = true;
            callers.identities.push(account(name, namespace));
            return Ok(());
        }
        let found = self.authentications.iter();
        let mut found =
            found.filter(|a| a.kind == kind && a.name == name && a.namespace() == namespace);
        let Some(source) = found.next() else {
            return Err(format!("the {kind} {name} is not among the objects"));
        };
        let mut spec = source.spec.clone();
        let nobody = || format!("{}: no caller is named that can be read", source.id);
        if kind == "MeshTLSAuthentication" {
            callers.is_known = true;
            let condition = identities(&mut spec, source.namespace()).ok_or_else(nobody)?;
            callers.identities.push(condition);
        } else {
            let networks = networks(&mut spec).map_err(|why| format!("{}: {why}", source.id))?;
            callers.networks.push(networks.ok_or_else(nobody)?);
        }
        match spec.as_object().is_some_and(|left| !left.is_empty()) {
            true => Err(format!("{}: `{spec}` has no counterpart", source.id)),
            false => Ok(()),
        }
    }

    /// ServerAuthorization: one of clients is enough. Returns the Servers that it opens.
    fn server_authorization(
        &self,
        mut source: Source,
        services: &[Service],
        imported: &mut Imported,
    ) -> Vec<String> {
        let mut spec = std::mem::take(&mut source.spec);
        let id = source.id.clone();
        let before = imported.lost.len();
        let name = text(&mut spec, "server/name");
        let selector = text_map(&mut spec, "server/selector/matchLabels");
        if !list(&mut spec, "server/selector/matchExpressions").is_empty() {
            imported.lose(
                &id,
                "spec.server.selector.matchExpressions",
                "Servers are chosen by labels or by name alone, and without it the policy would be about more of them",
                "name the Servers, each in a ServerAuthorization of its own",
            );
        }
        let left = take(&mut spec, "server/selector");
        if name.is_none() && !left.as_ref().is_some_and(Value::is_object) {
            let why = "it chooses no Servers";
            imported.lose(&id, "spec.server", why, "name the Server");
        }
        let left = left.unwrap_or_default();
        lose_rest(imported, &id, "spec.server.selector", &left, POLICY);
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
            .map(|server| self.whole(server))
            .collect();
        if targets.is_empty() {
            imported.lose(
                &id,
                "spec.server",
                "no Server that it is about is among the objects",
                "give them, too",
            );
        }
        lose_broken(&id, "spec.server", &targets, imported);
        let mut callers = Callers::default();
        let mut client = take(&mut spec, "client").unwrap_or_else(|| json!({}));
        match networks(&mut client) {
            Ok(networks) => callers.networks.extend(networks),
            Err(why) => imported.lose(&id, "spec.client.networks", &why, POLICY),
        }
        if take(&mut client, "unauthenticated") != Some(Value::Bool(true)) {
            callers.is_known = true;
            let mut tls = take(&mut client, "meshTLS").unwrap_or_else(|| json!({}));
            if take(&mut tls, "unauthenticatedTLS") != Some(Value::Bool(true)) {
                let mut accounts = list(&mut tls, "serviceAccounts");
                for (number, account) in accounts.iter_mut().enumerate() {
                    match account.as_object_mut() {
                        Some(fields) => drop(fields.insert("kind".into(), "ServiceAccount".into())),
                        None => imported.lose(
                            &id,
                            &format!("spec.client.meshTLS.serviceAccounts[{number}]"),
                            &format!("`{account}` is no mapping with the name of a ServiceAccount"),
                            "write `name`, and `namespace` of one of another namespace",
                        ),
                    }
                }
                if !accounts.is_empty() {
                    tls["identityRefs"] = accounts.into();
                }
                match identities(&mut tls, source.namespace()) {
                    Some(condition) => callers.identities.push(condition),
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
        if imported.lost.len() > before {
            return Vec::new();
        }
        make((&id, &source.name), &targets, &callers, services, imported)
    }
}

/// Makes a policy of Tulle for each Service that a target of theirs, `(id, name)`, is about. Returns the Servers that it
/// made one for.
fn make(
    (id, name): (&str, &str),
    targets: &[Target<'_>],
    callers: &Callers,
    services: &[Service],
    imported: &mut Imported,
) -> Vec<String> {
    let mut open = Vec::new();
    for target in targets {
        let found = target.server.services(services);
        match found.is_empty() {
            true => target.server.no_service(id, imported),
            false => open.push(target.server.id.clone()),
        }
        for (service, ports) in &found {
            let everything = Map::new();
            let mut requests = target.requests();
            if requests.is_empty() {
                requests.push(&everything);
            }
            let rule = |request: &&Map<String, Value>| {
                let mut to = Map::clone(request);
                to.insert("ports".into(), json!(ports));
                callers.rule(to)
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
    open
}

/// Makes a policy for those whom a Server lets in without any.
fn by_itself(target: &Target<'_>, services: &[Service], imported: &mut Imported) {
    let server = target.server;
    if !server.is_whole {
        return;
    }
    let callers = match server.access.as_str() {
        // So it is here with `permissiveMode: false`, which is said where no policy opens it.
        "deny" => return,
        "all-authenticated" => Callers::known(ANYBODY_KNOWN.to_owned()),
        "all-unauthenticated" => Callers::default(),
        "audit" => {
            let why = "everybody is let in, and the log says whom a policy would not";
            let instead = "apply policies with `mode: Audit` before `permissiveMode: false`";
            return imported.lose(&server.id, "spec.accessPolicy", why, instead);
        }
        other => {
            let why = format!("{other} goes by the networks of the cluster");
            let instead = "write an AuthorizationPolicy with `networks`";
            return imported.lose(&server.id, "spec.accessPolicy", &why, instead);
        }
    };
    let before = imported.lost.len();
    let targets = std::slice::from_ref(target);
    lose_broken(&server.id, "spec.accessPolicy", targets, imported);
    if imported.lost.len() > before {
        return;
    }
    let names = (server.id.as_str(), server.name.as_str());
    make(names, targets, &callers, services, imported);
}
