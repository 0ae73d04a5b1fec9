//! The two values of a WebSocket's handshake over HTTP/1.1 (RFC 6455, section 4.2.2) that it does
//! not have over HTTP/2 (RFC 8441, section 5).

use aws_lc_rs::digest;

/// Base64 of a key (16 bytes) or of its answer (20 bytes).
pub(crate) type Text = Box<[u8]>;

/// A key from 16 bytes that need not be secret.
pub(crate) fn key(nonce: u128) -> Text {
    base64(&nonce.to_be_bytes())
}

/// The answer to a key.
pub(crate) fn accept(key: &[u8]) -> Text {
    const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key);
    context.update(GUID);
    base64(context.finish().as_ref())
}

fn base64(bytes: &[u8]) -> Text {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::new();
    for group in bytes.chunks(3) {
        let mut bits = [0; 4];
        for (place, byte) in bits.iter_mut().skip(1).zip(group) {
            *place = *byte;
        }
        let bits = u32::from_be_bytes(bits);
        for place in 0..4 {
            let digit = DIGITS.get((bits >> (18 - 6 * place)) as usize & 63);
            out.push(match digit {
                Some(digit) if place <= group.len() => *digit,
                _ => b'=',
            });
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(
            *accept(b"dGhlIHNhbXBsZSBub25jZQ=="),
            *b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        assert_eq!(
            *key(u128::from_be_bytes(*b"the sample nonce")),
            *b"dGhlIHNhbXBsZSBub25jZQ=="
        );
    }
}
