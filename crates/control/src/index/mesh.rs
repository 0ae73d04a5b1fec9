//! The Mesh object to the settings every proxy gets.

use super::{Inputs, Output};
use tulle_model::resource::{MeshSettings, Resource, Revoked};

pub(super) fn outputs(inputs: &Inputs, revoked: &Revoked) -> Vec<Output> {
    vec![Output {
        name: "mesh".into(),
        rank: 0,
        owner: None,
        resource: Resource::Mesh(settings(inputs, revoked)),
    }]
}

fn settings(inputs: &Inputs, revoked: &Revoked) -> MeshSettings {
    let given = inputs.mesh.as_ref().and_then(|m| m.settings().ok());
    MeshSettings {
        trust_domain: inputs.trust_domain.clone(),
        revoked: revoked.clone(),
        ..given.unwrap_or_default()
    }
}

/// What the Mesh object revokes, and what an operator has revoked by command.
pub(super) fn revoked(inputs: &Inputs) -> Revoked {
    let mut revoked = inputs.revoked.clone();
    if let Some(mesh) = &inputs.mesh {
        revoked.extend(mesh.revoked());
    }
    revoked
}
