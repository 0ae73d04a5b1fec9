//! Objects as they were given, as far as the index keeps them: what a spec says, without labels and annotations.

use super::Inputs;
use super::inputs::Objects;
use tulle_model::manifest::{Manifest, Metadata, Object};

const TULLE: &str = "tulle.dev/v1alpha1";
const GATEWAY: &str = "gateway.networking.k8s.io/v1";
const ROUTE: &str = "gateway.networking.k8s.io/v1alpha2";
const SPECS: &str = "specs.smi-spec.io/v1alpha4";
const ACCESS: &str = "access.smi-spec.io/v1alpha3";
const SPLIT: &str = "split.smi-spec.io/v1alpha4";

impl Inputs {
    /// Returns an object by kind and name.
    pub(crate) fn object(&self, kind: &str, name: &str) -> Option<Object> {
        let of = (kind, name);
        Some(match kind {
            "Mesh" => Object::Mesh(manifest(TULLE, kind, name, self.mesh.clone()?)),
            "Workload" => {
                let spec = self.workloads.get(name)?.clone();
                Object::Workload(manifest(TULLE, kind, name, spec))
            }
            "Secret" => Object::Secret(self.secrets.get(name)?.clone()),
            "ConfigMap" => Object::ConfigMap(self.config_maps.get(name)?.clone()),
            "Gateway" => Object::Gateway(found(GATEWAY, of, &self.gateways)?),
            "HTTPRoute" => Object::HttpRoute(found(GATEWAY, of, &self.routes)?),
            "GRPCRoute" => Object::GrpcRoute(found(GATEWAY, of, &self.grpc_routes)?),
            "TLSRoute" => Object::TlsRoute(found(ROUTE, of, &self.tls_routes)?),
            "TCPRoute" => Object::TcpRoute(found(ROUTE, of, &self.tcp_routes)?),
            "TrafficTarget" => Object::TrafficTarget(found(ACCESS, of, &self.targets)?),
            "HTTPRouteGroup" => Object::HttpRouteGroup(found(SPECS, of, &self.groups)?),
            "TCPRoute.specs.smi-spec.io" => {
                let of = ("TCPRoute", name);
                Object::SmiTcpRoute(found(SPECS, of, &self.smi_tcp_routes)?)
            }
            "TrafficSplit" => Object::TrafficSplit(found(SPLIT, of, &self.splits)?),
            "TrafficPolicy" => Object::TrafficPolicy(found(TULLE, of, &self.traffic)?),
            "RateLimit" => Object::RateLimit(found(TULLE, of, &self.rate_limits)?),
            "HTTPFilter" => Object::HttpFilter(found(TULLE, of, &self.filters)?),
            "AuthorizationPolicy" => {
                Object::AuthorizationPolicy(found(TULLE, of, &self.authorization)?)
            }
            "Authentication" => Object::Authentication(found(TULLE, of, &self.authentication)?),
            "Plugin" => Object::Plugin(found(TULLE, of, &self.plugins)?),
            "IngressBackend" => Object::IngressBackend(found(TULLE, of, &self.ingress_backends)?),
            "AccessControl" => Object::AccessControl(found(TULLE, of, &self.access_controls)?),
            "Egress" => Object::Egress(found(TULLE, of, &self.egress)?),
            _ => return None,
        })
    }

    /// Lists kind and name of every object.
    pub(crate) fn names(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::with_capacity(self.count());
        all.extend(self.mesh.iter().map(|_| ("Mesh", "mesh".to_owned())));
        all.extend(self.workloads.keys().map(|name| ("Workload", name.clone())));
        add(&mut all, "Gateway", &self.gateways);
        add(&mut all, "HTTPRoute", &self.routes);
        add(&mut all, "GRPCRoute", &self.grpc_routes);
        add(&mut all, "TLSRoute", &self.tls_routes);
        add(&mut all, "TCPRoute", &self.tcp_routes);
        add(&mut all, "TrafficTarget", &self.targets);
        add(&mut all, "HTTPRouteGroup", &self.groups);
        add(&mut all, "TCPRoute.specs.smi-spec.io", &self.smi_tcp_routes);
        add(&mut all, "TrafficSplit", &self.splits);
        add(&mut all, "TrafficPolicy", &self.traffic);
        add(&mut all, "RateLimit", &self.rate_limits);
        add(&mut all, "HTTPFilter", &self.filters);
        add(&mut all, "AuthorizationPolicy", &self.authorization);
        add(&mut all, "Authentication", &self.authentication);
        add(&mut all, "Plugin", &self.plugins);
        add(&mut all, "IngressBackend", &self.ingress_backends);
        add(&mut all, "AccessControl", &self.access_controls);
        add(&mut all, "Egress", &self.egress);
        add(&mut all, "Secret", &self.secrets);
        add(&mut all, "ConfigMap", &self.config_maps);
        all
    }
}

fn add<T>(all: &mut Vec<(&'static str, String)>, kind: &'static str, objects: &Objects<T>) {
    all.extend(objects.keys().map(|name| (kind, name.to_string())));
}

fn found<S: Clone>(
    version: &str,
    (kind, name): (&str, &str),
    objects: &Objects<S>,
) -> Option<Manifest<S>> {
    Some(manifest(version, kind, name, objects.get(name)?.clone()))
}

fn manifest<S>(version: &str, kind: &str, name: &str, spec: S) -> Manifest<S> {
    Manifest {
        api_version: version.to_owned(),
        kind: kind.to_owned(),
        metadata: Metadata {
            name: name.to_owned(),
            ..Metadata::default()
        },
        spec,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Edit, Index};
    use tulle_model::identity::TrustDomain;
    use tulle_model::manifest::Object;

    #[test]
    fn an_object_is_found_as_it_was_given() {
        let given = serde_json::json!({
            "apiVersion": "access.smi-spec.io/v1alpha3",
            "kind": "TrafficTarget",
            "metadata": { "name": "t" },
            "spec": {
                "destination": { "kind": "ServiceAccount", "name": "b" },
                "sources": [{ "kind": "ServiceAccount", "name": "a" }],
            },
        });
        let object = Object::from_json(&given.to_string()).unwrap();
        let mut index = Index::new(TrustDomain::default());
        index.apply([Edit::Put(Box::new(object.clone()))]);
        let inputs = index.inputs();
        assert_eq!(inputs.object("TrafficTarget", "t"), Some(object));
        assert_eq!(inputs.object("TrafficTarget", "u"), None);
        assert_eq!(inputs.names(), [("TrafficTarget", "t".to_owned())]);
    }
}
