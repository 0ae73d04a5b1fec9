//! Reads the content of Secrets and ConfigMaps.

use super::super::{ConfigMap, Secret};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

impl Secret {
    /// The text under a key; `None` if the key is absent or its value is not text.
    pub fn text(&self, key: &str) -> Option<String> {
        if let Some(text) = self.string_data.get(key) {
            return Some(text.clone());
        }
        String::from_utf8(base64(self.data.get(key)?)?).ok()
    }
}

impl ConfigMap {
    /// The text under a key.
    pub fn text(&self, key: &str) -> Option<String> {
        self.data.get(key).cloned()
    }
}

/// RFC 4648, section 4, with padding; line ends are passed over.
fn base64(text: &str) -> Option<Vec<u8>> {
    let text: String = text.chars().filter(|c| !"\r\n".contains(*c)).collect();
    BASE64_STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_the_rfc_has_it() {
        for (text, expected) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9v\nYmFy\n", "foobar"),
        ] {
            assert_eq!(base64(text).as_deref(), Some(expected.as_bytes()), "{text}");
        }
        for text in ["Zg", "Zg=", "Z===", "Zg==Zg==", "Zm9-", "====", "Z g="] {
            assert_eq!(base64(text), None, "{text}");
        }
    }

    #[test]
    fn plain_text_wins() {
        let mut secret = Secret::default();
        secret.data.insert("a".into(), "Zm9v".into());
        assert_eq!(secret.text("a").as_deref(), Some("foo"));
        secret.string_data.insert("a".into(), "bar".into());
        assert_eq!(secret.text("a").as_deref(), Some("bar"));
        assert!(!format!("{secret:?}").contains("bar"));
    }
}
