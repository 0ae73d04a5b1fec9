//! Tells a TLS connection from a plain one by its first bytes.

/// Whether the first bytes of a connection start a TLS ClientHello. `None`: too few bytes to say.
///
/// It looks at the record type, the major version and the handshake type: six bytes, which no
/// HTTP request starts with.
pub fn is_client_hello(first_bytes: &[u8]) -> Option<bool> {
    const HANDSHAKE_RECORD: u8 = 22;
    const CLIENT_HELLO: u8 = 1;
    for (at, byte) in first_bytes.iter().enumerate().take(6) {
        let fits = match at {
            0 => *byte == HANDSHAKE_RECORD,
            1 => *byte == 3,
            2 => *byte <= 4,
            5 => *byte == CLIENT_HELLO,
            _ => true,
        };
        if !fits {
            return Some(false);
        }
    }
    (first_bytes.len() >= 6).then_some(true)
}

#[cfg(test)]
mod tests {
    use super::is_client_hello;

    #[test]
    fn needs_six_bytes_to_say_yes_and_one_to_say_no() {
        let hello = [22, 3, 1, 2, 0, 1, 0];
        for len in 0..6 {
            assert_eq!(is_client_hello(&hello[..len]), None, "{len} bytes");
        }
        assert_eq!(is_client_hello(&hello), Some(true));
        assert_eq!(is_client_hello(b"G"), Some(false));
        assert_eq!(is_client_hello(b"GET / HTTP/1.1\r\n"), Some(false));
        assert_eq!(is_client_hello(&[22, 3, 9]), Some(false));
        assert_eq!(is_client_hello(&[22, 3, 3, 0, 4, 2]), Some(false));
    }
}
