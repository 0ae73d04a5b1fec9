//! Tries a plugin on one request, without a mesh: `tulle plugin test` asks for it, as the engine is in this program alone.
//!
//! A trial comes as JSON on standard input and goes as JSON to standard output.

use crate::filter::plugin::Plugin;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::time::Instant;
use tulle_model::resource;
use tulle_script::{
    CallId, Fetched, Head, Hook, Party, ScriptAnswer, ScriptEngine, ScriptFailure, Subject, Turn,
    Wish, WishKind,
};

/// The largest trial in bytes.
const LARGEST: u64 = 4 << 20;
/// Turns of a call before it is given up.
const TURNS: usize = 1000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Trial {
    plugin: resource::Plugin,
    request: Message,
    /// The application's response.
    response: Message,
    /// SPIFFE id of the caller.
    #[serde(default)]
    source: String,
    /// Answers of services, by target.
    #[serde(default)]
    fetches: Vec<(String, String)>,
    /// Backends of the route's rule: `service:port`.
    #[serde(default)]
    backends: Vec<String>,
    /// How often it is run once more, for its time.
    #[serde(default)]
    times: u32,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Message {
    #[serde(skip_serializing_if = "String::is_empty")]
    method: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    path: String,
    #[serde(skip_serializing_if = "is_zero")]
    status: u16,
    headers: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(status: &u16) -> bool {
    *status == 0
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    /// The request as it goes on; none: it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<Message>,
    /// The response as it goes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<Message>,
    /// Whether the plugin gave it itself.
    answered: bool,
    /// The backend that it chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<String>,
    /// Names and values for the log.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<(String, String)>,
    /// Its counters, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    counts: Vec<(String, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Lines of the console.
    console: Vec<String>,
    /// Questions to services.
    fetched: Vec<String>,
    /// Microseconds of the first call, and of one of the further ones.
    first_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    each_us: Option<f64>,
    /// Memory of the engine afterwards, in bytes.
    memory: usize,
}

/// Reads a trial, runs it, and tells its outcome.
///
/// # Errors
/// The trial cannot be read, or the plugin does not compile or start.
pub fn run() -> Result<(), String> {
    let mut text = String::new();
    let mut input = io::stdin().lock().take(LARGEST);
    input.read_to_string(&mut text).map_err(|e| e.to_string())?;
    let trial: Trial = serde_json::from_str(&text).map_err(|e| format!("the trial: {e}"))?;
    let outcome = outcome(&trial)?;
    let text = serde_json::to_string(&outcome).map_err(|e| e.to_string())?;
    writeln!(io::stdout(), "{text}").map_err(|e| e.to_string())
}

fn outcome(trial: &Trial) -> Result<Outcome, String> {
    let plugin = Plugin::compile(&trial.plugin)?;
    let lines = Rc::new(RefCell::new(Vec::new()));
    let told = lines.clone();
    let console = move |level: &str, text: &str| told.borrow_mut().push(format!("{level}: {text}"));
    let engine = ScriptEngine::start_with(
        &plugin.program,
        &plugin.config,
        &plugin.limits,
        Rc::new(console),
    );
    let engine = engine.map_err(|e| e.to_string())?;
    let begun = Instant::now();
    let mut outcome = once(trial, &engine);
    outcome.first_us = begun.elapsed().as_secs_f64() * 1e6;
    outcome.memory = engine.memory();
    outcome.console = lines.take();
    if trial.times > 0 && outcome.error.is_none() {
        let begun = Instant::now();
        for _ in 0..trial.times {
            once(trial, &engine);
        }
        let all = begun.elapsed().as_secs_f64() * 1e6;
        outcome.each_us = Some(all / f64::from(trial.times));
    }
    Ok(outcome)
}

fn once(trial: &Trial, engine: &ScriptEngine) -> Outcome {
    let mut outcome = Outcome::default();
    let mut request = Head::request(&trial.request.method, &trial.request.path, &host(trial));
    fill(&mut request, &trial.request);
    let source = Party {
        identity: trial.source.clone(),
        service: trial
            .source
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned(),
        ..Party::default()
    };
    let call = engine.begin(Subject {
        source,
        has_body: trial.request.body.is_some(),
        backends: trial.backends.clone(),
        ..Subject::new(request)
    });
    let call = match call {
        Ok(call) => call,
        Err(failure) => return failed(outcome, &failure),
    };
    let (mut request_body, mut response_body) =
        (trial.request.body.clone(), trial.response.body.clone());
    let mut turn = turns(trial, engine, (call, Hook::Request), &mut outcome.fetched);
    if let (Turn::Done(None), Some(body)) = (&turn, &mut request_body)
        && engine.wants_request_body(call)
    {
        engine.give_body(call, body.clone().into_bytes());
        turn = turns(
            trial,
            engine,
            (call, Hook::RequestBody),
            &mut outcome.fetched,
        );
        replace(body, engine.take_body(call));
    }
    match turn {
        Turn::Done(None) => {}
        Turn::Done(Some(answer)) => {
            outcome.answered = true;
            outcome.response = Some(answered(answer));
        }
        Turn::Failed(failure) => outcome = failed(outcome, &failure),
        Turn::Waits(_) => outcome.error = Some("it waits for too much".to_owned()),
    }
    let goes_on = !outcome.answered && outcome.error.is_none();
    if goes_on {
        let mut response = Head::response(trial.response.status);
        fill(&mut response, &trial.response);
        let mut seen = engine.respond(call, response);
        if let (Ok(()), Some(body)) = (&seen, &mut response_body)
            && engine.wants_response_body(call)
        {
            seen = engine.respond_body(call, body.clone().into_bytes());
            replace(body, engine.take_body(call));
        }
        if let Err(failure) = seen {
            outcome = failed(outcome, &failure);
        }
    }
    if let Turn::Failed(failure) = engine.run(call, Hook::Log) {
        outcome = failed(outcome, &failure);
    }
    outcome.tags = engine.take_tags(call);
    outcome.counts = engine.take_counts().collect();
    let backend = engine.chosen_backend(call);
    let Some(subject) = engine.end(call) else {
        return outcome;
    };
    if goes_on {
        outcome.backend = backend.and_then(|place| subject.backends.get(place).cloned());
        outcome.request = Some(shown(&subject.request, request_body));
        let response = subject.response.as_ref();
        outcome.response = response.map(|response| shown(response, response_body));
    }
    outcome
}

fn replace(body: &mut String, by: Option<Vec<u8>>) {
    if let Some(by) = by {
        *body = String::from_utf8_lossy(&by).into_owned();
    }
}

/// Runs a hook of the request to its end. Timers are over at once.
fn turns(
    trial: &Trial,
    engine: &ScriptEngine,
    (call, hook): (CallId, Hook),
    fetched: &mut Vec<String>,
) -> Turn {
    let mut turn = engine.run(call, hook);
    let mut waits: Vec<Wish> = Vec::new();
    for _ in 0..TURNS {
        let Turn::Waits(wishes) = turn else {
            return turn;
        };
        waits.extend(wishes);
        if waits.is_empty() {
            return Turn::Waits(Vec::new());
        }
        let Wish { id, kind } = waits.remove(0);
        let result = match kind {
            WishKind::Timer(_) => Ok(Fetched::default()),
            WishKind::Fetch { target, method, .. } => {
                fetched.push(format!("{method} {target}"));
                let known = trial.fetches.iter().find(|(of, _)| *of == target);
                known.map_or_else(
                    || Err(format!("the trial does not say what {target} answers")),
                    |(_, body)| {
                        Ok(Fetched {
                            status: 200,
                            fields: Vec::new(),
                            body: body.clone().into_bytes(),
                        })
                    },
                )
            }
        };
        turn = engine.settle(call, id, result);
    }
    turn
}

fn failed(outcome: Outcome, failure: &ScriptFailure) -> Outcome {
    Outcome {
        error: Some(failure.to_string()),
        ..outcome
    }
}

fn host(trial: &Trial) -> String {
    let mut fields = trial.request.headers.iter();
    let host = fields.find(|(name, _)| name.eq_ignore_ascii_case("host"));
    host.map(|(_, value)| value.clone()).unwrap_or_default()
}

fn fill(head: &mut Head, message: &Message) {
    for (name, value) in &message.headers {
        head.push(name.as_bytes(), value.as_bytes());
    }
}

fn shown(head: &Head, body: Option<String>) -> Message {
    Message {
        method: head.method.clone(),
        path: head.path.clone(),
        status: head.status,
        headers: head
            .fields()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        body,
    }
}

fn answered(answer: ScriptAnswer) -> Message {
    Message {
        status: answer.status,
        headers: answer.fields,
        body: Some(String::from_utf8_lossy(&answer.body).into_owned()),
        ..Message::default()
    }
}
