//! Responses: their bodies, headers, and the form of errors.

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tulle_control::observe::Refusal;

/// The page may load and connect to nothing but its own origin, run no inline script, and be in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; font-src 'self'; worker-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Headers of every response.
const HEADERS: [(&str, &str); 7] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    (
        "permissions-policy",
        "camera=(), geolocation=(), microphone=()",
    ),
];

/// A response.
pub(crate) type Answer = Response<AnswerBody>;

/// A stream of frames that comes as it is made.
pub(crate) type Frames = Box<dyn Body<Data = Bytes, Error = Infallible> + Send + Unpin>;

/// Its body.
pub(crate) enum AnswerBody {
    /// Known from the beginning.
    Whole(Option<Bytes>),
    /// Events.
    Stream(Frames),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(frames) => Pin::new(frames).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// Builds a response with the headers that every one has.
pub(crate) fn response(
    status: StatusCode,
    kind: &'static str,
    cache: &'static str,
    body: AnswerBody,
) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
    for (name, value) in HEADERS {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    response
}

/// Answers in JSON, which nobody keeps.
pub(crate) fn json_answer(status: StatusCode, value: &impl Serialize) -> Answer {
    let (status, bytes) = match serde_json::to_vec(value) {
        Ok(bytes) => (status, bytes),
        Err(error) => {
            tracing::error!(%error, "an answer of the console is no JSON");
            let text = r#"{"error":{"code":"internal","message":"the answer is no JSON","fix":"report this as a bug"}}"#;
            (StatusCode::INTERNAL_SERVER_ERROR, text.into())
        }
    };
    let body = AnswerBody::Whole(Some(bytes.into()));
    response(status, "application/json", "no-store", body)
}

/// Answers with what was found.
pub(crate) fn found(value: &impl Serialize) -> Answer {
    json_answer(StatusCode::OK, value)
}

/// Says why there is no other answer.
pub(crate) fn refuse(why: &Refusal) -> Answer {
    let status = StatusCode::from_u16(why.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let error = json!({ "code": why.code, "message": why.message, "fix": why.fix });
    let mut answer = json_answer(status, &json!({ "error": error }));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        let headers = answer.headers_mut();
        headers.insert(ALLOW, HeaderValue::from_static("GET, POST"));
    }
    answer
}

/// A refusal of the console's own.
pub(crate) fn refusal(
    status: StatusCode,
    code: &'static str,
    message: impl Into<String>,
    fix: &str,
) -> Refusal {
    Refusal {
        code,
        message: message.into(),
        fix: fix.to_owned(),
        status: status.as_u16(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_forbids_other_origins_frames_and_guesses() {
        for answer in [
            found(&1),
            refuse(&refusal(StatusCode::NOT_FOUND, "not_found", "a", "b")),
        ] {
            let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
            assert!(header("content-security-policy").starts_with("default-src 'none'; "));
            assert!(!header("content-security-policy").contains("unsafe"));
            assert!(header("content-security-policy").contains("frame-ancestors 'none'"));
            assert_eq!(header("x-content-type-options"), "nosniff");
            assert_eq!(header("referrer-policy"), "no-referrer");
            assert_eq!(header("cache-control"), "no-store");
        }
    }

    #[test]
    fn a_wrong_method_is_told_the_right_ones() {
        let why = refusal(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", "", "");
        assert_eq!(refuse(&why).headers()["allow"], "GET, POST");
    }
}
