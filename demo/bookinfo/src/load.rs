//! Asks without a pause for breath and keeps account of what was lost, and how: a client that looks
//! on while things are restarted.
//!
//! The difference matters. A new connection that is refused, one that ends before its answer, an
//! answer that is cut off: each has a cause of its own.

use crate::dial::{Connection, Dial, Failure, Manner};
use crate::http::{Body, json};
use crate::server::Answer;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, Uri};
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Longest wait for a connection, and for an answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// Losses that are told in words; all are counted.
const MAX_TOLD: usize = 20;

/// The results of the requests.
#[derive(Debug, Default, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Account {
    /// Answered with 200, to the end; on kept connections and on new ones.
    answered_kept: u64,
    answered_new: u64,
    /// The name was not found, which is no matter of connections: DNS is asked over UDP.
    unresolved: u64,
    /// A mesh says that nobody is ready to be asked.
    nobody: u64,
    /// No connection.
    refused: u64,
    /// The connection ended with no byte of an answer: one that had answered before, and a new one.
    ended_kept: u64,
    ended_new: u64,
    /// The answer had begun and was cut off.
    cut: u64,
    /// Answered with something else than 200.
    status: u64,
    /// Not answered in time.
    late: u64,
    /// The longest answer.
    longest_ms: u64,
    /// The first losses in words, with the time.
    lost: Vec<String>,
}

/// The use of a lane's connection after an answer.
#[derive(Clone, Copy)]
enum Habit {
    Keep,
    Close,
}

/// Says what became of the requests so far, to whoever asks.
pub(crate) struct Load(Arc<Mutex<Account>>);

/// A lost request, by cause.
enum Loss {
    Unconnected(Failure),
    Nobody,
    Ended(String),
    Cut(String),
    Status(String),
    Late,
}

impl Load {
    /// Starts: for each URL so many lanes that keep their connection, and as many that do not.
    pub(crate) fn start(
        urls: &[Uri],
        manner: &Manner,
        lanes: usize,
        pause: Duration,
    ) -> Result<Self, String> {
        let account = Arc::new(Mutex::new(Account::default()));
        for url in urls {
            let dial = Dial::new(url, manner)?;
            for habit in [Habit::Keep, Habit::Close] {
                for _ in 0..lanes {
                    let lane = Lane {
                        url: url.clone(),
                        dial: dial.clone(),
                        habit,
                        account: Arc::clone(&account),
                    };
                    tokio::spawn(lane.run(pause));
                }
            }
        }
        Ok(Self(account))
    }
}

impl Answer for Load {
    async fn answer(&self, _: Request<Incoming>) -> Response<Body> {
        let account = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        json(StatusCode::OK, &*account)
    }
}

struct Lane {
    url: Uri,
    dial: Dial,
    habit: Habit,
    account: Arc<Mutex<Account>>,
}

impl Lane {
    async fn run(self, pause: Duration) {
        let mut kept = None;
        loop {
            let (began, used) = (Instant::now(), kept.is_some());
            let asked = tokio::time::timeout(PATIENCE, self.ask(&mut kept));
            let outcome = asked.await.unwrap_or(Err(Loss::Late));
            if matches!(self.habit, Habit::Close) {
                kept = None;
            }
            self.enter(outcome, used, began);
            tokio::time::sleep(pause).await;
        }
    }

    /// One request. A kept connection that has ended meanwhile is no loss: nothing was sent.
    async fn ask(&self, kept: &mut Option<Connection>) -> Result<(), Loss> {
        let request = self.dial.request();
        let mut request = request.map_err(|e| Loss::Status(e.to_string()))?;
        loop {
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => self.dial.connect().await.map_err(Loss::Unconnected)?,
            };
            match connection.ask(request).await {
                Ok(answer) => {
                    let status = answer.status();
                    let reason = answer.headers().get("x-tulle-reason").cloned();
                    let body = answer.into_body().collect().await;
                    let body = body.map_err(|e| Loss::Cut(e.to_string()))?.to_bytes();
                    // As usual clients do: a refusal is no reason to leave a connection.
                    *kept = connection.goes_on().await.then_some(connection);
                    if reason.as_ref().is_some_and(|r| r == "no_endpoint") {
                        return Err(Loss::Nobody);
                    }
                    if status != StatusCode::OK {
                        let body = String::from_utf8_lossy(&body[..body.len().min(200)]);
                        return Err(Loss::Status(format!("{status} {reason:?} {body}")));
                    }
                    return Ok(());
                }
                Err(mut e) => match e.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(Loss::Ended(causes(&e.into_error()))),
                },
            }
        }
    }

    fn enter(&self, outcome: Result<(), Loss>, used: bool, began: Instant) {
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        account.longest_ms = account.longest_ms.max(took);
        let (count, why) = match outcome {
            Ok(()) if used => return account.answered_kept += 1,
            Ok(()) => return account.answered_new += 1,
            Err(Loss::Unconnected(Failure::Unresolved(why))) => (&mut account.unresolved, why),
            Err(Loss::Nobody) => (&mut account.nobody, "nobody is ready".to_owned()),
            Err(Loss::Unconnected(Failure::Refused(why))) => {
                (&mut account.refused, format!("refused: {why}"))
            }
            Err(Loss::Ended(why)) if used => (&mut account.ended_kept, format!("ended: {why}")),
            Err(Loss::Ended(why)) => (&mut account.ended_new, format!("new, ended: {why}")),
            Err(Loss::Cut(why)) => (&mut account.cut, format!("cut: {why}")),
            Err(Loss::Status(why)) => (&mut account.status, why),
            Err(Loss::Late) => (&mut account.late, "late".to_owned()),
        };
        *count += 1;
        if account.lost.len() < MAX_TOLD {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let now = now.map_or(0, |since| since.as_millis());
            let told = format!("{now} after {took} ms: {} {why}", self.url);
            account.lost.push(told);
        }
    }
}

/// The error and what it came of.
fn causes(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |e| e.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
