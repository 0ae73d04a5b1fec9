//! Rules that close ports of workloads on hosts, found once for each port that questions are about.
//!
//! Whether a port has room is known only once its rules are made, and those of the ports before it: they may be megabytes.

use crate::index::{Inputs, inbound};
use std::cell::RefCell;
use std::collections::BTreeMap;
use tulle_model::namespaced::ObjectName;
use tulle_model::resource::PolicyRule;

/// Service, identity and port.
type Key = (ObjectName, ObjectName, u16);

/// The rule that closes each of these, if there is one, as of one state of the mesh.
#[derive(Default)]
pub(super) struct Closings(RefCell<BTreeMap<Key, Option<PolicyRule>>>);

impl Closings {
    pub(super) fn at(
        &self,
        inputs: &Inputs,
        service: &ObjectName,
        identity: &ObjectName,
        port: u16,
    ) -> Option<PolicyRule> {
        let mut known = self.0.borrow_mut();
        let known = known.entry((service.clone(), identity.clone(), port));
        let find = || inbound::closing_at(inputs, service, identity, port);
        known.or_insert_with(find).clone()
    }
}
