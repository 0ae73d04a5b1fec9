//! Changes that a console may make, where the operator has allowed them.

use crate::response::{Answer, found, refusal};
use crate::sessions::SessionView;
use hyper::StatusCode;
use hyper::header::HeaderMap;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tulle_control::observe::{Observer, Question, Refusal};

/// The header with a session's token.
const CSRF: &str = "x-tulle-csrf";
/// Levels of a proxy's log.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
/// Longest time of another level.
const LONGEST: u32 = 3600;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogLevel {
    proxy: String,
    level: String,
    seconds: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Apply {
    yaml: String,
    #[serde(default)]
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delete {
    kind: String,
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Revoke {
    identity: String,
    #[serde(default)]
    reason: String,
}

/// Judges whether a session may act at all, before its body is read.
pub(crate) fn permit(
    allowed: bool,
    observer: &Observer,
    action: &str,
    session: &SessionView,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let in_cluster = observer.mesh().platform == "cluster";
    if !allowed {
        let fix = match in_cluster {
            true => "set `console.actions: true` of the chart, and upgrade the mesh",
            false => "start the mesh with `tulle up --console-actions`",
        };
        let what = "this console only shows: actions are not allowed";
        return Err(refusal(StatusCode::FORBIDDEN, "read_only", what, fix));
    }
    // There the API server judges who may write what.
    if in_cluster && action != "log-level" {
        let what = "objects of a cluster are changed by its API server";
        let fix = "use `kubectl`, with your own rights";
        return Err(refusal(StatusCode::FORBIDDEN, "read_only", what, fix));
    }
    let token = headers.get(CSRF).and_then(|token| token.to_str().ok());
    if !token.is_some_and(|token| session.allows(token)) {
        let what = "the request has not the token of this session";
        let fix = "reload the page";
        return Err(refusal(StatusCode::FORBIDDEN, "wrong_csrf", what, fix));
    }
    Ok(())
}

/// Does it.
pub(crate) async fn act(
    observer: &Observer,
    action: &str,
    user: &str,
    body: &[u8],
) -> Result<Answer, Refusal> {
    tracing::info!(user, action, "an action of the console");
    match action {
        "log-level" => {
            let asked: LogLevel = read(body)?;
            if !LEVELS.contains(&asked.level.as_str()) || !(1..=LONGEST).contains(&asked.seconds) {
                let what = "the level is none, or the time is not between 1 and 3600 seconds";
                return Err(bad_body(what));
            }
            let question = Question::SetLogLevel {
                level: asked.level,
                seconds: asked.seconds,
            };
            observer.ask(&asked.proxy, question).await?;
        }
        "apply" => {
            let asked: Apply = read(body)?;
            return Ok(found(&observer.apply(asked.yaml, asked.dry_run).await?));
        }
        "delete" => {
            let asked: Delete = read(body)?;
            observer.delete(asked.kind, asked.name).await?;
        }
        "revoke" => {
            let asked: Revoke = read(body)?;
            observer.revoke(asked.identity, asked.reason).await?;
        }
        _ => return Err(crate::api::no_path()),
    }
    Ok(found(&json!({})))
}

/// Reads a body of JSON.
pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| bad_body(&error.to_string()))
}

fn bad_body(what: &str) -> Refusal {
    let what = format!("the body is not as it should be: {what}");
    refusal(
        StatusCode::BAD_REQUEST,
        "bad_body",
        what,
        "docs/console.md has the form",
    )
}
