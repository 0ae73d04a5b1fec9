//! How long a head may be, and how many fields it may have.

use tulle_http1::Limits;
use tulle_model::resource::MeshSettings;

/// Fields that proxies of the mesh may have added to a head before it comes here: ids, traces,
/// addresses, certificates. The application's own fields are counted where they enter the mesh.
pub const MESH_FIELDS: u32 = 16;

/// Limits of a head as configured. `peer`: a proxy of the mesh sends it.
pub fn of_mesh(mesh: &MeshSettings, peer: bool) -> Limits {
    limits(mesh.max_header_bytes, fields(mesh.max_headers, peer))
}

/// Most fields of a head. `peer`: a proxy of the mesh sends it.
pub fn fields(most: u32, peer: bool) -> u32 {
    match peer {
        true => most.saturating_add(MESH_FIELDS),
        false => most,
    }
}

/// Limits of a head: its bytes and its fields.
pub fn limits(head_bytes: u32, fields: u32) -> Limits {
    Limits {
        head_bytes: usize::try_from(head_bytes).unwrap_or(usize::MAX),
        headers: usize::try_from(fields).unwrap_or(usize::MAX),
    }
}
