//! The API gateway: `/bookinfo-ratings/…` goes to ratings as `/…`, and likewise for the others.
//!
//! Bodies stream through; methods, statuses and end-to-end headers (traces among them) pass as
//! they are. The caller's certificate header stays here: to the next hop, the caller is us.

use crate::client::{Client, Upstream};
use crate::http::{Body, error, no_such_path, passed, remove_hop_by_hop};
use crate::server::Answer;
use hyper::body::Incoming;
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, StatusCode};
use std::str::FromStr;

/// The service.
pub(crate) struct Gateway {
    client: Client,
    routes: [(&'static str, Upstream); 3],
}

impl Gateway {
    /// A gateway to these services.
    pub(crate) fn new(
        client: Client,
        ratings: Upstream,
        reviews: Upstream,
        details: Upstream,
    ) -> Self {
        let routes = [
            ("/bookinfo-ratings", ratings),
            ("/bookinfo-reviews", reviews),
            ("/bookinfo-details", details),
        ];
        Self { client, routes }
    }

    /// The upstream for a path and what is left of the path.
    fn route<'a>(&self, path_and_query: &'a str) -> Option<(&Upstream, &'a str)> {
        self.routes.iter().find_map(|(prefix, upstream)| {
            let rest = path_and_query.strip_prefix(prefix)?;
            rest.starts_with('/').then_some((upstream, rest))
        })
    }
}

impl Answer for Gateway {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let asked = request.uri().path_and_query();
        let asked = asked.map_or("/", PathAndQuery::as_str);
        let Some((upstream, rest)) = self.route(asked) else {
            return no_such_path(request.uri().path());
        };
        let path = match PathAndQuery::from_str(rest) {
            Ok(path) => path,
            Err(e) => return error(StatusCode::BAD_REQUEST, &format!("{rest:?}: {e}")),
        };
        let mut request = request.map(passed);
        remove_hop_by_hop(request.headers_mut());
        request.headers_mut().remove("x-forwarded-client-cert");
        match self.client.send(upstream, path, request).await {
            Ok(mut response) => {
                remove_hop_by_hop(response.headers_mut());
                response.map(passed)
            }
            Err(e) => e.answer(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn routes_by_whole_first_segment() {
        let to = |text: &str| text.parse().unwrap();
        let gateway = Gateway::new(Client::new(), to("a:1"), to("b:2"), to("c:3"));
        let (upstream, rest) = gateway.route("/bookinfo-reviews/reviews/7?x=1").unwrap();
        assert_eq!(upstream.to_string(), "b:2");
        assert_eq!(rest, "/reviews/7?x=1");
        assert!(gateway.route("/bookinfo-ratingsX/ratings/7").is_none());
        assert!(gateway.route("/bookinfo-ratings").is_none());
        assert!(gateway.route("/").is_none());
    }
}
