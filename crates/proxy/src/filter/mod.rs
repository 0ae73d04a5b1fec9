//! The filters of a route (or of an inbound rule), compiled, in their order. They edit a request
//! before it goes on, and its response.
//!
//! `run` goes as far as edits suffice. It stops with an effect where a filter wants more (a delay, a question to
//! another service, a copy), which `http/exchange/filters.rs` executes, and ends with a failure where a filter answers
//! in place of the upstream. Filters know no worker, no connection and no other request.

pub(crate) mod cors;
pub(crate) mod expression;
pub(crate) mod ext_authz;
pub(crate) mod fault;
pub(crate) mod header_edit;
pub mod jwt;
pub(crate) mod mirror;
#[cfg(feature = "plugins")]
pub(crate) mod plugin;
#[cfg(not(feature = "plugins"))]
#[path = "without_plugins.rs"]
pub(crate) mod plugin;
pub(crate) mod rate_limit;
pub(crate) mod redirect;

use crate::codec::request_values::Parties;
use crate::filter::cors::Cors;
use crate::filter::expression::FieldValues;
use crate::filter::ext_authz::ExternalAuth;
use crate::filter::fault::Fault;
use crate::filter::header_edit::{Draft, HeaderEdit};
use crate::filter::jwt::Jwt;
use crate::filter::mirror::Mirror;
use crate::filter::plugin::Configured;
use crate::filter::rate_limit::RateLimit;
use crate::filter::redirect::{Redirect, Rewrite};
use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tulle_expression::Expression;
use tulle_http1::is_field_value;
use tulle_model::resource::{self, Filter};
use tulle_net::Buf;

/// Filters in their order.
pub struct Filters {
    /// Filters that run before these.
    first: Option<Arc<Self>>,
    steps: Arc<[Step]>,
    /// Whether some of them edit responses.
    edits_responses: bool,
    /// Whether some of them are plugins.
    run_plugins: bool,
}

enum Step {
    RequestHeaders(HeaderEdit),
    ResponseHeaders(HeaderEdit),
    Redirect(Redirect),
    Rewrite(Rewrite),
    Mirror(Arc<Mirror>),
    Cors(Cors),
    Delay(Arc<Fault>),
    Abort(Arc<Fault>),
    RateLimit(RateLimit),
    Jwt(Box<Jwt>),
    ExternalAuth(Arc<ExternalAuth>),
    Respond(resource::Respond),
    /// Where the condition does not hold, this many steps are left out.
    When(Expression, usize),
    RequestValues(FieldValues),
    Plugin(Arc<Configured>),
}

/// A request among its filters.
pub struct Passing<'a> {
    /// Random numbers.
    pub random: &'a dyn Fn() -> u64,
    /// Returns scheme and port as the client sees them.
    pub entry: (&'static str, u16),
    /// The request as it will be forwarded.
    pub draft: Draft<'a>,
    /// Length of the path's prefix that the rule has matched.
    pub matched: usize,
    /// Caller and destination.
    pub parties: &'a dyn Parties,
    /// Edits of its response.
    pub response: &'a mut Option<Box<ResponseEdits>>,
}

/// An action beyond an edit that a filter asks for. Its caller carries the action out, then continues behind the filter.
pub enum Effect {
    /// It is delayed on purpose.
    Delay(Duration),
    /// Another service is asked about it.
    Ask(Arc<ExternalAuth>),
    /// A copy of it goes to another service.
    Copy(Arc<Mirror>),
    /// A plugin looks at it.
    Run(Arc<Configured>),
}

/// Something that looks at a response's head before it goes on, and may change it.
pub trait ResponseHook {
    /// Looks at it.
    ///
    /// # Errors
    /// The response may not go on.
    fn look_at(&self, draft: &mut Draft<'_>) -> Result<(), Failure>;

    /// Bytes of the body, with what frames it, that it wants to see with the head; 0: none.
    fn body_limit(&self) -> usize;

    /// Looks at a response with its body. `whole`: all of it is there.
    ///
    /// # Errors
    /// The response may not go on.
    fn look_at_body(&self, draft: &mut Draft<'_>, whole: bool) -> Result<(), Failure>;

    /// Takes names and values for the access log.
    fn take_tags(&self) -> Vec<(String, String)>;
}

/// Edits of a response's head.
#[derive(Default)]
pub struct ResponseEdits {
    filters: Option<Arc<Filters>>,
    cross_origin: bool,
    add: cors::Lines,
    /// Fields that an external authorization service adds.
    told: Vec<(String, Vec<u8>)>,
    /// Plugins that have seen the request. The upstream's response alone is shown to them.
    hooks: Vec<Box<dyn ResponseHook>>,
}

impl Filters {
    /// Compiles filters, each with the name of its place; `None` if there are none. `by_prefix`:
    /// all matches of the rule are by prefix, so that a filter can replace it.
    ///
    /// # Errors
    /// A filter makes no sense, or this proxy does not know it.
    pub fn compile<'a>(
        filters: impl IntoIterator<Item = (&'a Filter, &'a str)>,
        by_prefix: bool,
    ) -> Result<Option<Arc<Self>>, String> {
        let mut steps = Vec::new();
        for (filter, place) in filters {
            Step::compile(filter, by_prefix, place, &mut steps)?;
        }
        if steps.is_empty() {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self {
            first: None,
            edits_responses: steps.iter().any(|s| matches!(s, Step::ResponseHeaders(_))),
            run_plugins: steps.iter().any(|s| matches!(s, Step::Plugin(_))),
            steps: steps.into(),
        })))
    }

    /// Returns these filters, preceded by `first`, whose filters edit no responses.
    pub fn after(self: &Arc<Self>, first: Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            first: Some(first),
            steps: self.steps.clone(),
            edits_responses: self.edits_responses,
            run_plugins: self.run_plugins,
        })
    }

    /// Filters that go on where `before` stopped, which began with the same ones.
    pub fn in_place_of(self: &Arc<Self>, before: &Self) -> Arc<Self> {
        match &before.first {
            Some(first) => self.after(first.clone()),
            None => self.clone(),
        }
    }

    /// Notes that the response is edited as these filters say.
    pub fn edit_responses(self: &Arc<Self>, edits: &mut Option<Box<ResponseEdits>>) {
        if self.edits_responses {
            edits.get_or_insert_default().filters = Some(self.clone());
        } else if let Some(edits) = edits {
            edits.filters = None;
        }
    }

    /// Whether one of them is a plugin.
    pub fn run_plugins(&self) -> bool {
        self.run_plugins
    }

    /// Whether one of them authenticates the client.
    pub fn authenticate(&self) -> bool {
        let view = |step: &Step| matches!(step, Step::Jwt(_) | Step::ExternalAuth(_));
        self.steps.iter().any(view)
    }

    /// Request fields that only these filters may set.
    pub fn claim_headers(&self) -> impl Iterator<Item = &String> {
        self.steps.iter().flat_map(|step| match step {
            Step::Jwt(jwt) => jwt.claim_headers(),
            _ => &[],
        })
    }

    /// Returns the filters that check tokens.
    pub fn tokens(&self) -> impl Iterator<Item = &Jwt> {
        self.steps.iter().filter_map(|step| match step {
            Step::Jwt(jwt) => Some(&**jwt),
            _ => None,
        })
    }

    /// Plugins among them.
    pub fn plugins(&self) -> impl Iterator<Item = &Arc<Configured>> {
        self.steps.iter().filter_map(|step| match step {
            Step::Plugin(plugin) => Some(plugin),
            _ => None,
        })
    }

    /// Why some of them are not in force as they were told.
    pub fn faults(&self) -> impl Iterator<Item = &str> {
        self.plugins().filter_map(|plugin| plugin.fault())
    }

    /// Services that get copies or checks of requests, beside the route's backends.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().flat_map(|step| match step {
            Step::Mirror(mirror) => vec![mirror.service()],
            Step::ExternalAuth(filter) => vec![filter.service()],
            Step::Plugin(plugin) => plugin.services().collect(),
            _ => Vec::new(),
        })
    }

    /// Takes a request from filter `at` on as far as edits suffice; `None`: through.
    ///
    /// # Errors
    /// A filter answers in place of the upstream.
    pub fn run(
        self: &Arc<Self>,
        at: &mut usize,
        passing: &mut Passing<'_>,
    ) -> Result<Option<Effect>, Failure> {
        let mut begin = 0;
        if let Some(first) = &self.first {
            begin = first.steps.len();
            if *at < begin
                && let Some(effect) = first.run(at, passing)?
            {
                return Ok(Some(effect));
            }
        }
        if *at == begin {
            self.edit_responses(passing.response);
        }
        while let Some(step) = self.steps.get(*at - begin) {
            *at += 1;
            if let Step::When(condition, steps) = step
                && !expression::is_met(condition, &passing.draft, passing.parties)
            {
                *at += steps;
                continue;
            }
            if let Some(effect) = step.run(passing)? {
                return Ok(Some(effect));
            }
        }
        Ok(None)
    }
}

impl Step {
    fn compile(
        filter: &Filter,
        by_prefix: bool,
        place: &str,
        steps: &mut Vec<Self>,
    ) -> Result<(), String> {
        let step = match filter {
            Filter::RequestHeaders(edit) => Self::RequestHeaders(HeaderEdit::compile(edit)?),
            Filter::ResponseHeaders(edit) => Self::ResponseHeaders(HeaderEdit::compile(edit)?),
            Filter::Redirect(redirect) => Self::Redirect(Redirect::compile(redirect, by_prefix)?),
            Filter::Rewrite(rewrite) => Self::Rewrite(Rewrite::compile(rewrite, by_prefix)?),
            Filter::Mirror(mirror) => Self::Mirror(Arc::new(Mirror::compile(mirror)?)),
            Filter::Cors(cors) => Self::Cors(Cors::compile(cors)?),
            Filter::Fault(fault) => {
                let fault = Arc::new(Fault::compile(fault)?);
                steps.push(Self::Delay(fault.clone()));
                Self::Abort(fault)
            }
            Filter::Respond(respond) => Self::Respond(check(respond)?),
            Filter::RequestValues(fields) => Self::RequestValues(FieldValues::compile(fields)?),
            Filter::Plugin(plugin) => Self::Plugin(Configured::new(plugin)),
            Filter::When(when) => {
                let mut inner = Vec::new();
                for filter in &when.filters {
                    if matches!(filter, Filter::ResponseHeaders(_) | Filter::Cors(_)) {
                        return Err("a filter that edits responses has no condition".into());
                    }
                    Self::compile(filter, by_prefix, place, &mut inner)?;
                }
                steps.push(Self::When(
                    expression::condition(&when.condition)?,
                    inner.len(),
                ));
                steps.append(&mut inner);
                return Ok(());
            }
            Filter::RateLimit(limit) => Self::RateLimit(RateLimit::compile(limit, place)?),
            Filter::Jwt(jwt) => Self::Jwt(Box::new(Jwt::compile(jwt)?)),
            Filter::ExternalAuth(filter) => {
                Self::ExternalAuth(Arc::new(ExternalAuth::compile(filter)?))
            }
        };
        steps.push(step);
        Ok(())
    }

    fn run(&self, passing: &mut Passing<'_>) -> Result<Option<Effect>, Failure> {
        match self {
            Self::RequestHeaders(edit) => edit.apply(&mut passing.draft),
            // This filter edits the response, later.
            Self::ResponseHeaders(_) => {}
            Self::Redirect(redirect) => {
                let (scheme, port) = passing.entry;
                return Err(redirect.answer(&passing.draft, passing.matched, scheme, port));
            }
            Self::Rewrite(rewrite) => rewrite.apply(&mut passing.draft, passing.matched),
            Self::Mirror(mirror) if mirror.hits(passing.random) => {
                return Ok(Some(Effect::Copy(mirror.clone())));
            }
            Self::Mirror(_) => {}
            Self::Cors(cors) => {
                let lines = cors.look_at(&passing.draft)?;
                let edits = passing.response_edits();
                edits.cross_origin = true;
                edits.add.extend(lines);
            }
            Self::Delay(fault) => return Ok(fault.delay(passing.random).map(Effect::Delay)),
            Self::Abort(fault) => fault.abort(passing.random)?,
            Self::RateLimit(limit) => limit.check(&passing.draft, passing.parties)?,
            Self::RequestValues(fields) => fields.apply(&mut passing.draft, passing.parties),
            // Its condition holds.
            Self::When(..) => {}
            Self::ExternalAuth(filter) => return Ok(Some(Effect::Ask(filter.clone()))),
            Self::Plugin(plugin) => return Ok(Some(Effect::Run(plugin.clone()))),
            Self::Jwt(jwt) => jwt.check(&mut passing.draft, SystemTime::now())?,
            Self::Respond(respond) => return Err(answer(respond)),
        }
        Ok(None)
    }
}

fn check(respond: &resource::Respond) -> Result<resource::Respond, String> {
    if !(200..=599).contains(&respond.status) {
        return Err(format!(
            "status {} of an answer is not from 200 to 599",
            respond.status
        ));
    }
    if !is_field_value(respond.content_type.as_bytes()) {
        return Err("the content type of an answer has control characters".into());
    }
    let mut respond = respond.clone();
    if respond.content_type.is_empty() {
        respond.content_type = "text/plain; charset=utf-8".into();
    }
    Ok(respond)
}

fn answer(respond: &resource::Respond) -> Failure {
    let body = respond.body.clone().into_bytes();
    Failure::new(Reason::Responded, "by the route").with_response(LocalResponse {
        status: respond.status,
        headers: Vec::new(),
        body: Some((respond.content_type.clone(), body)),
    })
}

impl Passing<'_> {
    /// Returns the edits of the response.
    pub fn response_edits(&mut self) -> &mut ResponseEdits {
        self.response.get_or_insert_default()
    }
}

impl ResponseEdits {
    /// Adds a field to the response.
    pub fn add(&mut self, name: &'static str, value: Vec<u8>) {
        self.add.push((name, value));
    }

    /// Adds fields that an external authorization service wants added.
    pub fn add_told(&mut self, fields: Vec<(String, Vec<u8>)>) {
        self.told.extend(fields);
    }

    /// Adds a plugin that wants to see the response.
    pub fn add_hook(&mut self, hook: Box<dyn ResponseHook>) {
        self.hooks.push(hook);
    }

    /// Whether plugins are to see the response.
    pub fn has_hooks(&self) -> bool {
        !self.hooks.is_empty()
    }

    /// Shows the head at the start of `message`, which came from the upstream, to plugins; the last one first, as responses
    /// pass filters in reverse. Returns length and status of the head then.
    ///
    /// # Errors
    /// The response may not go on.
    pub fn show(&self, message: &mut Buf, head: usize) -> Result<(usize, u16), Failure> {
        let mut draft = Draft::new(message, head);
        for hook in self.hooks.iter().rev() {
            hook.look_at(&mut draft)?;
        }
        Ok((draft.head_len(), draft.status()))
    }

    /// Takes names and values that plugins have for the access log.
    pub fn take_tags(&self) -> impl Iterator<Item = (String, String)> {
        self.hooks.iter().flat_map(|hook| hook.take_tags())
    }

    /// Bytes of the body that plugins want to see; 0: none does.
    pub fn body_limit(&self) -> usize {
        let limits = self.hooks.iter().map(|hook| hook.body_limit());
        limits.max().unwrap_or_default()
    }

    /// Shows the body behind the head at the start of `message` to plugins that want to see it.
    ///
    /// # Errors
    /// The response may not go on.
    pub fn show_body(&self, message: &mut Buf, head: usize, whole: bool) -> Result<(), Failure> {
        let mut draft = Draft::new(message, head);
        for hook in self.hooks.iter().rev().filter(|h| h.body_limit() > 0) {
            hook.look_at_body(&mut draft, whole)?;
        }
        Ok(())
    }

    /// Edits the head at the start of `message`.
    pub fn apply(&self, message: &mut Buf, head: usize) {
        let mut draft = Draft::new(message, head);
        if self.cross_origin || !self.add.is_empty() || !self.told.is_empty() {
            let told = self.told.iter().map(|(n, v)| (n.as_str(), v.as_slice()));
            let add = self.add.iter().map(|(n, v)| (*n, v.as_slice()));
            let add: Vec<_> = add.chain(told).collect();
            // The application's own CORS fields are replaced as a whole.
            let keep = |name: &[u8]| {
                !self.cross_origin
                    || !name
                        .get(..15)
                        .is_some_and(|start| start.eq_ignore_ascii_case(b"access-control-"))
            };
            draft.edit(None, keep, &add);
        }
        for step in self.filters.iter().flat_map(|f| f.steps.iter()) {
            if let Step::ResponseHeaders(edit) = step {
                edit.apply(&mut draft);
            }
        }
    }
}
