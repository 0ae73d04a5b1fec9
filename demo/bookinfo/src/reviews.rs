//! Reviews of the one book: `GET /reviews/{product}`, each with its rating from ratings.
//!
//! A review whose rating cannot be had is shown without one, with the reason: the page degrades,
//! it does not fail.

use crate::catalogue::{PRODUCT, REVIEWS, Review};
use crate::client::{Client, Upstream};
use crate::http::{Body, error, is_read, json, method_not_allowed, no_such_path, trace};
use crate::server::Answer;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, Response, StatusCode};
use serde::{Deserialize, Serialize};

/// The service.
pub(crate) struct Reviews {
    /// Calls ratings.
    pub client: Client,
    /// Where it is.
    pub ratings: Upstream,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReviewList {
    /// The product.
    pub product_id: String,
    /// Its reviews.
    pub reviews: Vec<RatedReview>,
    /// The identity under which ratings saw us, when it is in a mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratings_called_by: Option<String>,
}

/// A review with its rating.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RatedReview {
    /// Its id.
    pub id: String,
    /// The author.
    pub reviewer: String,
    /// The text of the review.
    pub text: String,
    /// 1 to 5.
    pub rating: Option<u8>,
    /// Why there is no rating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rating_error: Option<String>,
}

#[derive(Deserialize)]
struct Stars {
    rating: u8,
}

impl Reviews {
    async fn list(&self, headers: &HeaderMap) -> ReviewList {
        let [first, second] = &REVIEWS;
        let (first, second) = tokio::join!(
            self.rated(first, trace(headers)),
            self.rated(second, trace(headers))
        );
        let ratings_called_by = first.1.or(second.1);
        ReviewList {
            product_id: PRODUCT.into(),
            reviews: vec![first.0, second.0],
            ratings_called_by,
        }
    }

    async fn rated(&self, review: &Review, headers: HeaderMap) -> (RatedReview, Option<String>) {
        let path = format!("/ratings/{}", review.rating_id);
        let mut called_by = None;
        let rating = match self.client.get(&self.ratings, &path, headers).await {
            Ok(fetched) => {
                called_by = fetched.called_by;
                serde_json::from_slice::<Stars>(&fetched.body)
                    .map(|stars| stars.rating)
                    .map_err(|e| format!("the answer of {} is not a rating: {e}", self.ratings))
            }
            Err(e) => Err(e.to_string()),
        };
        let (rating, rating_error) = match rating {
            Ok(stars) => (Some(stars), None),
            Err(why) => (None, Some(why)),
        };
        let review = RatedReview {
            id: review.id.into(),
            reviewer: review.reviewer.into(),
            text: review.text.into(),
            rating,
            rating_error,
        };
        (review, called_by)
    }
}

impl Answer for Reviews {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        match path.strip_prefix("/reviews/") {
            None => no_such_path(path),
            Some(_) if !is_read(request.method()) => {
                method_not_allowed(request.method(), "GET, HEAD")
            }
            Some(PRODUCT) => json(StatusCode::OK, &self.list(request.headers()).await),
            Some(id) => error(StatusCode::NOT_FOUND, &format!("there is no book {id:?}")),
        }
    }
}
