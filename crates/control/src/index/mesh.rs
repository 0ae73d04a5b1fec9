//! The Mesh object to the settings every proxy gets.

use super::{Inputs, Output};
use tulle_model::resource::{MeshSettings, Resource};

pub(super) fn outputs(inputs: &Inputs) -> Vec<Output> {
    vec![Output {
        name: "mesh".into(),
        rank: 0,
        owner: None,
        resource: Resource::Mesh(settings(inputs)),
    }]
}

fn settings(inputs: &Inputs) -> MeshSettings {
    let given = inputs.mesh.as_ref().and_then(|m| m.settings().ok());
    MeshSettings {
        trust_domain: inputs.trust_domain.clone(),
        ..given.unwrap_or_default()
    }
}
