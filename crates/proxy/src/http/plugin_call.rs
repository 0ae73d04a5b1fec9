//! Shows requests and responses to plugins (`filter/plugin`), and carries out what they wait for.

use crate::balance::Port;
use crate::codec::answered::Answered;
use crate::codec::request_values::Parties;
use crate::filter::ResponseHook;
use crate::filter::header_edit::Draft;
use crate::filter::plugin::{self, Plugin};
use crate::http::call;
use crate::telemetry::metrics::{add_plugin, add_plugin_count};
use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use crate::worker::{Worker, WorkerConfig};
use std::cell::Cell;
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

/// Bytes that frame a body of this length and its trailers, beyond which it counts as longer.
const fn framed(content: usize) -> usize {
    content + content / 8 + 1024
}

/// Begins a call of a plugin about a request. `None`: the request passes without it.
///
/// # Errors
/// The request may not pass.
pub fn begin(
    plugin: Arc<Plugin>,
    worker: &Rc<Worker>,
    draft: &Draft<'_>,
    [source, destination]: [Party; 2],
    has_body: bool,
    backends: Vec<String>,
) -> Result<Option<Shown>, Failure> {
    begin_about(plugin, worker, || Subject {
        source,
        destination,
        has_body,
        backends,
        ..Subject::new(plugin::request_head(draft))
    })
}

/// Begins a call of a plugin about a connection. `None`: the connection passes without it.
///
/// # Errors
/// It may not pass.
pub fn begin_connection(
    plugin: Arc<Plugin>,
    worker: &Rc<Worker>,
    [source, destination]: [Party; 2],
) -> Result<Option<Shown>, Failure> {
    begin_about(plugin, worker, || Subject {
        source,
        destination,
        ..Subject::default()
    })
}

fn begin_about(
    plugin: Arc<Plugin>,
    worker: &Rc<Worker>,
    subject: impl FnOnce() -> Subject,
) -> Result<Option<Shown>, Failure> {
    let begun = worker.plugins.engine(&plugin).and_then(|engine| {
        let call = engine.begin(subject())?;
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
        left_out: Cell::new(false),
    };
    Ok(Some(shown))
}

/// A request that a plugin has been shown, until its end.
pub struct Shown {
    plugin: Arc<Plugin>,
    worker: Rc<Worker>,
    engine: Rc<ScriptEngine>,
    call: CallId,
    /// It has failed, and the request passes without it.
    left_out: Cell<bool>,
}

type Waiting<'a> = Pin<Box<dyn Future<Output = (WishId, Result<Fetched, String>)> + 'a>>;

impl Shown {
    /// Runs a hook of the request and edits its head as the plugin says; false: the request passes without the plugin.
    async fn request(
        &self,
        hook: Hook,
        config: &Rc<WorkerConfig>,
        draft: &mut Draft<'_>,
    ) -> Result<bool, Failure> {
        match self.waited(hook, config).await {
            Ok(None) => {
                // Its body is another hook of the same call.
                if hook == Hook::Request {
                    count(&self.worker, &self.plugin, "passed");
                }
                plugin::edit(draft, &self.engine.take_request_edits(self.call));
                Ok(true)
            }
            Ok(Some(answer)) => {
                count(&self.worker, &self.plugin, "answered");
                Err(answered(&self.plugin, answer))
            }
            Err(failure) => self.failed(&failure).map(|()| false),
        }
    }

    /// Shows it the head of its request and edits that as the plugin says; false: the request passes without the plugin.
    ///
    /// # Errors
    /// The request may not pass, or the plugin has answered it.
    pub async fn look_at_request(
        &self,
        config: &Rc<WorkerConfig>,
        draft: &mut Draft<'_>,
    ) -> Result<bool, Failure> {
        self.request(Hook::Request, config, draft).await
    }

    /// The backend that the plugin has chosen, by its place in the rule of the route.
    pub fn backend(&self) -> Option<usize> {
        self.engine.chosen_backend(self.call)
    }

    /// Bytes of the request's body, with what frames it, that the plugin wants to see; 0: none.
    pub fn request_body_limit(&self) -> usize {
        match self.engine.wants_request_body(self.call) {
            true => framed(self.plugin.limits.body),
            false => 0,
        }
    }

    /// Shows it the body of its request, which may become another; true: it did. `whole`: all of it is there.
    ///
    /// # Errors
    /// The request may not pass, or the plugin has answered it.
    pub async fn look_at_request_body(
        &self,
        config: &Rc<WorkerConfig>,
        draft: &mut Draft<'_>,
        whole: bool,
    ) -> Result<bool, Failure> {
        let content = match self.content(draft, whole) {
            Ok(content) => content,
            Err(failure) => return self.failed(&failure).map(|()| false),
        };
        self.engine.give_body(self.call, content);
        let passed = self.request(Hook::RequestBody, config, draft).await?;
        Ok(passed && self.replace_body(draft))
    }

    /// Counts a failure; the plugin is shown no more of the request.
    fn failed(&self, failure: &ScriptFailure) -> Result<(), Failure> {
        self.left_out.set(true);
        judge(&self.worker, &self.plugin, failure)
    }

    /// Whether it looks at connections.
    pub fn looks_at_connections(&self) -> bool {
        self.engine.has(Hook::Connection)
    }

    /// Shows it the first bytes of a connection; false: it wants to see more.
    ///
    /// # Errors
    /// The connection may not go on.
    pub async fn look_at_connection(
        &self,
        config: &Rc<WorkerConfig>,
        bytes: &[u8],
    ) -> Result<bool, Failure> {
        let failure = if bytes.len() > self.plugin.limits.body {
            let text = "onConnection has not decided within limits.body".to_owned();
            let cause = FailureCause::Thrown;
            ScriptFailure { cause, text }
        } else {
            self.engine.give_body(self.call, bytes.to_vec());
            match self.waited(Hook::Connection, config).await {
                Ok(_) => match self.engine.take_verdict(self.call) {
                    None => return Ok(false),
                    Some(true) => {
                        count(&self.worker, &self.plugin, "passed");
                        return Ok(true);
                    }
                    Some(false) => {
                        count(&self.worker, &self.plugin, "answered");
                        let text = format!("plugin {} refuses it", self.plugin.name());
                        return Err(Failure::new(Reason::Denied, text));
                    }
                },
                Err(failure) => failure,
            }
        };
        self.failed(&failure).map(|()| true)
    }

    /// A body that is short enough.
    fn content(&self, draft: &Draft<'_>, whole: bool) -> Result<Vec<u8>, ScriptFailure> {
        let limit = self.plugin.limits.body;
        let content = whole.then(|| draft.content());
        content
            .filter(|content| content.len() <= limit)
            .ok_or_else(|| ScriptFailure {
                cause: FailureCause::Busy,
                text: format!("the body has more than {limit} bytes (limits.body)"),
            })
    }

    fn replace_body(&self, draft: &mut Draft<'_>) -> bool {
        let body = self.engine.take_body(self.call);
        if let Some(body) = &body {
            draft.replace_content(body);
        }
        body.is_some()
    }

    /// Does to a response what a hook did that has seen it.
    fn edit_response(
        &self,
        draft: &mut Draft<'_>,
        seen: Result<(), ScriptFailure>,
    ) -> Result<(), Failure> {
        match seen {
            Ok(()) => {
                plugin::edit(draft, &self.engine.take_response_edits(self.call));
                self.replace_body(draft);
                Ok(())
            }
            Err(failure) => self.failed(&failure),
        }
    }

    async fn waited(
        &self,
        hook: Hook,
        config: &Rc<WorkerConfig>,
    ) -> Result<Option<ScriptAnswer>, ScriptFailure> {
        let wishes = match self.engine.run(self.call, hook) {
            Turn::Done(answer) => return Ok(answer),
            Turn::Failed(failure) => return Err(failure),
            Turn::Waits(wishes) => wishes,
        };
        let done = tokio::time::timeout(PATIENCE, self.turns(wishes, config)).await;
        done.unwrap_or_else(|_| {
            Err(ScriptFailure {
                cause: FailureCause::Time,
                text: format!("it waits for more than {PATIENCE:?}"),
            })
        })
    }

    /// Settles wishes of a hook until it is done.
    async fn turns(
        &self,
        mut wishes: Vec<Wish>,
        config: &Rc<WorkerConfig>,
    ) -> Result<Option<ScriptAnswer>, ScriptFailure> {
        let mut waits: Vec<Waiting<'_>> = Vec::new();
        loop {
            waits.extend(wishes.into_iter().map(|wish| self.wait(wish, config)));
            let (id, result) = first(&mut waits).await;
            wishes = match self.engine.settle(self.call, id, result) {
                Turn::Done(answer) => return Ok(answer),
                Turn::Failed(failure) => return Err(failure),
                Turn::Waits(wishes) => wishes,
            };
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
                    let may_repeat = method.is_idempotent();
                    let kind = StreamKind::Http;
                    let call = call::call(&self.worker, &port, kind, method, may_repeat, &request);
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

    /// Whether it is to see the response, or the end.
    pub fn sees_more(&self) -> bool {
        let later = [Hook::Response, Hook::ResponseBody, Hook::Log];
        later.iter().any(|hook| self.engine.has(*hook))
    }
}

impl ResponseHook for Shown {
    fn look_at(&self, draft: &mut Draft<'_>) -> Result<(), Failure> {
        if self.left_out.get() {
            return Ok(());
        }
        let response = plugin::response_head(draft);
        let seen = self.engine.respond(self.call, response);
        self.edit_response(draft, seen)
    }

    fn body_limit(&self) -> usize {
        match !self.left_out.get() && self.engine.wants_response_body(self.call) {
            true => framed(self.plugin.limits.body),
            false => 0,
        }
    }

    fn take_tags(&self) -> Vec<(String, String)> {
        self.engine.take_tags(self.call)
    }

    fn look_at_body(&self, draft: &mut Draft<'_>, whole: bool) -> Result<(), Failure> {
        let content = self.content(draft, whole);
        let seen = content.and_then(|content| self.engine.respond_body(self.call, content));
        self.edit_response(draft, seen)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if self.engine.has(Hook::Log)
            && let Turn::Failed(failure) = self.engine.run(self.call, Hook::Log)
        {
            // The request is over.
            let _ = self.failed(&failure);
        }
        for (name, count) in self.engine.take_counts() {
            let plugin = self.plugin.name();
            self.worker
                .metrics
                .internal(|i| add_plugin_count(&mut i.plugin_counts, plugin, &name, count));
        }
        if !self.left_out.get() {
            self.worker.plugins.ended(&self.plugin, false);
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
