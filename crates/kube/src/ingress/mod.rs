//! Kubernetes Ingress (networking.k8s.io/v1), served as Gateways are.
//!
//! ```text
//!  crate::source ──Ingresses, IngressClasses──> seen ──> translate ──routes────> index
//!                                                                 ──Served──> crate::gateway
//! ```
//!
//! All Ingresses of a namespace and class are one gateway, which no object of Gateway API can name. This
//! module makes its listeners and routes; [`crate::gateway`] cares for its pods, Service, certificates and
//! rights. An Ingress reaches Services and Secrets of its own namespace only.

mod seen;
mod translate;

pub(crate) use seen::{Class, Ingress};
pub(crate) use translate::translate;

use crate::gateway_fields::{Gateway, Key, Labels};
pub use crate::kinds::NETWORKING as GROUP;
use crate::object::one_line;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tulle_control::index::{Attachment, ObjectProblem};

/// How an IngressClass names the controller.
pub const CONTROLLER_NAME: &str = "tulle.dev/ingress-controller";
/// The class that is installed.
pub const CLASS: &str = "tulle";
/// Marks the class of Ingresses that name none.
pub const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
/// Annotation by which an Ingress named its class before there was a field for it.
pub const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
/// Begins the names of gateways that serve Ingresses. No object of the API server has a `_` in its name.
const PREFIX: &str = "ingress_";

/// The gateway that serves the Ingresses of a namespace and class.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Served {
    /// Its listeners, as a Gateway would have them.
    pub(crate) gateway: Gateway,
    /// Annotations of the IngressClass.
    pub(crate) annotations: Labels,
    /// Every route with the listeners that take it.
    pub(crate) attached: BTreeSet<Attachment>,
    /// The Ingress that asked for a listener.
    pub(crate) asked: BTreeMap<String, String>,
    /// The Ingresses by name, oldest first.
    pub(crate) members: Vec<Member>,
    /// The parts of the Ingresses that cannot be served, and why.
    pub(crate) problems: Vec<ObjectProblem>,
}

/// An Ingress that a gateway serves.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) status: Value,
    /// False if nothing of it is served.
    pub(crate) in_force: bool,
}

/// Returns the gateway of a namespace's Ingresses of a class.
pub(crate) fn key(namespace: &str, class: &str) -> Key {
    Key::new(namespace, &format!("{PREFIX}{class}"))
}

/// Returns the class whose Ingresses a gateway serves; `None`: it is a Gateway object.
pub(crate) fn class_of(gateway: &Key) -> Option<&str> {
    gateway.name.strip_prefix(PREFIX)
}

/// Describes what is wrong with an Ingress.
pub(crate) fn problem(namespace: &str, name: &str, text: String) -> ObjectProblem {
    ObjectProblem {
        object: format!("Ingress/{}", Key::new(namespace, name).object_name()),
        text: one_line(&text),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_problem_has_no_control_characters_of_the_author() {
        let told = super::problem("shop", "i", "Exact /\u{1b}[2J\r of shop.example".into());
        assert_eq!(told.text, "Exact / [2J  of shop.example");
    }
}
