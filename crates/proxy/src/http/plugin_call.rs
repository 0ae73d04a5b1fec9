//! Shows requests and responses to plugins (`filter/plugin`), and carries out what they wait for.

use crate::balance::Port;
use crate::codec::answered::Answered;
use crate::codec::request_values::Parties;
use crate::filter::ResponseHook;
use crate::filter::header_edit::Draft;
use crate::filter::plugin::{self, Plugin};
use crate::http::call;
use crate::telemetry::metrics::add_plugin;
use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use crate::worker::{Worker, WorkerConfig};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tulle_http1::{Method, is_field_name, is_field_value, write_line};
use tulle_script::{
    CallId, FailureCause, Fetched, Hook, Party, ScriptAnswer, ScriptEngine, ScriptFailure, Subject,
    Turn, Wish, WishId, WishKind,
};
use tulle_transport::StreamKind;

/// How long a hook may wait, all its wishes together.
const PATIENCE: Duration = Duration::from_secs(60);

/// Caller and destination, as plugins see them.
pub fn parties(parties: &dyn Parties) -> [Party; 2] {
    let id = |id: Option<&tulle_model::identity::SpiffeId>| {
        id.map(|id| id.to_string()).unwrap_or_default()
    };
    let namespace = |id: Option<&tulle_model::identity::SpiffeId>| {
        let account = id.and_then(|id| id.service_account());
        account
            .map(|(namespace, _)| namespace.to_owned())
            .unwrap_or_default()
    };
    let (source, destination) = (parties.source(), parties.destination());
    [
        Party {
            identity: id(source),
            namespace: namespace(source),
            service: source.map(|id| id.name().to_owned()).unwrap_or_default(),
            address: parties.address().map(|a| a.to_string()).unwrap_or_default(),
        },
        Party {
            identity: id(destination),
            namespace: namespace(destination),
            service: parties.service().to_owned(),
            address: String::new(),
        },
    ]
}

/// Shows a request to a plugin and edits it as the plugin says. Returns what is to see the response.
///
/// # Errors
/// The request may not pass, or the plugin has answered it.
pub async fn run(
    plugin: Arc<Plugin>,
    worker: &Rc<Worker>,
    config: &Rc<WorkerConfig>,
    draft: &mut Draft<'_>,
    [source, destination]: [Party; 2],
) -> Result<Option<Box<dyn ResponseHook>>, Failure> {
    let begun = worker.plugins.engine(&plugin).and_then(|engine| {
        let request = plugin::request_head(draft);
        let call = engine.begin(Subject {
            source,
            destination,
            ..Subject::new(request)
        })?;
        Ok((engine, call))
    });
    let (engine, call) = match begun {
        Ok(begun) => begun,
        Err(failure) => return judge(worker, &plugin, &failure).map(|()| None),
    };
    let shown = Shown {
        plugin,
        worker: worker.clone(),
        engine,
        call,
    };
    let waiting = shown.request(config);
    let done = tokio::time::timeout(PATIENCE, waiting).await;
    let done = done.unwrap_or_else(|_| {
        Err(ScriptFailure {
            cause: FailureCause::Time,
            text: format!("it waits for more than {PATIENCE:?}"),
        })
    });
    match done {
        Ok(None) => {
            shown.count("passed");
            shown
                .engine
                .request_edits(shown.call, |edits| plugin::edit(draft, edits));
            Ok(shown.sees_more().then(|| Box::new(shown) as _))
        }
        Ok(Some(answer)) => {
            shown.count("answered");
            Err(answered(&shown.plugin, answer))
        }
        Err(failure) => judge(worker, &shown.plugin, &failure).map(|()| None),
    }
}

/// A request that a plugin has been shown, until its end.
struct Shown {
    plugin: Arc<Plugin>,
    worker: Rc<Worker>,
    engine: Rc<ScriptEngine>,
    call: CallId,
}

type Waiting<'a> = Pin<Box<dyn Future<Output = (WishId, Result<Fetched, String>)> + 'a>>;

impl Shown {
    async fn request(
        &self,
        config: &Rc<WorkerConfig>,
    ) -> Result<Option<ScriptAnswer>, ScriptFailure> {
        let mut turn = self.engine.run(self.call, Hook::Request);
        let mut waits: Vec<Waiting<'_>> = Vec::new();
        loop {
            let wishes = match turn {
                Turn::Done(answer) => return Ok(answer),
                Turn::Failed(failure) => return Err(failure),
                Turn::Waits(wishes) => wishes,
            };
            waits.extend(wishes.into_iter().map(|wish| self.wait(wish, config)));
            let (id, result) = first(&mut waits).await;
            turn = self.engine.settle(self.call, id, result);
        }
    }

    /// Returns the future that settles a wish.
    fn wait<'a>(&'a self, wish: Wish, config: &'a Rc<WorkerConfig>) -> Waiting<'a> {
        let id = wish.id;
        match wish.kind {
            WishKind::Timer(time) => Box::pin(async move {
                tokio::time::sleep(time).await;
                (id, Ok(Fetched::default()))
            }),
            WishKind::Fetch {
                target,
                method,
                fields,
                body,
                timeout,
            } => Box::pin(async move {
                let fetching = async {
                    let (port, path) = self.destination(&target, config)?;
                    let (method, request) = question(&target, path, &method, &fields, &body)?;
                    let call = call::call(&self.worker, &port, StreamKind::Http, method, &request);
                    let answered = call.await.map_err(|failure| failure.to_string())?;
                    Ok(fetched(answered))
                };
                let result = tokio::time::timeout(timeout, fetching).await;
                let late = |_| Err(format!("{target}: no answer within {timeout:?}"));
                (id, result.unwrap_or_else(late))
            }),
        }
    }

    /// The port of `service:port/path`, and the path.
    fn destination<'a>(
        &self,
        target: &'a str,
        config: &WorkerConfig,
    ) -> Result<(Rc<Port>, &'a str), String> {
        let (place, path) = match target.find('/') {
            Some(at) => target.split_at(at),
            None => (target, "/"),
        };
        let named = place.rsplit_once(':').and_then(|(service, port)| {
            let port: u16 = port.parse().ok()?;
            Some((service, port))
        });
        let (service, number) =
            named.ok_or_else(|| format!("{target} is not service:port/path"))?;
        let service = self.plugin.service(service);
        let service =
            service.ok_or_else(|| format!("{place} is not among the services of the plugin"))?;
        let destination = self.worker.destination(config, service);
        let destination = destination.ok_or_else(|| format!("service {service} does not exist"))?;
        let port = destination.port(number).cloned();
        let port = port.ok_or_else(|| format!("service {service} has no port {number}"))?;
        Ok((port, path))
    }

    fn sees_more(&self) -> bool {
        self.engine.has(Hook::Response) || self.engine.has(Hook::Log)
    }

    fn count(&self, outcome: &'static str) {
        count(&self.worker, &self.plugin, outcome);
        self.worker.plugins.ended(&self.plugin, false);
    }
}

impl ResponseHook for Shown {
    fn look_at(&self, draft: &mut Draft<'_>) -> Result<(), Failure> {
        let response = plugin::response_head(draft);
        match self.engine.respond(self.call, response) {
            Ok(()) => {
                self.engine
                    .response_edits(self.call, |edits| plugin::edit(draft, edits));
                Ok(())
            }
            Err(failure) => judge(&self.worker, &self.plugin, &failure),
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if self.engine.has(Hook::Log)
            && let Turn::Failed(failure) = self.engine.run(self.call, Hook::Log)
        {
            // The request is over.
            let _ = judge(&self.worker, &self.plugin, &failure);
        }
        self.engine.end(self.call);
    }
}

/// Waits until one of them is done, and removes it.
async fn first(waits: &mut Vec<Waiting<'_>>) -> (WishId, Result<Fetched, String>) {
    poll_fn(|cx| {
        for (at, wait) in waits.iter_mut().enumerate() {
            if let Poll::Ready(done) = wait.as_mut().poll(cx) {
                drop(waits.swap_remove(at));
                return Poll::Ready(done);
            }
        }
        Poll::Pending
    })
    .await
}

/// Counts a failure and says what it means for the request.
fn judge(worker: &Worker, plugin: &Arc<Plugin>, failure: &ScriptFailure) -> Result<(), Failure> {
    let outcome = match failure.cause {
        FailureCause::Thrown => "thrown",
        FailureCause::Time => "time",
        FailureCause::Memory => "memory",
        FailureCause::Busy => "busy",
    };
    count(worker, plugin, outcome);
    // Too many requests are not the plugin's fault.
    if failure.cause != FailureCause::Busy && worker.plugins.ended(plugin, true) {
        tracing::warn!(plugin = &**plugin.name(), %failure, "left out after failures in a row");
    }
    let text = format!("plugin {}: {failure}", plugin.name());
    if plugin.fail_open {
        tracing::debug!(plugin = &**plugin.name(), %failure, "passes without it");
        return Ok(());
    }
    Err(Failure::new(Reason::PluginFailed, text))
}

fn count(worker: &Worker, plugin: &Plugin, outcome: &'static str) {
    let name = plugin.name();
    worker
        .metrics
        .internal(|i| add_plugin(&mut i.plugins, name, outcome, 1));
}

fn answered(plugin: &Plugin, answer: ScriptAnswer) -> Failure {
    let mut kind = String::from("application/octet-stream");
    let mut headers = Vec::new();
    for (name, value) in answer.fields {
        match &*name {
            "content-type" => kind = value,
            _ => headers.push((name, plugin::bytes(&value))),
        }
    }
    let text = format!("by the plugin {}", plugin.name());
    Failure::new(Reason::Responded, text).with_response(LocalResponse {
        status: answer.status,
        headers,
        body: Some((kind, answer.body)),
    })
}

/// A request of a plugin to a service.
fn question(
    target: &str,
    path: &str,
    method: &str,
    fields: &[(String, String)],
    body: &[u8],
) -> Result<(Method, Vec<u8>), String> {
    let fits = |b: u8| b.is_ascii_graphic() && b != b'#';
    if !path.bytes().all(fits) {
        return Err(format!(
            "{target}: the path has blanks, or letters beyond ASCII"
        ));
    }
    if !is_field_name(method.as_bytes()) {
        return Err(format!("{method:?} is no method"));
    }
    let known = Method::from_bytes(method.as_bytes());
    if known == Method::Connect {
        return Err("a plugin opens no tunnel".to_owned());
    }
    let host = target.split('/').next().unwrap_or_default();
    let mut out = Vec::with_capacity(256 + body.len());
    for part in [method, " ", path, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    write_line("host", host.as_bytes(), &mut out);
    for (name, value) in fields {
        let value = plugin::bytes(value);
        if is_field_name(name.as_bytes()) && is_field_value(&value) {
            write_line(name, &value, &mut out);
        }
    }
    let length = body.len().to_string();
    write_line("content-length", length.as_bytes(), &mut out);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
    Ok((known, out))
}

fn fetched(answered: Answered) -> Fetched {
    let text = |bytes: &[u8]| bytes.iter().copied().map(char::from).collect::<String>();
    let fields = tulle_http1::headers(&answered.head);
    Fetched {
        status: answered.status,
        fields: fields
            .map(|(name, value)| (text(name).to_ascii_lowercase(), text(value)))
            .collect(),
        body: answered.body,
    }
}
