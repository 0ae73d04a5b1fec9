//! The web page's service: fetches details and reviews at once and renders them.

use crate::catalogue::PRODUCT;
use crate::client::{CallError, Client, Fetched, Upstream};
use crate::http::{Body, answer, caller, is_read, method_not_allowed, no_such_path, trace};
use crate::page::{Book, Hop, Page};
use crate::reviews::ReviewList;
use crate::server::Answer;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::de::DeserializeOwned;

/// The service.
pub(crate) struct ProductPage {
    /// Calls the others.
    pub client: Client,
    /// Where details is.
    pub details: Upstream,
    /// Where reviews is.
    pub reviews: Upstream,
}

/// The result of a call, and the identity that it was made as.
struct Part<T> {
    value: Result<T, String>,
    called_by: Option<String>,
}

impl<T: DeserializeOwned> Part<T> {
    fn read(fetched: Result<Fetched, CallError>) -> Self {
        match fetched {
            Ok(fetched) => Self {
                value: serde_json::from_slice(&fetched.body).map_err(|e| e.to_string()),
                called_by: fetched.called_by,
            },
            Err(e) => Self {
                value: Err(e.to_string()),
                called_by: None,
            },
        }
    }
}

impl ProductPage {
    /// 200 even when a part is missing: the page says what is missing and why.
    async fn page(&self, request: &Request<Incoming>) -> Response<Body> {
        let headers = request.headers();
        let details_path = format!("/details/{PRODUCT}");
        let reviews_path = format!("/reviews/{PRODUCT}");
        let (details, reviews) = tokio::join!(
            self.client
                .get(&self.details, &details_path, trace(headers)),
            self.client
                .get(&self.reviews, &reviews_path, trace(headers)),
        );
        let details: Part<Book> = Part::read(details);
        let reviews: Part<ReviewList> = Part::read(reviews);
        let ratings_called_by = match &reviews.value {
            Ok(list) => list.ratings_called_by.clone(),
            Err(_) => None,
        };
        let hop = |service, caller| Hop { service, caller };
        let page = Page {
            hops: vec![
                hop("productpage", caller(headers).map(str::to_owned)),
                hop("details", details.called_by),
                hop("reviews", reviews.called_by),
                hop("ratings", ratings_called_by),
            ],
            book: details.value,
            reviews: reviews.value.map(|list| list.reviews),
        };
        answer(StatusCode::OK, "text/html; charset=utf-8", page.render())
    }
}

impl Answer for ProductPage {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        match request.uri().path() {
            "/productpage" | "/productpage/" if is_read(request.method()) => {
                self.page(&request).await
            }
            "/productpage" | "/productpage/" => method_not_allowed(request.method(), "GET, HEAD"),
            path => no_such_path(path),
        }
    }
}
