//! Ratings: `GET /ratings/{id}` and `POST /ratings`.

use crate::http::{Body, MAX_BODY, answer, error, is_read, method_not_allowed, no_such_path};
use crate::server::Answer;
use crate::store::{PutError, Rating, Store};
use crate::uuid::Uuid;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{HeaderValue, LOCATION};
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use std::sync::Arc;

const JSON: &str = "application/json";

/// The service.
pub(crate) struct Ratings {
    store: Arc<Store>,
}

/// The body of a POST.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewRating {
    product_id: String,
    reviewer_id: String,
    rating: u8,
}

impl Ratings {
    /// Serves what is in the store.
    pub(crate) fn new(store: Store) -> Self {
        let store = Arc::new(store);
        Self { store }
    }

    /// Looks up in place rather than on another thread: a read takes about a microsecond, the
    /// page being in the cache.
    fn get(&self, id: &str) -> Response<Body> {
        let Some(id) = Uuid::parse(id) else {
            let message = format!("{id:?} is not the id of a rating: a UUID is expected");
            return error(StatusCode::BAD_REQUEST, &message);
        };
        match self.store.get(id) {
            Ok(Some(json)) => answer(StatusCode::OK, JSON, json),
            Ok(None) => error(StatusCode::NOT_FOUND, &format!("there is no rating {id}")),
            Err(e) => database_failed(&e),
        }
    }

    async fn post(&self, request: Request<Incoming>) -> Response<Body> {
        let body = match Limited::new(request.into_body(), MAX_BODY).collect().await {
            Ok(body) => body.to_bytes(),
            Err(e) if e.is::<http_body_util::LengthLimitError>() => {
                let message = format!("a rating has at most {MAX_BODY} bytes");
                return error(StatusCode::PAYLOAD_TOO_LARGE, &message);
            }
            Err(e) => return error(StatusCode::BAD_REQUEST, &e.to_string()),
        };
        let new: NewRating = match serde_json::from_slice(&body) {
            Ok(new) => new,
            Err(e) => {
                let message = format!(
                    "expected {{\"productId\": UUID, \"reviewerId\": UUID, \"rating\": 1 to 5}}: {e}"
                );
                return error(StatusCode::BAD_REQUEST, &message);
            }
        };
        if let Some(problem) = new.problem() {
            return error(StatusCode::BAD_REQUEST, problem);
        }
        let id = match Uuid::random() {
            Ok(id) => id,
            Err(e) => return database_failed(&format!("no random bytes for an id: {e}")),
        };
        let rating = Rating {
            id: id.to_string(),
            product_id: &new.product_id,
            reviewer_id: &new.reviewer_id,
            rating: new.rating,
        };
        let json = match serde_json::to_vec(&rating) {
            Ok(json) => json,
            Err(e) => return database_failed(&e.to_string()),
        };
        let (store, row) = (Arc::clone(&self.store), json.clone());
        match tokio::task::spawn_blocking(move || store.put(id, &row)).await {
            Ok(Ok(())) => created(id, json),
            Ok(Err(PutError::Full)) => error(
                StatusCode::INSUFFICIENT_STORAGE,
                "the sample keeps no more ratings; delete its database to start afresh",
            ),
            Ok(Err(PutError::Database(e))) => database_failed(&e),
            Err(e) => database_failed(&e.to_string()),
        }
    }
}

impl NewRating {
    fn problem(&self) -> Option<&'static str> {
        if Uuid::parse(&self.product_id).is_none() {
            Some("productId is not a UUID")
        } else if Uuid::parse(&self.reviewer_id).is_none() {
            Some("reviewerId is not a UUID")
        } else if !(1..=5).contains(&self.rating) {
            Some("rating is not 1 to 5")
        } else {
            None
        }
    }
}

fn created(id: Uuid, json: Vec<u8>) -> Response<Body> {
    let mut response = answer(StatusCode::CREATED, JSON, json);
    if let Ok(location) = HeaderValue::from_str(&format!("/ratings/{id}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

fn database_failed(why: &str) -> Response<Body> {
    eprintln!("ratings: the database failed: {why}");
    error(
        StatusCode::INTERNAL_SERVER_ERROR,
        &format!("the database failed: {why}"),
    )
}

impl Answer for Ratings {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        if path == "/ratings" {
            return match *request.method() {
                Method::POST => self.post(request).await,
                _ => method_not_allowed(request.method(), "POST"),
            };
        }
        match path.strip_prefix("/ratings/") {
            None => no_such_path(path),
            Some(id) if is_read(request.method()) => self.get(id),
            Some(_) => method_not_allowed(request.method(), "GET, HEAD"),
        }
    }
}
