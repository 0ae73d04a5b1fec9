//! Names with a namespace: `<name>.<namespace>`.
//!
//! A cluster has many namespaces, a host has one. An object of a cluster is read like any other and
//! then gets names of this form, its own and those it refers to. So everything after it can ignore
//! namespaces. A name of a namespace has no dot, so no two objects get the same name.

use super::Object;
use super::types::*;

/// The namespace of objects that name none.
const DEFAULT: &str = "default";

impl Object {
    /// Gives the object and all it refers to names with a namespace. Once only.
    pub fn qualify(&mut self) {
        let namespace = self.metadata().namespace.clone();
        let in_ = Namespace(namespace.as_deref().unwrap_or(DEFAULT).to_owned());
        match self {
            // There is one, and nobody refers to it.
            Self::Mesh(_) => {}
            // A cluster has pods instead.
            Self::Workload(m) => in_.own(&mut m.metadata),
            Self::Secret(m) => in_.own(&mut m.metadata),
            Self::ConfigMap(m) => in_.own(&mut m.metadata),
            Self::Gateway(m) => {
                in_.own(&mut m.metadata);
                for listener in &mut m.spec.listeners {
                    in_.listener(listener);
                }
            }
            Self::HttpRoute(m) => {
                in_.own(&mut m.metadata);
                in_.parents(&mut m.spec.parent_refs);
                for rule in &mut m.spec.rules {
                    in_.filters(&mut rule.filters);
                    in_.backends(&mut rule.backend_refs);
                }
            }
            Self::GrpcRoute(m) => {
                in_.own(&mut m.metadata);
                in_.parents(&mut m.spec.parent_refs);
                for rule in &mut m.spec.rules {
                    in_.filters(&mut rule.filters);
                    in_.backends(&mut rule.backend_refs);
                }
            }
            Self::TlsRoute(m) => {
                in_.own(&mut m.metadata);
                in_.parents(&mut m.spec.parent_refs);
                for rule in &mut m.spec.rules {
                    in_.backends(&mut rule.backend_refs);
                }
            }
            Self::TcpRoute(m) => {
                in_.own(&mut m.metadata);
                in_.parents(&mut m.spec.parent_refs);
                for rule in &mut m.spec.rules {
                    in_.backends(&mut rule.backend_refs);
                }
            }
            Self::TrafficTarget(m) => {
                in_.own(&mut m.metadata);
                in_.identity(&mut m.spec.destination);
                for source in &mut m.spec.sources {
                    in_.identity(source);
                }
                in_.rules(&mut m.spec.rules);
            }
            Self::HttpRouteGroup(m) => in_.own(&mut m.metadata),
            Self::SmiTcpRoute(m) => in_.own(&mut m.metadata),
            Self::TrafficSplit(m) => {
                in_.own(&mut m.metadata);
                in_.name(&mut m.spec.service, &mut None);
                for matched in &mut m.spec.matches {
                    in_.name(&mut matched.name, &mut None);
                }
                for backend in &mut m.spec.backends {
                    in_.name(&mut backend.service, &mut None);
                }
            }
            Self::TrafficPolicy(m) => {
                in_.own(&mut m.metadata);
                in_.targets(&mut m.spec.target_refs);
            }
            Self::RateLimit(m) => {
                in_.own(&mut m.metadata);
                in_.targets(&mut m.spec.target_refs);
            }
            Self::HttpFilter(m) => {
                in_.own(&mut m.metadata);
                in_.jwt(&mut m.spec.jwt);
                in_.external_auth(&mut m.spec.external_auth);
                in_.backends(m.spec.mirror.as_mut().map(|c| &mut c.backend_ref));
            }
            Self::AuthorizationPolicy(m) => {
                in_.own(&mut m.metadata);
                in_.targets(&mut m.spec.target_refs);
                for from in m.spec.rules.iter_mut().filter_map(|r| r.from.as_mut()) {
                    for account in &mut from.service_accounts {
                        in_.name(account, &mut None);
                    }
                }
            }
            Self::Authentication(m) => {
                in_.own(&mut m.metadata);
                in_.targets(&mut m.spec.target_refs);
                in_.jwt(&mut m.spec.jwt);
                in_.external_auth(&mut m.spec.external_auth);
            }
            Self::Plugin(m) => {
                in_.own(&mut m.metadata);
                in_.objects(m.spec.source_ref.as_mut());
                in_.targets(&mut m.spec.target_refs);
                for service in &mut m.spec.services {
                    in_.name(service, &mut None);
                }
            }
            Self::IngressBackend(m) => {
                in_.own(&mut m.metadata);
                in_.access(&mut m.spec);
            }
            Self::AccessControl(m) => {
                in_.own(&mut m.metadata);
                in_.access(&mut m.spec);
            }
            Self::Egress(m) => {
                in_.own(&mut m.metadata);
                for source in &mut m.spec.sources {
                    in_.identity(source);
                }
                in_.rules(&mut m.spec.matches);
                if let Some(tls) = &mut m.spec.tls {
                    in_.objects(tls.ca_certificate_ref.as_mut());
                }
                if let Some(gateway) = &mut m.spec.gateway {
                    in_.name(&mut gateway.service, &mut None);
                }
            }
        }
    }
}

/// Where the object is.
struct Namespace(String);

impl Namespace {
    /// `given` is the namespace in the reference, if it names one.
    fn name(&self, name: &mut String, given: &mut Option<String>) {
        let namespace = given.take();
        *name = format!("{name}.{}", namespace.as_deref().unwrap_or(&self.0));
    }

    fn own(&self, metadata: &mut Metadata) {
        metadata.name = format!("{}.{}", metadata.name, self.0);
    }

    fn parents(&self, parents: &mut [ParentRef]) {
        for parent in parents {
            self.name(&mut parent.name, &mut parent.namespace);
        }
    }

    fn backends<'a>(&self, backends: impl IntoIterator<Item = &'a mut BackendRef>) {
        for backend in backends {
            self.name(&mut backend.name, &mut backend.namespace);
            self.filters(&mut backend.filters);
        }
    }

    fn filters(&self, filters: &mut [RouteFilter]) {
        for filter in filters {
            self.objects(filter.extension_ref.as_mut());
            let mirror = filter.request_mirror.as_mut();
            self.backends(mirror.map(|m| &mut m.backend_ref));
        }
    }

    fn objects<'a>(&self, objects: impl IntoIterator<Item = &'a mut ObjectRef>) {
        for object in objects {
            self.name(&mut object.name, &mut object.namespace);
        }
    }

    fn targets(&self, targets: &mut [TargetRef]) {
        for target in targets {
            self.name(&mut target.name, &mut target.namespace);
        }
    }

    fn identity(&self, identity: &mut IdentityRef) {
        self.name(&mut identity.name, &mut identity.namespace);
    }

    fn rules(&self, rules: &mut [TrafficTargetRule]) {
        for rule in rules {
            self.name(&mut rule.name, &mut None);
        }
    }

    fn access(&self, access: &mut AccessSpec) {
        for backend in &mut access.backends {
            self.name(&mut backend.name, &mut None);
        }
        for source in &mut access.sources {
            // A principal and a network are no objects.
            if source.kind == "Service" {
                self.name(&mut source.name, &mut source.namespace);
            }
        }
    }

    fn listener(&self, listener: &mut ListenerSpec) {
        let Some(tls) = &mut listener.tls else {
            return;
        };
        self.objects(&mut tls.certificate_refs);
        if let Some(validation) = &mut tls.frontend_validation {
            self.objects(&mut validation.ca_certificate_refs);
        }
    }

    fn jwt(&self, jwt: &mut Option<JwtSpec>) {
        let providers = jwt.iter_mut().flat_map(|j| &mut j.providers);
        self.objects(providers.filter_map(|p| p.jwks_ref.as_mut()));
    }

    fn external_auth(&self, auth: &mut Option<ExternalAuthSpec>) {
        self.backends(auth.as_mut().map(|a| &mut a.backend_ref));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qualified(json: &serde_json::Value) -> serde_json::Value {
        let mut object = Object::from_json(&json.to_string()).unwrap();
        object.qualify();
        serde_json::from_str(&object.to_json()).unwrap()
    }

    #[test]
    fn own_names_and_references() {
        let route = qualified(&serde_json::json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": { "name": "r", "namespace": "shop" },
            "spec": {
                "parentRefs": [{ "name": "edge", "namespace": "infra" }],
                "rules": [{
                    "backendRefs": [
                        { "name": "web", "port": 80 },
                        { "name": "web", "namespace": "old", "port": 80 },
                    ],
                    "filters": [{
                        "type": "RequestMirror",
                        "requestMirror": { "backendRef": { "name": "copy", "port": 80 } },
                    }],
                }],
            },
        }));
        assert_eq!(route["metadata"]["name"], "r.shop");
        let spec = &route["spec"];
        assert_eq!(spec["parentRefs"][0]["name"], "edge.infra");
        let rule = &spec["rules"][0];
        assert_eq!(rule["backendRefs"][0]["name"], "web.shop");
        assert_eq!(rule["backendRefs"][1]["name"], "web.old");
        let mirror = &rule["filters"][0]["requestMirror"]["backendRef"]["name"];
        assert_eq!(mirror, "copy.shop");
    }

    #[test]
    fn identities_are_accounts_of_a_namespace() {
        let target = qualified(&serde_json::json!({
            "apiVersion": "access.smi-spec.io/v1alpha3", "kind": "TrafficTarget",
            "metadata": { "name": "t" },
            "spec": {
                "destination": { "kind": "ServiceAccount", "name": "a" },
                "sources": [{ "kind": "ServiceAccount", "name": "b", "namespace": "x" }],
                "rules": [{ "kind": "HTTPRouteGroup", "name": "g" }],
            },
        }));
        let spec = &target["spec"];
        assert_eq!(target["metadata"]["name"], "t.default");
        assert_eq!(spec["destination"]["name"], "a.default");
        assert_eq!(spec["sources"][0]["name"], "b.x");
        assert_eq!(spec["rules"][0]["name"], "g.default");
    }

    #[test]
    fn what_is_no_object_keeps_its_name() {
        let access = qualified(&serde_json::json!({
            "apiVersion": "tulle.dev/v1alpha1", "kind": "IngressBackend",
            "metadata": { "name": "i", "namespace": "shop" },
            "spec": {
                "backends": [{ "name": "web" }],
                "sources": [
                    { "kind": "IPRange", "name": "10.0.0.0/8" },
                    { "kind": "AuthenticatedPrincipal", "name": "spiffe://x/y" },
                    { "kind": "Service", "name": "front" },
                ],
            },
        }));
        let sources = &access["spec"]["sources"];
        assert_eq!(sources[0]["name"], "10.0.0.0/8");
        assert_eq!(sources[1]["name"], "spiffe://x/y");
        assert_eq!(sources[2]["name"], "front.shop");
    }
}
