//! One request: is it from here, whose is it, and who answers it.

use crate::actions;
use crate::api::{self, no_path};
use crate::events::Feed;
use crate::guard::{API, Guard};
use crate::page;
use crate::query::Query;
use crate::response::{Answer, found, refusal, refuse};
use crate::sessions::{NoRandom, SESSION_LIFETIME, SessionView, Sessions};
use crate::stream::Streams;
use crate::{ConsoleVisitors, tap};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, COOKIE, HeaderMap, HeaderValue, SET_COOKIE};
use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tulle_control::observe::{Observer, Refusal};
use tulle_net::places::{HeldPlace, Stage};

/// Longest body of an action.
const MAX_BODY: usize = 256 * 1024;
/// Longest body of whoever has no session yet: a code, or a token of at most 16 KiB.
const MAX_KEY: usize = 20 * 1024;
/// Time limit of a body.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Bodies of actions that are read at a time.
const BODIES: usize = 4;
/// Tokens that the API server is asked about at a time.
const REVIEWS: usize = 4;

/// Answers requests.
pub(crate) struct Router {
    pub(crate) observer: Observer,
    pub(crate) guard: Guard,
    pub(crate) sessions: Sessions,
    pub(crate) feed: Arc<Feed>,
    pub(crate) streams: Streams,
    pub(crate) actions: bool,
    pub(crate) visitors: Option<ConsoleVisitors>,
    pub(crate) bodies: Semaphore,
    pub(crate) reviews: Semaphore,
}

/// Opens a session.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
enum Key {
    /// A one-time code.
    Code(String),
    /// A bearer token of a user of the cluster.
    Token(String),
}

impl Router {
    /// Places for bodies of actions and reviews.
    pub(crate) fn places() -> (Semaphore, Semaphore) {
        (Semaphore::new(BODIES), Semaphore::new(REVIEWS))
    }

    /// Answers a request of a connection.
    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
        connection: &Arc<HeldPlace>,
    ) -> Answer {
        let (head, body) = request.into_parts();
        let answered = self.dispatch(&head, body, connection).await;
        answered.unwrap_or_else(|why| refuse(&why))
    }

    async fn dispatch(
        &self,
        head: &Parts,
        body: Incoming,
        connection: &Arc<HeldPlace>,
    ) -> Result<Answer, Refusal> {
        let host = self.guard.check(head)?;
        let path = head.uri.path();
        let name = cookie_name(host);
        let Some(path) = path.strip_prefix(API) else {
            let page = (head.method == Method::GET).then(|| page::answer(path, &head.headers));
            return page.flatten().ok_or_else(no_path);
        };
        if (&head.method, path) == (&Method::POST, "session") {
            return self.open(head, body, &name, connection).await;
        }
        let session = self.session(&head.headers, &name)?;
        let query = Query::parse(head.uri.query().unwrap_or_default());
        if head.method == Method::GET {
            connection.reach(Stage::Served);
            let answered = self.read(path, &query, &session, connection).await;
            return answered;
        }
        let Some(action) = path.strip_prefix("actions/") else {
            return Err(no_path());
        };
        actions::permit(
            self.actions,
            &self.observer,
            action,
            &session,
            &head.headers,
        )?;
        let place = self.bodies.try_acquire();
        let place = place.map_err(|_| busy("bodies are read"))?;
        let body = self.body(&head.headers, body, MAX_BODY, connection).await?;
        drop(place);
        actions::act(&self.observer, action, &session.user, &body).await
    }

    async fn read(
        &self,
        path: &str,
        query: &Query,
        session: &SessionView,
        connection: &Arc<HeldPlace>,
    ) -> Result<Answer, Refusal> {
        match path {
            "session" => {
                query.only(&[])?;
                Ok(self.facts(session))
            }
            "events" => {
                query.only(&[])?;
                let follow = || Ok(self.feed.follow());
                self.streams.open(session, connection, follow)
            }
            "tap" => {
                let follow = || tap::follow(&self.observer, query);
                self.streams.open(session, connection, follow)
            }
            path => {
                let answered = api::answer(&self.observer, path, query).await;
                connection.reach(Stage::Silent);
                answered
            }
        }
    }

    /// The session of a request.
    fn session(&self, headers: &HeaderMap, name: &str) -> Result<SessionView, Refusal> {
        let session = cookie(headers, name).and_then(|cookie| self.sessions.find(cookie));
        session.ok_or_else(|| {
            let what = "there is no session, or its twelve hours are over";
            let fix = "run `tulle dashboard` again";
            refusal(StatusCode::UNAUTHORIZED, "no_session", what, fix)
        })
    }

    fn facts(&self, session: &SessionView) -> Answer {
        found(&json!({
            "user": &*session.user,
            "actions": self.actions,
            "csrf": &*session.csrf,
            "expiresAt": session.expires_at(),
            "mesh": self.observer.mesh(),
        }))
    }

    /// Exchanges a code for a session, or a user's token for a code.
    async fn open(
        &self,
        head: &Parts,
        body: Incoming,
        name: &str,
        connection: &Arc<HeldPlace>,
    ) -> Result<Answer, Refusal> {
        // Anybody on this host may begin one, so it takes no place that an operator would lack: the number of connections
        // bounds it.
        let body = self.body(&head.headers, body, MAX_KEY, connection).await?;
        match actions::read(&body)? {
            Key::Code(code) => self.open_with_code(&code, name),
            Key::Token(token) => self.code_for_token(token).await,
        }
    }

    fn open_with_code(&self, code: &str, name: &str) -> Result<Answer, Refusal> {
        let cookie = self.sessions.open(code).map_err(no_random)?;
        let session = cookie
            .as_deref()
            .and_then(|cookie| self.sessions.find(cookie));
        let (Some(cookie), Some(session)) = (cookie, session) else {
            let what = "the code was used, is older than a minute, or was never made";
            let fix = "run `tulle dashboard` again";
            return Err(refusal(StatusCode::UNAUTHORIZED, "no_session", what, fix));
        };
        tracing::info!(user = &*session.user, "a session of the console");
        let age = SESSION_LIFETIME.as_secs();
        let text = format!("{name}={cookie}; HttpOnly; SameSite=Strict; Path=/; Max-Age={age}");
        let mut answer = self.facts(&session);
        // The name and the cookie are of letters and digits.
        if let Ok(value) = HeaderValue::from_str(&text) {
            answer.headers_mut().insert(SET_COOKIE, value);
        }
        Ok(answer)
    }

    async fn code_for_token(&self, token: String) -> Result<Answer, Refusal> {
        let Some(visitors) = &self.visitors else {
            let what = "this console takes no tokens: it is not in a cluster";
            let fix = "run `tulle dashboard` on its host, as the user who runs the mesh";
            return Err(refusal(StatusCode::BAD_REQUEST, "no_tokens", what, fix));
        };
        let place = self.reviews.try_acquire();
        let _place = place.map_err(|_| busy("tokens are reviewed"))?;
        let user = visitors(token).await?;
        let code = self.sessions.code(&user).map_err(no_random)?;
        Ok(found(&json!({ "code": code })))
    }

    /// Reads a body of JSON.
    async fn body(
        &self,
        headers: &HeaderMap,
        body: Incoming,
        most: usize,
        connection: &Arc<HeldPlace>,
    ) -> Result<Bytes, Refusal> {
        let kind = headers
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
        if !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
            let what = "the body is not announced as JSON";
            let fix = "send `content-type: application/json`";
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(refusal(status, "bad_body", what, fix));
        }
        // Whoever sends slowly can be displaced meanwhile: the connection is silent until its body is whole.
        let read = timeout(BODY_TIME, Limited::new(body, most).collect()).await;
        connection.reach(Stage::Served);
        match read {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(_)) => {
                let what = format!("the body is longer than {most} bytes, or it was cut");
                let status = StatusCode::PAYLOAD_TOO_LARGE;
                Err(refusal(status, "bad_body", what, "send less"))
            }
            Err(_) => {
                let what = "the body did not come within ten seconds";
                let status = StatusCode::REQUEST_TIMEOUT;
                Err(refusal(status, "bad_body", what, "send it again"))
            }
        }
    }
}

fn busy(what: &str) -> Refusal {
    let what = format!("too many {what} at the moment");
    let fix = "try again in a moment";
    refusal(StatusCode::SERVICE_UNAVAILABLE, "busy", what, fix)
}

fn no_random(NoRandom: NoRandom) -> Refusal {
    let what = "the system has no random numbers";
    let fix = "see the controller's log";
    refusal(StatusCode::INTERNAL_SERVER_ERROR, "internal", what, fix)
}

/// Cookies know no ports: each console of a host has a name of its own.
fn cookie_name(host: &str) -> String {
    let port = host.rsplit_once(':').map_or("80", |(_, port)| port);
    format!("tulle-console-{port}")
}

fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(COOKIE).iter();
    let mut pairs = all
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    pairs
        .find(|(known, _)| *known == name)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; tulle-console-15=no"));
        headers.append(COOKIE, HeaderValue::from_static("tulle-console-1=x=y; b"));
        assert_eq!(cookie(&headers, &cookie_name("127.0.0.1:1")), Some("x=y"));
        assert_eq!(cookie(&headers, &cookie_name("[::1]:15")), Some("no"));
        assert_eq!(cookie(&headers, &cookie_name("localhost")), None);
    }
}
