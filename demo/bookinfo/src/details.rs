//! Facts about the one book: `GET /details/{product}`.

use crate::catalogue::{BOOK, PRODUCT};
use crate::http::{Body, error, is_read, json, method_not_allowed, no_such_path};
use crate::server::Answer;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};

/// The service.
pub(crate) struct Details;

impl Answer for Details {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        match path.strip_prefix("/details/") {
            None => no_such_path(path),
            Some(_) if !is_read(request.method()) => {
                method_not_allowed(request.method(), "GET, HEAD")
            }
            Some(PRODUCT) => json(StatusCode::OK, &BOOK),
            Some(id) => error(StatusCode::NOT_FOUND, &format!("there is no book {id:?}")),
        }
    }
}
