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
                // Only `tulle-proxy` uses it; here `allowEgress` decides.
                Resource::Egress(_) => {}
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
