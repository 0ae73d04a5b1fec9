//! Answers the controller's questions: the configuration in force, endpoints, and how much is logged.

use super::{MAX_PART, Sender};
use crate::admin::Admin;
use crate::telemetry::logging;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tulle_api::v1;
use tulle_api::v1::question::Kind;
use tulle_net::task;

/// Most bytes of an answer.
const MAX_ANSWER: usize = 4 << 20;
/// Longest that another level of the log is asked for.
const MAX_LEVEL: Duration = Duration::from_secs(3600);

/// Answers questions.
pub struct Questions {
    admin: Admin,
    /// Sets the level of the log back, and what that is.
    reset: Option<(JoinHandle<()>, &'static str)>,
}

impl Questions {
    /// Answers by what administration knows.
    pub fn new(admin: Admin) -> Self {
        Self { admin, reset: None }
    }

    /// Answers when the controller takes it.
    pub fn answer(&mut self, asked: v1::Question, sender: &Sender) {
        let (admin, sender) = (self.admin.clone(), sender.clone());
        let set = match &asked.kind {
            Some(Kind::LogLevel(wanted)) => Some(self.set_level(wanted)),
            _ => None,
        };
        task::start(async move {
            let answer = match asked.kind {
                Some(Kind::Config(_)) => Ok(admin.config()),
                Some(Kind::Endpoints(_)) => Ok(admin.endpoints().await),
                Some(Kind::LogLevel(_)) => set.unwrap_or_else(|| Ok(serde_json::Value::Null)),
                None => Err("this proxy does not know the question".to_owned()),
            };
            let answer = answer.map(|value| value.to_string());
            let answer = answer.and_then(|text| match text.len() <= MAX_ANSWER {
                true => Ok(text),
                false => Err(format!("the answer has {} bytes", text.len())),
            });
            for part in parts(asked.id, answer) {
                let message = v1::FromProxy {
                    answer: Some(part),
                    ..Default::default()
                };
                if sender.send(Box::new(message)).await.is_err() {
                    return;
                }
            }
        });
    }

    fn set_level(&mut self, wanted: &v1::SetLogLevel) -> Result<serde_json::Value, String> {
        let before = match self.reset.take_if(|(task, _)| !task.is_finished()) {
            Some((task, before)) => {
                task.abort();
                before
            }
            None => logging::level(),
        };
        if !logging::set_level(&wanted.level) {
            logging::set_level(before);
            return Err("the level is error, warn, info, debug or trace".to_owned());
        }
        let after =
            Duration::from_secs(wanted.seconds.into()).clamp(Duration::from_secs(1), MAX_LEVEL);
        tracing::info!(
            level = wanted.level,
            ?after,
            back_to = before,
            "another level of the log"
        );
        let reset = task::start(async move {
            sleep(after).await;
            logging::set_level(before);
        });
        self.reset = Some((reset, before));
        Ok(serde_json::json!({ "level": wanted.level, "seconds": after.as_secs() }))
    }
}

/// Cuts an answer into messages.
fn parts(question: u64, answer: Result<String, String>) -> Vec<v1::Answer> {
    let text = match answer {
        Ok(text) => text.into_bytes(),
        Err(error) => {
            return vec![v1::Answer {
                question,
                error,
                ..Default::default()
            }];
        }
    };
    let count = text.len().div_ceil(MAX_PART);
    let parts = text.chunks(MAX_PART).enumerate();
    let parts = parts.map(|(index, part)| v1::Answer {
        question,
        json: part.to_vec(),
        more: index + 1 < count,
        error: String::new(),
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_answer_comes_in_parts() {
        let text = "x".repeat(2 * MAX_PART + 1);
        let parts = parts(7, Ok(text.clone()));
        let more: Vec<bool> = parts.iter().map(|p| p.more).collect();
        assert_eq!(more, [true, true, false]);
        let joined: Vec<u8> = parts.into_iter().flat_map(|p| p.json).collect();
        assert_eq!(joined, text.into_bytes());
    }
}
