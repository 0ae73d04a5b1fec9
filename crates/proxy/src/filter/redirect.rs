//! Redirects and rewrites: another path or host, for the client or on the way to the upstream.

use crate::filter::header_edit::Draft;
use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use tulle_http1::{is_field_value, split_authority};
use tulle_model::resource;

/// A change of a path, compiled.
enum PathEdit {
    Full(Vec<u8>),
    /// Replaces the prefix, which the caller knows; without a slash at its end.
    Prefix(Vec<u8>),
}

impl PathEdit {
    fn compile(edit: &resource::PathEdit, by_prefix: bool) -> Result<Self, String> {
        let checked = |path: &str| {
            let fine = |b: u8| b.is_ascii_graphic() && !matches!(b, b'?' | b'#');
            if path.bytes().all(fine) && (path.is_empty() || path.starts_with('/')) {
                return Ok(path.as_bytes().to_vec());
            }
            Err(format!("{path:?} is no path to replace another with"))
        };
        match edit {
            resource::PathEdit::Full(path) if path.is_empty() => {
                Err("the path to replace the whole path with is empty".into())
            }
            resource::PathEdit::Full(path) => Ok(Self::Full(checked(path)?)),
            resource::PathEdit::Prefix(_) if !by_prefix => Err(
                "a prefix can be replaced only where all matches of the rule are by prefix".into(),
            ),
            resource::PathEdit::Prefix(path) => {
                Ok(Self::Prefix(checked(path.trim_end_matches('/'))?))
            }
        }
    }

    /// Returns the path after the change. `matched` bytes of the old one are the prefix.
    fn apply(&self, path: &[u8], matched: usize) -> Vec<u8> {
        match self {
            Self::Full(path) => path.clone(),
            Self::Prefix(prefix) => {
                let rest = path.get(matched..).unwrap_or_default();
                let mut new = [prefix, rest].concat();
                if new.is_empty() {
                    new.push(b'/');
                }
                new
            }
        }
    }
}

fn host(text: &str) -> Result<Vec<u8>, String> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    if text.bytes().all(fine) {
        return Ok(text.as_bytes().to_vec());
    }
    Err(format!("{text:?} is no host name"))
}

/// A compiled change of host or path on the way.
pub struct Rewrite {
    host: Vec<u8>,
    path: Option<PathEdit>,
}

impl Rewrite {
    /// Checks and compiles. `by_prefix`: the route matches by prefix.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn compile(rewrite: &resource::Rewrite, by_prefix: bool) -> Result<Self, String> {
        let path = rewrite.path.as_ref();
        Ok(Self {
            host: host(&rewrite.hostname)?,
            path: path.map(|p| PathEdit::compile(p, by_prefix)).transpose()?,
        })
    }

    /// Rewrites a request. A target without a path (`*`, or a host of CONNECT) stays.
    pub fn apply(&self, draft: &mut Draft<'_>, matched: usize) {
        let mut first = None;
        let (path, query) = draft.path_and_query();
        if let Some(edit) = &self.path
            && path.first() == Some(&b'/')
        {
            let (method, _, version) = tulle_http1::request_line(draft.head());
            let path = edit.apply(path, matched);
            first = Some([method, b" ", &path, query, b" ", version].concat());
        }
        if self.host.is_empty() {
            return draft.edit(first.as_deref(), |_| true, &[]);
        }
        let keep = |name: &[u8]| !name.eq_ignore_ascii_case(b"host");
        draft.edit(first.as_deref(), keep, &[("host", &self.host)]);
    }
}

/// A redirection, compiled.
pub struct Redirect {
    scheme: &'static str,
    host: Vec<u8>,
    port: u16,
    path: Option<PathEdit>,
    status: u16,
}

impl Redirect {
    /// Checks and compiles. `by_prefix`: the route matches by prefix.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn compile(redirect: &resource::Redirect, by_prefix: bool) -> Result<Self, String> {
        let scheme = match redirect.scheme.as_str() {
            "" => "",
            "http" => "http",
            "https" => "https",
            other => return Err(format!("redirect to scheme {other:?}: only http and https")),
        };
        let status = match redirect.status {
            0 => 302,
            status @ (301 | 302 | 303 | 307 | 308) => status,
            other => return Err(format!("status {other} is no redirection")),
        };
        let path = redirect.path.as_ref();
        Ok(Self {
            scheme,
            host: host(&redirect.hostname)?,
            port: redirect.port,
            path: path.map(|p| PathEdit::compile(p, by_prefix)).transpose()?,
            status,
        })
    }

    /// The answer to a request that came in by `scheme` on `port`.
    pub fn answer(&self, draft: &Draft<'_>, matched: usize, scheme: &str, port: u16) -> Failure {
        let location = self.location(draft, matched, scheme, port);
        let shown = String::from_utf8_lossy(&location).into_owned();
        Failure::new(Reason::Redirected, format!("to {shown}")).with_response(LocalResponse {
            status: self.status,
            headers: vec![("location".into(), location)],
            body: None,
        })
    }

    fn location(&self, draft: &Draft<'_>, matched: usize, scheme: &str, port: u16) -> Vec<u8> {
        let (path, query) = draft.path_and_query();
        let path = match &self.path {
            Some(edit) => edit.apply(path, matched),
            None => path.to_vec(),
        };
        let authority = draft.field("host").unwrap_or_default();
        let host = match self.host.as_slice() {
            [] => split_authority(authority).0,
            own => own,
        };
        let port = match (self.port, self.scheme) {
            (0, "") => port,
            (0, "https") => 443,
            (0, _) => 80,
            (own, _) => own,
        };
        let scheme = if self.scheme.is_empty() {
            scheme
        } else {
            self.scheme
        };
        let mut out = [scheme.as_bytes(), b"://", host].concat();
        if !matches!((scheme, port), ("http", 80) | ("https", 443)) {
            out.extend_from_slice(format!(":{port}").as_bytes());
        }
        out.extend_from_slice(&path);
        out.extend_from_slice(query);
        // The bytes of a head are checked when it is read, but these go into another head.
        if is_field_value(&out) {
            out
        } else {
            b"/".to_vec()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_net::Buf;

    /// The table of Gateway API's HTTPPathModifier.
    #[test]
    fn a_prefix_is_replaced_as_gateway_api_says() {
        for (path, prefix, replacement, wanted) in [
            ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
            ("/foo", "/foo", "/xyz", "/xyz"),
            ("/foo/", "/foo", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "", "/bar"),
            ("/foo/", "/foo", "", "/"),
            ("/foo", "/foo", "", "/"),
            ("/foo/", "/foo", "/", "/"),
            ("/foo", "/foo", "/", "/"),
            ("/foo", "/", "/x", "/x/foo"),
        ] {
            let edit = resource::PathEdit::Prefix(replacement.into());
            let edit = PathEdit::compile(&edit, true).unwrap();
            let matched = prefix.trim_end_matches('/').len();
            let new = edit.apply(path.as_bytes(), matched);
            assert_eq!(
                String::from_utf8(new).unwrap(),
                wanted,
                "{path} {prefix} {replacement}"
            );
        }
    }

    fn location(redirect: &resource::Redirect, port: u16) -> String {
        let mut message = Buf::new();
        message
            .extend_from_slice(b"GET /a/b?c=d HTTP/1.1\r\nHost: shop.example:8080\r\nx: y\r\n\r\n");
        let len = message.len();
        let draft = Draft::new(&mut message, len);
        let redirect = Redirect::compile(redirect, true).unwrap();
        String::from_utf8(redirect.location(&draft, 2, "http", port)).unwrap()
    }

    #[test]
    fn what_is_not_given_stays() {
        let none = resource::Redirect::default();
        assert_eq!(location(&none, 80), "http://shop.example/a/b?c=d");
        assert_eq!(location(&none, 8080), "http://shop.example:8080/a/b?c=d");
        let https = resource::Redirect {
            scheme: "https".into(),
            ..none.clone()
        };
        assert_eq!(location(&https, 8080), "https://shop.example/a/b?c=d");
        let all = resource::Redirect {
            scheme: "https".into(),
            hostname: "other.example".into(),
            port: 8443,
            path: Some(resource::PathEdit::Prefix("/z".into())),
            status: 301,
        };
        assert_eq!(location(&all, 80), "https://other.example:8443/z/b?c=d");
    }

    #[test]
    fn what_would_break_the_head_is_refused() {
        let full = |path: &str| resource::Rewrite {
            path: Some(resource::PathEdit::Full(path.into())),
            ..Default::default()
        };
        for path in ["", "a", "/a b", "/a\r\nx: y", "/a?b", "/\u{e4}"] {
            assert!(Rewrite::compile(&full(path), true).is_err(), "{path:?}");
        }
        let prefix = resource::Rewrite {
            path: Some(resource::PathEdit::Prefix("/a".into())),
            ..Default::default()
        };
        assert!(Rewrite::compile(&prefix, false).is_err());
        let host = resource::Rewrite {
            hostname: "a\r\nb".into(),
            ..Default::default()
        };
        assert!(Rewrite::compile(&host, true).is_err());
    }
}
