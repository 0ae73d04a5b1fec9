//! Which requests are looked at at all. A browser sends what any web page asks it to send; so a request must name this
//! server by a loopback name (no other name that leads here does: DNS rebinding), and come from the console's own page.

use crate::response::refusal;
use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, ORIGIN, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use tulle_control::observe::Refusal;

/// Paths of the API.
pub(crate) const API: &str = "/api/v1/";
/// Names that lead to this host, whatever DNS says.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
/// Streams: another site could learn from them how much happens.
const STREAMS: [&str; 2] = ["/api/v1/events", "/api/v1/tap"];
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Judges heads of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guard {
    /// The port that a browser must name; none: any, because a port-forward leads here.
    pub(crate) port: Option<u16>,
}

impl Guard {
    /// Returns the host as the request names it.
    ///
    /// # Errors
    /// The request is not answered, and why.
    pub(crate) fn check<'h>(&self, head: &'h Parts) -> Result<&'h str, Refusal> {
        if head.uri.authority().is_some() || head.uri.scheme().is_some() {
            let what = "this is no proxy: the request names another server";
            return Err(refusal(
                StatusCode::BAD_REQUEST,
                "bad_request",
                what,
                "ask for a path",
            ));
        }
        let host = self.host(&head.headers)?;
        let read = head.method == Method::GET;
        if !read && head.method != Method::POST {
            let what = format!("{} is not used here", head.method);
            return Err(refusal(
                StatusCode::METHOD_NOT_ALLOWED,
                "wrong_method",
                what,
                "use GET, or POST for actions",
            ));
        }
        if read && has_body(&head.headers) {
            let what = "a GET has no body here";
            return Err(refusal(
                StatusCode::BAD_REQUEST,
                "bad_request",
                what,
                "leave the body out",
            ));
        }
        same_origin(head, host)?;
        Ok(host)
    }

    fn host<'h>(&self, headers: &'h HeaderMap) -> Result<&'h str, Refusal> {
        let host = one(headers, &HOST)?.unwrap_or_default();
        let (name, port) = match host.rsplit_once(':') {
            // The colons within brackets are an address's.
            Some((name, port)) if !port.ends_with(']') => (name, port.parse::<u16>().ok()),
            _ => (host, Some(80)),
        };
        let known = LOOPBACK.iter().any(|own| name.eq_ignore_ascii_case(own));
        let here = match self.port {
            Some(own) => port == Some(own),
            None => port.is_some(),
        };
        if known && here {
            return Ok(host);
        }
        let what = format!("the console does not answer to the name {host:?}");
        let fix = "open the URL that `tulle dashboard` prints: it begins with http://127.0.0.1:";
        Err(refusal(
            StatusCode::MISDIRECTED_REQUEST,
            "wrong_host",
            what,
            fix,
        ))
    }
}

fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH);
    headers.contains_key(TRANSFER_ENCODING) || length.is_some_and(|length| length != "0")
}

/// A header that may come once.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Refusal> {
    let mut all = headers.get_all(name).iter();
    let first = all.next();
    match (first.map(|value| value.to_str()), all.next()) {
        (None, _) => Ok(None),
        (Some(Ok(text)), None) => Ok(Some(text)),
        _ => Err(refusal(
            StatusCode::BAD_REQUEST,
            "bad_request",
            format!("{name} is there twice, or is no text"),
            "send it once",
        )),
    }
}

/// Refuses what another site's page asks for. A page of another port of this host is another site's, too: browsers give
/// it the same cookies.
fn same_origin(head: &Parts, host: &str) -> Result<(), Refusal> {
    let path = head.uri.path();
    let write = head.method != Method::GET;
    // Whoever opens the page may come from anywhere, and the address bar is nowhere.
    if !write && !path.starts_with(API) {
        return Ok(());
    }
    let foreign = || {
        let what = "the request comes from another web page";
        let fix = "use the console's own page, which `tulle dashboard` opens";
        Err(refusal(StatusCode::FORBIDDEN, "wrong_origin", what, fix))
    };
    match one(&head.headers, &ORIGIN)? {
        Some(origin) if origin.eq_ignore_ascii_case(&format!("http://{host}")) => {}
        // Browsers say the origin of everything that is not a GET.
        None if !write => {}
        _ => return foreign(),
    }
    let site = HeaderName::from_static(SEC_FETCH_SITE);
    match one(&head.headers, &site)? {
        None | Some("same-origin") => Ok(()),
        Some("none") if !write && !STREAMS.contains(&path) => Ok(()),
        Some(_) => foreign(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    const HERE: Guard = Guard { port: Some(15012) };

    fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn code(guard: Guard, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        match guard.check(&head(method, path, headers)) {
            Ok(_) => 200,
            Err(why) => why.status,
        }
    }

    #[test]
    fn only_loopback_names_with_the_port_are_answered() {
        for good in [
            "127.0.0.1:15012",
            "localhost:15012",
            "LocalHost:15012",
            "[::1]:15012",
        ] {
            assert_eq!(code(HERE, "GET", "/", &[("host", good)]), 200, "{good}");
        }
        for bad in [
            "evil.example:15012",
            "127.0.0.1",
            "127.0.0.1:80",
            "127.0.0.1:15012.evil.example",
            "127.0.0.1.evil.example:15012",
            "localhost.evil.example:15012",
            "evil.example",
            "0.0.0.0:15012",
            "[::1]",
            "[::2]:15012",
            "",
            ":15012",
        ] {
            assert_eq!(code(HERE, "GET", "/", &[("host", bad)]), 421, "{bad}");
        }
        assert_eq!(code(HERE, "GET", "/", &[]), 421);
        let twice = [("host", "127.0.0.1:15012"), ("host", "evil.example")];
        assert_eq!(code(HERE, "GET", "/", &twice), 400);
    }

    #[test]
    fn behind_a_port_forward_the_port_is_any() {
        let any = Guard { port: None };
        assert_eq!(code(any, "GET", "/", &[("host", "127.0.0.1:40000")]), 200);
        assert_eq!(
            code(any, "GET", "/", &[("host", "evil.example:40000")]),
            421
        );
        assert_eq!(code(any, "GET", "/", &[("host", "127.0.0.1:a")]), 421);
    }

    #[test]
    fn methods_and_forms_that_nobody_needs_are_refused() {
        let host = ("host", "127.0.0.1:15012");
        for method in ["PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "PATCH"] {
            assert_eq!(code(HERE, method, "/", &[host]), 405, "{method}");
        }
        assert_eq!(
            code(HERE, "GET", "http://127.0.0.1:15012/", &[host]),
            400,
            "a proxy's form"
        );
        let body = [host, ("content-length", "3")];
        assert_eq!(code(HERE, "GET", "/", &body), 400);
        let none = [host, ("content-length", "0")];
        assert_eq!(code(HERE, "GET", "/", &none), 200);
    }

    #[test]
    fn what_is_not_a_get_must_say_that_it_is_from_here() {
        let host = ("host", "127.0.0.1:15012");
        let own = ("origin", "http://127.0.0.1:15012");
        let post = |more: &[(&str, &str)]| {
            code(HERE, "POST", "/api/v1/session", &[&[host], more].concat())
        };
        assert_eq!(post(&[]), 403);
        assert_eq!(post(&[own]), 200);
        assert_eq!(post(&[own, ("sec-fetch-site", "same-origin")]), 200);
        for site in ["same-site", "cross-site", "none"] {
            assert_eq!(post(&[own, ("sec-fetch-site", site)]), 403, "{site}");
        }
        for origin in [
            "null",
            "http://evil.example",
            "http://127.0.0.1:8080",
            "https://127.0.0.1:15012",
            "http://localhost:15012",
            "http://127.0.0.1",
        ] {
            assert_eq!(post(&[("origin", origin)]), 403, "{origin}");
        }
    }

    #[test]
    fn other_sites_read_nothing() {
        let host = ("host", "127.0.0.1:15012");
        let get =
            |path: &str, site: &str| code(HERE, "GET", path, &[host, ("sec-fetch-site", site)]);
        for path in ["/api/v1/graph", "/api/v1/events", "/api/v1/tap"] {
            assert_eq!(get(path, "same-origin"), 200, "{path}");
            assert_eq!(get(path, "cross-site"), 403, "{path}");
            assert_eq!(get(path, "same-site"), 403, "{path}");
            let foreign = [host, ("origin", "http://evil.example")];
            assert_eq!(code(HERE, "GET", path, &foreign), 403, "{path}");
        }
        assert_eq!(get("/api/v1/graph", "none"), 200, "the address bar");
        assert_eq!(get("/api/v1/events", "none"), 403);
        assert_eq!(get("/", "cross-site"), 200, "a link to the page");
    }
}
