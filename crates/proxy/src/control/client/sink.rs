//! The owner of a client, as the client sees it: the receiver of configurations and certificates.

use std::collections::BTreeSet;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Resource;
use tulle_tls::enrol::Enrolled;

/// Receiver of the controller's configurations and of certificates.
pub trait Sink: Send + 'static {
    /// Returns our own SPIFFE id.
    fn identity(&self) -> &SpiffeId;
    /// Uses another certificate from now on.
    fn set_identity(&mut self, enrolled: &Enrolled);
    /// Takes an update as a whole, to be in force after `release` at the latest. If anything is
    /// wrong it changes nothing and returns the errors.
    fn update(&mut self, resources: &[(String, u64, Resource)], removed: &[String]) -> Vec<String>;
    /// Puts all updates in force.
    fn release(&mut self) {}
    /// Describes configuration that is only partly in force, and why; empty: all is in force.
    fn faults(&self) -> String {
        String::new()
    }
    /// Returns the part of a resource in force; `None`: the whole resource is.
    fn in_force(&self, _told: &Resource) -> Option<Resource> {
        None
    }
    /// Whether another process has taken over, whose files are those of this one.
    fn is_succeeded(&self) -> bool {
        false
    }
    /// Notes whether the newest update is in force; shown to operators.
    fn note_configuration(&self, result: Result<(), &str>);
    /// Services to subscribe to, beside those of the listeners.
    fn wanted_services(&self) -> Vec<String>;
    /// Names of addresses that belong to no service.
    fn unowned(&self) -> Vec<String>;
    /// Forgets the addresses that belong to no service and returns their names.
    fn forget_unowned(&mut self) -> Vec<String>;
    /// The controller has answered everything the proxy asked for at the start.
    fn settled(&mut self);
    /// Whether the controller may send services that nobody has asked for yet.
    fn anticipates(&self) -> bool {
        false
    }
    /// Notes the names that the controller sent unasked and that the application has not used.
    fn set_unused(&mut self, _names: &BTreeSet<String>) {}
    /// Forgets these names, without treating them as names of no service.
    fn forget(&mut self, _names: &[String]) {}
    /// Notes why the controller is unreachable; `None`: it is reachable, or the proxy is trying to
    /// reach it.
    fn set_away(&mut self, _why: Option<&str>) {}
}
