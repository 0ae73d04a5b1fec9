//! Runs the filters of a route on a request, between the decision and forwarding.

use super::{After, Conversation, Exchange, Next};
use crate::decision::between::Between;
use crate::filter::header_edit::Draft;
use crate::filter::{Effect, Passing};
use crate::http::auth_call;
use crate::http::mirror_send::{self, Original};
#[cfg(feature = "plugins")]
use crate::http::plugin_call;
use crate::http::relay::End;
use crate::telemetry::reason::{Failure, Reason};
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

/// Result of filters; `Ok(None)`: the request goes on.
type Filtered = Result<Option<Effect>, Failure>;

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
                    if let Err(error) = self.pause(time).await {
                        let failure = Failure::new(Reason::ClientClosed, error.to_string());
                        let Exchange {
                            asked,
                            decision,
                            relay,
                            ..
                        } = exchange;
                        self.count(asked, decision, 499, &failure, relay);
                        return Some(Next::Abort);
                    }
                }
                Ok(Some(Effect::Ask(filter))) => {
                    if let Err(failure) = self.hold(exchange, filter.body_bytes).await {
                        let Exchange {
                            asked,
                            decision,
                            relay,
                            ..
                        } = exchange;
                        if failure.reason == Reason::ClientClosed {
                            self.count(asked, decision, 499, &failure, relay);
                            return Some(Next::Abort);
                        }
                        filtered = Err(failure);
                        continue;
                    }
                    let asker = self.scope.asker(&exchange.config);
                    let relay = &mut exchange.relay;
                    let head = relay.request.len() - relay.body_at_hand();
                    let mut draft = Draft::new(&mut relay.request, head);
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
                #[cfg(not(feature = "plugins"))]
                Ok(Some(Effect::Run(plugin))) => match *plugin {},
                #[cfg(feature = "plugins")]
                Ok(Some(Effect::Run(plugin))) => {
                    if let Err(failure) = self.show(exchange, plugin).await {
                        filtered = Err(failure);
                        continue;
                    }
                }
                // Done as soon as it is wanted.
                Ok(Some(Effect::Copy(_))) => {}
                Err(failure) => return Some(self.refuse_exchange(exchange, &failure).await),
            }
            filtered = self.filter(exchange, &mut at);
        }
    }

    /// Shows a request to a plugin, and its response later.
    #[cfg(feature = "plugins")]
    async fn show(
        &self,
        exchange: &mut Exchange,
        plugin: std::sync::Arc<crate::filter::plugin::Plugin>,
    ) -> Result<(), Failure> {
        let relay = &mut exchange.relay;
        let head = relay.request.len() - relay.body_at_hand();
        let parties = plugin_call::parties(&Between::new(self.scope, &exchange.config));
        let mut draft = Draft::new(&mut relay.request, head);
        let (worker, config) = (self.worker, &exchange.config);
        let hook = plugin_call::run(plugin, worker, config, &mut draft, parties).await?;
        if let Some(hook) = hook {
            relay.edits.get_or_insert_default().add_hook(hook);
        }
        Ok(())
    }

    /// Waits until this many bytes of the body have come, or all of it.
    async fn hold(&mut self, exchange: &mut Exchange, limit: usize) -> Result<(), Failure> {
        let relay = &mut exchange.relay;
        if limit == 0 || relay.is_whole() || relay.body_at_hand() >= limit {
            return Ok(());
        }
        let head = relay.request.len() - relay.body_at_hand();
        let waits = Draft::new(&mut relay.request, head)
            .field("expect")
            .is_some();
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
            let held = relay.poll_hold(cx, &mut self.down, &mut self.received, limit);
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
    pub(super) async fn pause(&mut self, time: Duration) -> io::Result<()> {
        self.deadline.arm(time);
        let mut ended = false;
        poll_fn(|cx| {
            if let Poll::Ready(error) = self.down.poll_reset(cx) {
                return Poll::Ready(Err(error));
            }
            // At most one buffer is read ahead. A client may half-close and still wait.
            if !ended && self.received.is_empty() {
                match self.down.poll_read(cx, &mut self.received) {
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(0)) => ended = true,
                    Poll::Ready(Ok(_)) | Poll::Pending => {}
                }
            }
            match self.deadline.poll_expired(cx) {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            }
        })
        .await
    }
}
