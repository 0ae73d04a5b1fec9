//! The page: its files are in the program, compressed.

use crate::response::{Answer, AnswerBody, response};
use flate2::read::GzDecoder;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, HeaderValue, VARY};
use std::io::Read;

/// A file of the page.
struct Asset {
    url: &'static str,
    kind: &'static str,
    packed: &'static [u8],
}

/// All of them: `build.rs` reads `page/`.
static PAGE: &[Asset] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// The file of a path; none: there is none. Nothing else is read, whatever the path says.
pub(crate) fn answer(path: &str, headers: &HeaderMap) -> Option<Answer> {
    let asset = PAGE.iter().find(|asset| asset.url == path)?;
    // Their names change with what is in them.
    let cache = match asset.url.starts_with("/assets/") {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let packed = takes_gzip(headers);
    let bytes = match packed {
        true => Bytes::from_static(asset.packed),
        false => unpacked(asset).into(),
    };
    let body = AnswerBody::Whole(Some(bytes));
    let mut answer = response(StatusCode::OK, asset.kind, cache, body);
    let headers = answer.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if packed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Some(answer)
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT_ENCODING).iter();
    let mut words = accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    words.any(|word| {
        let mut parts = word.split(';').map(str::trim);
        parts.next() == Some("gzip") && parts.all(|part| part != "q=0")
    })
}

fn unpacked(asset: &Asset) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = GzDecoder::new(asset.packed).read_to_end(&mut bytes) {
        tracing::error!(%error, url = asset.url, "a file of the page is damaged");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that begin like an address and are never loaded: names of XML's namespaces, and addresses of this host.
    const NO_REFERENCES: [&str; 4] = [
        "http://www.w3.org/",
        "http://127.0.0.1",
        "http://localhost",
        "http://[::1]",
    ];

    /// Addresses in a text that a browser could load something from.
    fn references(text: &str) -> Vec<&str> {
        let shown = |at: usize| {
            let rest = text.get(at..).unwrap_or_default();
            let end = rest
                .char_indices()
                .nth(60)
                .map_or(rest.len(), |(end, _)| end);
            &rest[..end]
        };
        let named = ["http://", "https://", "ws://", "wss://"].into_iter();
        let named = named.flat_map(|scheme| text.match_indices(scheme).map(|(at, _)| at));
        let named =
            named.filter(|at| !NO_REFERENCES.iter().any(|own| text[*at..].starts_with(own)));
        // `//host` has the scheme of the page. In a program `//` also begins a comment, but not within quotes.
        let bare = text.match_indices("//").map(|(at, _)| at).filter(|at| {
            let before = text[..*at].chars().next_back();
            let after = text[at + 2..].chars().next();
            before.is_some_and(|c| "\"'`(=".contains(c)) && after.is_some_and(char::is_alphanumeric)
        });
        named.chain(bare).map(shown).collect()
    }

    #[test]
    fn no_file_refers_to_another_server() {
        assert_eq!(references("<a href=\"https://a\">").len(), 1);
        assert_eq!(references("<script src=\"//cdn.example/a.js\">").len(), 1);
        assert_eq!(references("url(//fonts.example/a)").len(), 1);
        assert!(references("x=1 // comment\nns='http://www.w3.org/2000/svg'").is_empty());
        for asset in PAGE {
            let bytes = unpacked(asset);
            if let Ok(text) = std::str::from_utf8(&bytes) {
                let found = references(text);
                assert!(found.is_empty(), "{}: {found:?}", asset.url);
            }
        }
    }

    #[test]
    fn the_page_needs_no_inline_script_or_style() {
        let index = PAGE.iter().find(|asset| asset.url == "/").unwrap();
        let text = String::from_utf8(unpacked(index)).unwrap();
        for (at, _) in text.match_indices("<script") {
            let tag = text[at..].split('>').next().unwrap();
            assert!(tag.contains(" src="), "{tag}");
        }
        assert!(
            !text.contains("<style") && !text.contains(" style="),
            "{text}"
        );
        assert!(!text.contains(" onclick=") && !text.contains("javascript:"));
    }

    #[test]
    fn every_file_that_the_page_names_is_there() {
        let index = PAGE.iter().find(|asset| asset.url == "/").unwrap();
        let text = String::from_utf8(unpacked(index)).unwrap();
        let mut named = 0;
        for attribute in ["src=\"", "href=\""] {
            for part in text.split(attribute).skip(1) {
                let url = part.split('"').next().unwrap();
                if url.starts_with("data:") || url.starts_with('#') {
                    continue;
                }
                let url = format!("/{}", url.trim_start_matches("./").trim_start_matches('/'));
                assert!(PAGE.iter().any(|asset| asset.url == url), "{url}");
                named += 1;
            }
        }
        assert!(named > 0, "{text}");
    }

    #[test]
    fn who_takes_no_gzip_gets_the_same() {
        let mut gzip = HeaderMap::new();
        gzip.insert(ACCEPT_ENCODING, HeaderValue::from_static("br, gzip;q=0.8"));
        assert_eq!(
            answer("/", &gzip).unwrap().headers()["content-encoding"],
            "gzip"
        );
        for refused in ["gzip;q=0", "br", "identity"] {
            gzip.insert(ACCEPT_ENCODING, HeaderValue::from_static(refused));
            let plain = answer("/", &gzip).unwrap();
            assert!(
                !plain.headers().contains_key("content-encoding"),
                "{refused}"
            );
        }
        for path in [
            "",
            "/index",
            "/../Cargo.toml",
            "/assets/",
            "//",
            "/assets/%2e%2e/",
        ] {
            assert!(answer(path, &gzip).is_none(), "{path}");
        }
    }
}
