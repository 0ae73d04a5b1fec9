//! UUIDs as 128-bit numbers: parsed strictly, made from the kernel's random bytes.

use std::fmt;
use std::io::Read;

/// A UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Uuid(pub u128);

impl Uuid {
    /// Parses `8-4-4-4-12` hexadecimal digits; nothing else is a UUID here.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() != 36 {
            return None;
        }
        let mut value: u128 = 0;
        for (i, byte) in text.bytes().enumerate() {
            if matches!(i, 8 | 13 | 18 | 23) {
                if byte != b'-' {
                    return None;
                }
            } else {
                let digit = char::from(byte).to_digit(16)?;
                value = value << 4 | u128::from(digit);
            }
        }
        Some(Self(value))
    }

    /// A random one (version 4, RFC 9562 section 5.4).
    pub(crate) fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let version = 0x4 << 76;
        let variant = 0b10 << 62;
        let random = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0b11 << 62);
        Ok(Self(random | version | variant))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            v >> 96,
            v >> 80 & 0xffff,
            v >> 64 & 0xffff,
            v >> 48 & 0xffff,
            v & 0xffff_ffff_ffff
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_number_agree() {
        let text = "2099a055-1e21-46ef-825e-9e0de93554ea";
        assert_eq!(Uuid::parse(text).unwrap().to_string(), text);
    }

    #[test]
    fn refuses_other_texts() {
        for text in [
            "",
            "2099a055",
            "2099a055-1e21-46ef-825e-9e0de93554eg",
            "2099a0551e21-46ef-825e-9e0de93554ea-",
            "2099a055-1e21-46ef-825e-9e0de93554ea0",
            "+099a055-1e21-46ef-825e-9e0de93554ea",
        ] {
            assert_eq!(Uuid::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn random_ones_say_version_4_and_differ() {
        let (a, b) = (Uuid::random().unwrap(), Uuid::random().unwrap());
        assert_ne!(a, b);
        let text = a.to_string();
        assert_eq!(&text[14..15], "4");
        assert!(matches!(&text[19..20], "8" | "9" | "a" | "b"), "{text}");
    }
}
