//! The Mesh object to the settings every proxy gets.

use super::{Inputs, Output};
use tulle_model::resource::{MeshSettings, Resource};

pub(super) fn outputs(settings: &MeshSettings) -> Vec<Output> {
    vec![Output {
        name: "mesh".into(),
        rank: 0,
        owner: None,
        resource: Resource::Mesh(settings.clone()),
        is_incomplete: false,
    }]
}

/// Derives the settings. Revocations that an operator has made by command are added to those of the
/// Mesh.
pub(super) fn settings(inputs: &Inputs) -> MeshSettings {
    let given = inputs.mesh.as_ref().and_then(|m| m.settings().ok());
    let mut settings = MeshSettings {
        trust_domain: inputs.trust_domain.clone(),
        strict_namespaces: inputs.strict_namespaces.clone(),
        ..given.unwrap_or_default()
    };
    settings.revoked.extend(inputs.revoked.clone());
    let removed = inputs.removed_hosts.iter().cloned();
    settings.revoked.serials.extend(removed);
    settings.revoked.hosts.clone_from(&inputs.revoked_hosts);
    settings
}
