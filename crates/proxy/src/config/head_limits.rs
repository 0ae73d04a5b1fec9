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

/// Whether bytes that came after the first `before` can complete a head. Only a line's end can: a sender that
/// drips single bytes must not make us parse the same bytes again and again.
pub fn may_complete(received: &[u8], before: usize, limits: &Limits) -> bool {
    let new = received.get(before..).unwrap_or_default();
    before == 0 || received.len() > limits.head_bytes || memchr::memchr(b'\n', new).is_some()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_drip_are_parsed_where_a_line_ends() {
        let head = b"CONNECT a.example:443 HTTP/1.1\r\nhost: a.example\r\n\r\n";
        let limits = limits(1024, 16);
        let parsed = |limits: &Limits| {
            let lengths = 1..=head.len();
            let parsed = lengths.filter(|len| may_complete(&head[..*len], len - 1, limits));
            parsed.collect::<Vec<_>>()
        };
        assert_eq!(parsed(&limits), [1, 32, 49, 51]);
        // One that is too long is refused at once.
        let short = self::limits(49, 16);
        assert_eq!(parsed(&short), [1, 32, 49, 50, 51]);
    }
}
