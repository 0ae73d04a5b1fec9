//! Questions to proxies, and their answers.

use super::{Proxy, lock};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tulle_api::v1;

/// Most questions without an answer.
const MAX_ASKED: usize = 64;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of an answer.
const MAX_ANSWER: usize = 4 << 20;

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// Too many are asked already.
    Busy,
    /// It said nothing in time, or left.
    Silent,
    /// It says why not.
    Refused(String),
}

type Reply = oneshot::Sender<Result<Vec<u8>, String>>;

/// Questions under way.
#[derive(Default)]
pub(crate) struct Questions {
    asked: Mutex<HashMap<u64, Asked>>,
    next: AtomicU64,
}

struct Asked {
    proxy: String,
    heard: Vec<u8>,
    reply: Reply,
}

impl Questions {
    /// Asks a proxy; the answer is JSON.
    pub(crate) async fn ask(
        &self,
        proxy: &Proxy,
        kind: v1::question::Kind,
    ) -> Result<Vec<u8>, Silence> {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let (reply, answer) = oneshot::channel();
        let asked = Asked {
            proxy: proxy.id.clone(),
            heard: Vec::new(),
            reply,
        };
        {
            let mut all = lock(&self.asked);
            all.retain(|_, asked| !asked.reply.is_closed());
            if all.len() >= MAX_ASKED {
                return Err(Silence::Busy);
            }
            all.insert(id, asked);
        }
        let question = v1::ToProxy {
            question: Some(v1::Question {
                id,
                kind: Some(kind),
            }),
            ..Default::default()
        };
        let answered = match proxy.send(question) {
            true => timeout(PATIENCE, answer).await,
            false => {
                lock(&self.asked).remove(&id);
                return Err(Silence::Silent);
            }
        };
        lock(&self.asked).remove(&id);
        match answered {
            Ok(Ok(Ok(json))) => Ok(json),
            Ok(Ok(Err(why))) => Err(Silence::Refused(why)),
            Ok(Err(_)) | Err(_) => Err(Silence::Silent),
        }
    }

    /// Takes a part of an answer; one that nobody waits for is dropped.
    pub(super) fn hear(&self, proxy: &str, answer: v1::Answer) {
        let mut all = lock(&self.asked);
        let Some(asked) = all.get_mut(&answer.question).filter(|a| a.proxy == proxy) else {
            return;
        };
        let fits = asked.heard.len() + answer.json.len() <= MAX_ANSWER;
        if fits {
            asked.heard.extend(answer.json);
        }
        if fits && answer.more {
            return;
        }
        if let Some(asked) = all.remove(&answer.question) {
            let said = match (fits, answer.error.is_empty()) {
                (false, _) => Err("its answer is too long".to_owned()),
                (true, true) => Ok(asked.heard),
                (true, false) => Err(answer.error.chars().take(512).collect()),
            };
            // The asker may have gone.
            let _ = asked.reply.send(said);
        }
    }

    /// A proxy that has left answers nothing.
    pub(super) fn left(&self, proxy: &str) {
        lock(&self.asked).retain(|_, asked| asked.proxy != proxy);
    }
}
