//! Runs the filters of a route on a request, between the decision and forwarding.

use super::departure::departure;
use super::{After, Conversation, Exchange, Next};
#[cfg(feature = "plugins")]
use crate::config::route::Backend;
use crate::decision::between::Between;
#[cfg(feature = "plugins")]
use crate::filter::ResponseHook;
use crate::filter::header_edit::Draft;
#[cfg(feature = "plugins")]
use crate::filter::plugin::Plugin;
use crate::filter::{Effect, Passing};
use crate::http::auth_call;
use crate::http::mirror_send::{self, Original};
#[cfg(feature = "plugins")]
use crate::http::plugin_call::{self, Shown};
use crate::http::relay::End;
#[cfg(feature = "plugins")]
use crate::http::relay::Relay;
use crate::telemetry::reason::{Failure, Reason};
#[cfg(not(feature = "plugins"))]
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
#[cfg(feature = "plugins")]
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Result of filters; `Ok(None)`: the request goes on.
type Filtered = Result<Option<Effect>, Failure>;

/// Whether a request has a body that a plugin may look at.
#[cfg(feature = "plugins")]
fn has_body(relay: &Relay) -> bool {
    !relay.is_whole() || relay.body_at_hand() > 0
}

/// Bytes with which content of this length may come. Chunks of eight bytes and more are within it, and all extensions
/// that a body may have.
const fn framed(content: usize) -> usize {
    2 * content + 32 * 1024
}

impl Conversation<'_> {
    /// Runs a request through its filters. `None`: it passed without waiting.
    pub(super) fn filtering<'a>(&'a mut self, exchange: &'a mut Exchange) -> Option<After<'a>> {
        let mut at = 0;
        match self.filter(exchange, &mut at) {
            Ok(None) => None,
            stopped => Some(Box::pin(self.filter_on(exchange, at, stopped))),
        }
    }

    /// Runs the filters from `at` on, until one has to wait.
    fn filter(&self, exchange: &mut Exchange, at: &mut usize) -> Filtered {
        let relay = &mut exchange.relay;
        let decision = &exchange.decision;
        let Some(filters) = &decision.filters else {
            return Ok(None);
        };
        let (whole, upgrade) = (relay.is_whole(), relay.is_upgrade());
        loop {
            let head = relay.request.len() - relay.body_at_hand();
            let parties = Between::new(self.scope, &exchange.config);
            let mut passing = Passing {
                random: &|| self.worker.random(),
                entry: self.scope.entry(),
                draft: Draft::new(&mut relay.request, head),
                matched: decision.matched,
                parties: &parties,
                response: &mut relay.edits,
            };
            match filters.run(at, &mut passing)? {
                Some(Effect::Copy(mirror)) => {
                    let original = Original {
                        message: relay.request.as_slice(),
                        whole,
                        upgrade,
                    };
                    let (worker, copies) = (self.worker, &mut relay.copies);
                    mirror_send::copy(worker, &exchange.config, &mirror, &original, copies);
                }
                stopped => return Ok(stopped),
            }
        }
    }

    /// Waits for filters, or answers in their name. `None`: the request goes on.
    async fn filter_on(
        &mut self,
        exchange: &mut Exchange,
        mut at: usize,
        mut filtered: Filtered,
    ) -> Option<Next> {
        loop {
            match filtered {
                Ok(None) => return None,
                Ok(Some(Effect::Delay(time))) => {
                    if let Err(failure) = self.pause(time).await {
                        filtered = Err(failure);
                        continue;
                    }
                }
                Ok(Some(Effect::Ask(filter))) => {
                    if let Err(failure) = self.hold_content(exchange, filter.body_bytes).await {
                        filtered = Err(failure);
                        continue;
                    }
                    let asker = self.scope.asker(&exchange.config);
                    let relay = &mut exchange.relay;
                    let mut draft = relay.draft();
                    let answer =
                        auth_call::ask(&filter, self.worker, &exchange.config, &mut draft, &asker);
                    match answer.await {
                        Ok(fields) if fields.is_empty() => {}
                        Ok(fields) => relay.edits.get_or_insert_default().add_told(fields),
                        Err(failure) => {
                            filtered = Err(failure);
                            continue;
                        }
                    }
                }
                Ok(Some(Effect::Run(plugin))) => {
                    let done = match plugin.runs() {
                        Ok(Some(plugin)) => self.show(exchange, plugin).await,
                        runs => runs.map(drop),
                    };
                    if let Err(failure) = done {
                        filtered = Err(failure);
                        continue;
                    }
                }
                // Done as soon as it is wanted.
                Ok(Some(Effect::Copy(_))) => {}
                Err(failure) if failure.reason == Reason::ClientClosed => {
                    let Exchange {
                        asked,
                        decision,
                        relay,
                        ..
                    } = exchange;
                    self.count(asked, decision, 499, &failure, relay);
                    return Some(Next::Abort);
                }
                Err(failure) => return Some(self.refuse_exchange(exchange, &failure).await),
            }
            filtered = self.filter(exchange, &mut at);
        }
    }

    #[cfg(not(feature = "plugins"))]
    async fn show(&mut self, _: &mut Exchange, plugin: &Infallible) -> Result<(), Failure> {
        match *plugin {}
    }

    /// Shows a request to a plugin, and its response later.
    #[cfg(feature = "plugins")]
    async fn show(&mut self, exchange: &mut Exchange, plugin: &Arc<Plugin>) -> Result<(), Failure> {
        let has_body = has_body(&exchange.relay);
        let parties = plugin_call::parties(&Between::new(self.scope, &exchange.config));
        let mut draft = exchange.relay.draft();
        let (worker, config) = (self.worker, &exchange.config);
        let rule = exchange.decision.rule.as_ref();
        let named = |b: &Backend| format!("{}:{}", b.service, b.port);
        let backends = rule.map(|rule| rule.backends.iter().map(named).collect());
        let backends = backends.unwrap_or_default();
        let begun =
            plugin_call::begin(plugin.clone(), worker, &draft, parties, has_body, backends)?;
        let Some(shown) = begun else { return Ok(()) };
        let mut done = match shown.look_at_request(config, &mut draft).await {
            Ok(true) => self.show_body(exchange, &shown).await,
            passed => passed.map(drop),
        };
        if let Some(place) = shown.backend()
            && done.is_ok()
        {
            done = self.choose(exchange, place);
        }
        if let Some(line) = &mut exchange.asked.line {
            line.fields.extend(shown.take_tags());
        }
        if shown.sees_more() {
            let edits = exchange.relay.edits.get_or_insert_default();
            edits.add_hook(Box::new(shown));
        }
        done
    }

    /// Shows a request's body to a plugin that wants to see it.
    #[cfg(feature = "plugins")]
    async fn show_body(&mut self, exchange: &mut Exchange, shown: &Shown) -> Result<(), Failure> {
        let limit = shown.request_body_limit();
        if limit == 0 || !has_body(&exchange.relay) {
            return Ok(());
        }
        self.hold(exchange, (usize::MAX, limit + 1)).await?;
        let (relay, config) = (&mut exchange.relay, &exchange.config);
        let whole = relay.is_whole();
        let mut draft = relay.draft();
        if shown
            .look_at_request_body(config, &mut draft, whole)
            .await?
        {
            let body = draft.body().len();
            relay.replaced_body(body);
        }
        Ok(())
    }

    /// Sends a request to the backend that a plugin has chosen.
    #[cfg(feature = "plugins")]
    fn choose(&self, exchange: &mut Exchange, place: usize) -> Result<(), Failure> {
        let (config, relay) = (&exchange.config, &mut exchange.relay);
        let chosen = self
            .scope
            .choose(self.worker, config, &exchange.decision, place)?;
        if let Some(mut chosen) = chosen {
            chosen.aim(relay.draft().head(), || self.scope.source());
            if let Some(filters) = &chosen.filters {
                filters.edit_responses(&mut relay.edits);
            }
            exchange.decision = chosen;
        }
        Ok(())
    }

    /// Waits until this many bytes of the content have come, or all of it. What frames chunks does not count: whoever
    /// is asked would be told less than is passed on.
    async fn hold_content(
        &mut self,
        exchange: &mut Exchange,
        wanted: usize,
    ) -> Result<(), Failure> {
        self.hold(exchange, (wanted, framed(wanted))).await?;
        let relay = &exchange.relay;
        match relay.is_whole() || relay.has(wanted) {
            true => Ok(()),
            false => Err(Failure::new(
                Reason::BadRequest,
                "chunks of the body have more framing than content",
            )),
        }
    }

    /// Waits until this much content has come, or so many bytes with what frames it, or all of it.
    async fn hold(
        &mut self,
        exchange: &mut Exchange,
        limits: (usize, usize),
    ) -> Result<(), Failure> {
        let (content, bytes) = limits;
        let relay = &mut exchange.relay;
        if relay.is_whole() || relay.has(content) || relay.body_at_hand() >= bytes {
            return Ok(());
        }
        let waits = relay.draft().field("expect").is_some();
        let idle = exchange.config.snapshot.mesh.idle_timeout_ms;
        self.deadline.arm(Duration::from_millis(idle.into()));
        // The client sends no body before a 100 Continue; the upstream may send another.
        let mut go_on: &[u8] = if waits {
            b"HTTP/1.1 100 Continue\r\n\r\n"
        } else {
            b""
        };
        poll_fn(|cx| {
            if self.deadline.poll_expired(cx) {
                let text = format!("no request body within {idle} ms");
                return Poll::Ready(Err(Failure::new(Reason::IdleTimeout, text)));
            }
            let gone = |e: io::Error| Failure::new(Reason::ClientClosed, e.to_string());
            while !go_on.is_empty() {
                match self.down.poll_write(cx, go_on, false) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(count) => {
                        let count = count.map_err(gone)?;
                        go_on = go_on.get(count..).unwrap_or_default();
                    }
                }
            }
            if let Poll::Ready(Err(error)) = self.down.poll_flush(cx) {
                return Poll::Ready(Err(gone(error)));
            }
            let held = relay.poll_hold(cx, &mut self.down, &mut self.received, limits);
            held.map_err(|end| match end {
                End::Failed(_, reason, text) => Failure::new(reason, text),
                End::Complete | End::Withheld | End::Unreached => {
                    Failure::new(Reason::BadRequest, "no body")
                }
            })
        })
        .await
    }

    /// Waits, unless the client goes away meanwhile.
    pub(super) async fn pause(&mut self, time: Duration) -> Result<(), Failure> {
        self.deadline.arm(time);
        let mut gone = pin!(departure(&mut self.down, &mut self.received));
        poll_fn(|cx| match gone.as_mut().poll(cx) {
            Poll::Ready(failure) => Poll::Ready(Err(failure)),
            Poll::Pending => match self.deadline.poll_expired(cx) {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            },
        })
        .await
    }
}
