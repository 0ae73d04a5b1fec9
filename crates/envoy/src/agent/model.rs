//! The controller's resources, kept as they came, and their translation.

use super::xds::{Xds, source};
use crate::{Certificates, Resources, TranslationOptions, Untranslatable, translate};
use std::collections::BTreeMap;
use tulle_model::bootstrap::{Bootstrap, ListenerKind};
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Resource;
use tulle_proxy::control::client::Sink;
use tulle_proxy::control::publish::Publisher;
use tulle_tls::enrol::Enrolled;

/// The state of one sidecar.
pub(super) struct Model {
    /// Its listeners; the rest of the file is not used.
    bootstrap: Bootstrap,
    /// Checks resources as `tulle-proxy` does, and shows them to operators.
    publisher: Publisher,
    resources: BTreeMap<String, Resource>,
    xds: Xds,
}

impl Model {
    /// Creates a state without resources.
    pub(super) fn new(bootstrap: Bootstrap, publisher: Publisher, xds: Xds) -> Self {
        Self {
            bootstrap,
            publisher,
            resources: BTreeMap::new(),
            xds,
        }
    }

    /// Whether the application's connections come here whatever their destination. Then every
    /// service must be known: Envoy cannot ask when an address is first used.
    pub(super) fn is_transparent(&self) -> bool {
        let mut listeners = self.bootstrap.listeners.iter();
        listeners.any(|l| l.kind == ListenerKind::Outbound)
    }

    /// Translates these resources.
    fn translate(
        &self,
        resources: &BTreeMap<String, Resource>,
    ) -> Result<Resources, Untranslatable> {
        let mut whole = self.bootstrap.clone();
        for resource in resources.values() {
            match resource {
                Resource::Mesh(mesh) => whole.mesh = mesh.clone(),
                Resource::Service(service) => whole.services.push(service.clone()),
                Resource::Inbound(inbound) => whole.inbound = Some(inbound.clone()),
                // Envoy takes addresses from the services, and does not serve gateways.
                Resource::Gateway(_)
                | Resource::Alias(_)
                | Resource::Catalog(_)
                | Resource::Host(_) => {}
                // Rules for this workload are refused with the translation.
                Resource::Egress(egress) => whole.egress = Some(egress.clone()),
            }
        }
        // A listener's service may be unknown yet, or removed: then the listener is left out.
        let Bootstrap {
            services, inbound, ..
        } = &whole;
        let serves = |kind: &ListenerKind| match kind {
            ListenerKind::Upstream { service, port } => services
                .iter()
                .any(|s| s.name == *service && s.ports.iter().any(|p| p.port == *port)),
            ListenerKind::Inbound => inbound.is_some(),
            ListenerKind::InboundPort { port } => inbound
                .as_ref()
                .is_some_and(|i| i.ports.iter().any(|p| p.port == *port)),
            ListenerKind::Outbound | ListenerKind::Gateway { .. } => true,
        };
        let mut listeners = whole.listeners.clone();
        listeners.retain(|l| serves(&l.kind));
        whole.listeners = listeners;
        let options = TranslationOptions::default();
        translate(&whole, Certificates::Secrets(source()), options)
    }
}

impl Sink for Model {
    fn identity(&self) -> &SpiffeId {
        self.publisher.identity()
    }

    fn set_identity(&mut self, enrolled: &Enrolled) {
        Sink::set_identity(&mut self.publisher, enrolled);
        self.xds.set_secrets(enrolled.to_pem());
    }

    fn update(&mut self, resources: &[(String, u64, Resource)], removed: &[String]) -> Vec<String> {
        let mut next = self.resources.clone();
        for (name, _, resource) in resources {
            next.insert(name.clone(), resource.clone());
        }
        for name in removed {
            next.remove(name);
        }
        let translated = match self.translate(&next) {
            Ok(translated) => translated,
            Err(error) => return vec![error.to_string()],
        };
        let errors = self.publisher.update(resources, removed);
        if errors.is_empty() {
            self.resources = next;
            self.xds.publish(translated);
        }
        errors
    }

    fn note_configuration(&self, result: Result<(), &str>) {
        self.publisher.note_configuration(result);
    }

    fn wanted_services(&self) -> Vec<String> {
        let mut wanted = self.publisher.wanted_services();
        if let Some(Resource::Catalog(services)) = self.resources.get("catalog") {
            wanted.extend_from_slice(services);
        }
        wanted
    }

    fn unowned(&self) -> Vec<String> {
        self.publisher.unowned()
    }

    fn forget_unowned(&mut self) -> Vec<String> {
        self.publisher.forget_unowned()
    }

    fn settled(&mut self) {
        self.publisher.settled();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tulle_model::resource::{Egress, EgressRule, MeshSettings};

    /// Tells a sidecar of `reader` that this identity's plain traffic may leave as TLS.
    fn tell(listener: &Value, source: &str, allow_egress: bool) -> (Model, Vec<String>) {
        let bootstrap: Bootstrap = serde_json::from_value(json!({
            "identity": "spiffe://tulle.local/svc/reader",
            "listeners": [listener],
        }))
        .unwrap();
        let publisher = Publisher::new(bootstrap.identity.clone());
        let mut model = Model::new(bootstrap, publisher, Xds::default());
        let mesh = MeshSettings {
            allow_egress,
            ..Default::default()
        };
        let rule = EgressRule {
            name: "Egress/books".into(),
            sources: vec![SpiffeId::parse(source).unwrap()],
            hosts: vec!["books.example.com".into()],
            tls: Some(Box::default()),
            ..Default::default()
        };
        let egress = Egress { rules: vec![rule] };
        let told = [
            ("mesh".to_owned(), 1, Resource::Mesh(mesh)),
            ("egress".to_owned(), 1, Resource::Egress(egress)),
        ];
        let errors = model.update(&told, &[]);
        (model, errors)
    }

    /// Passed over, an Egress would leave in plaintext what is to leave as TLS, or let nothing out.
    #[test]
    fn an_egress_for_the_workload_is_refused_by_name() {
        let outbound = json!({ "address": "127.0.0.1:15001", "kind": "outbound" });
        for allow_egress in [true, false] {
            let (mut model, errors) =
                tell(&outbound, "spiffe://tulle.local/svc/reader", allow_egress);
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(
                errors[0].starts_with("Egress/books: not translated for Envoy: "),
                "{errors:?}"
            );
            assert!(model.resources.is_empty());
            // Once it is gone, the rest is accepted.
            let mesh = Resource::Mesh(MeshSettings::default());
            let errors = model.update(&[("mesh".to_owned(), 2, mesh)], &["egress".to_owned()]);
            assert_eq!(errors, Vec::<String>::new());
        }
    }

    #[test]
    fn an_egress_without_effect_on_the_workload_is_accepted() {
        let outbound = json!({ "address": "127.0.0.1:15001", "kind": "outbound" });
        let (_, errors) = tell(&outbound, "spiffe://tulle.local/svc/other", false);
        assert_eq!(errors, Vec::<String>::new());
        // In loopback mode nothing leaves the mesh through a sidecar.
        let loopback = json!({
            "address": "127.0.0.1:19080", "kind": "upstream", "service": "ratings", "port": 9080,
        });
        let (_, errors) = tell(&loopback, "spiffe://tulle.local/svc/reader", false);
        assert_eq!(errors, Vec::<String>::new());
    }
}
