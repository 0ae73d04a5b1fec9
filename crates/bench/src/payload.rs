//! The bodies that load carries and its server answers with.

/// Longest body the server has: longer than what the sockets on its way hold.
pub const LONGEST: usize = 8 << 20;

/// The pattern that bodies repeat. It is longer than a cache line and its length is no power of two, so
/// that data lost or repeated in the middle shows.
const PATTERN: &[u8] = br#"{"id":"2099a055-1e21-46ef-825e-9e0de93554ea","reviewer":"reviewer-1","text":"An extremely entertaining play by Shakespeare.","stars":5},"#;

/// The body of `/bytes/LENGTH`: text like JSON; a shorter one is the beginning of a longer one.
pub fn text(length: usize) -> Vec<u8> {
    let mut text = PATTERN.repeat(length.div_ceil(PATTERN.len()));
    text.truncate(length);
    text
}
