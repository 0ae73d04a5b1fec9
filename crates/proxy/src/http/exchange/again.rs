//! Decides between two tries of a request: whether to try again, and when.

use super::http2::shorter;
use super::{Conversation, Exchange, Next, Tried, note_tags, request_target};
use crate::config::traffic::limits::RetryPlace;
use crate::config::traffic::retry::Cause;
use crate::decision::request::Target;
use crate::http::relay::{End, Side};
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::{Lease, Upstream};
use std::rc::Rc;
use std::time::Instant;
use tulle_http1::request_line;

/// Times that an unprocessed request is sent again: a reused connection died before any byte of a
/// response, or a proxy of the mesh could not reach its application.
pub(super) const REPLAYS: u16 = 2;

/// State of the tries of a request that may have several.
#[derive(Default)]
pub(super) struct Tries {
    /// Times it was sent again because it was not processed.
    pub(super) replays: u16,
    /// Retries so far.
    made: u16,
    /// When the first try began, in milliseconds after the request.
    began_ms: u32,
    /// The endpoint that failed last; another is asked if there is one.
    pub(super) failed: Option<Rc<Upstream>>,
    /// Place of the retry under way, if the port limits retries.
    place: Option<RetryPlace>,
}

impl Tries {
    /// Milliseconds since the first try of a request began.
    fn millis(&self, started: Instant) -> u32 {
        millis_since(started).saturating_sub(self.began_ms)
    }
}

impl Conversation<'_> {
    /// Sets how long the next try may take, and whether its response may be held back.
    pub(super) fn limit_try(&self, exchange: &mut Exchange) {
        let Exchange {
            asked,
            decision,
            relay,
            tries,
            ..
        } = exchange;
        relay.timeout_ms = asked.came_as.timeout_ms(decision.timeout_ms);
        if decision.retry.is_none() && decision.try_timeout_ms == 0 {
            return;
        }
        if tries.made == 0 {
            tries.began_ms = millis_since(asked.started);
        } else if relay.timeout_ms > 0 {
            // 0 would mean no timeout.
            let left = relay.timeout_ms.saturating_sub(tries.millis(asked.started));
            relay.timeout_ms = left.max(1);
        }
        relay.timeout_ms = shorter(relay.timeout_ms, decision.try_timeout_ms);
        if let (Some(policy), Target::Service(port)) = (&decision.retry, &decision.target) {
            if tries.made == 0 {
                let budgets = &self.worker.retry_budgets;
                budgets.request(&port.service, port.number);
            }
            relay.hold = (u32::from(tries.made) < policy.attempts).then(|| policy.clone());
        }
    }

    /// Whether the request is to be sent again; if so it counts as a retry.
    pub(super) fn may_try_again(&self, exchange: &mut Exchange, cause: Cause) -> bool {
        let Exchange {
            asked,
            decision,
            relay,
            tries,
            ..
        } = exchange;
        let (Some(policy), Target::Service(port)) = (&decision.retry, &decision.target) else {
            return false;
        };
        let total = asked.came_as.timeout_ms(decision.timeout_ms);
        let in_time = total == 0 || tries.millis(asked.started) < total;
        let harmless = cause.is_unseen()
            || asked.method.is_idempotent()
            || policy.names(request_line(relay.request.as_slice()).0);
        if u32::from(tries.made) >= policy.attempts
            || !policy.covers(cause)
            || !harmless
            || !in_time
            || !relay.can_repeat()
        {
            return false;
        }
        // The retry that has just failed gives its place back.
        tries.place = None;
        let worker = self.worker;
        let spent = |why| worker.metrics.internal(|i| i.retries_refused.add(why, 1));
        let Ok(place) = port.retry() else {
            spent("limit");
            return false;
        };
        let budgets = &worker.retry_budgets;
        if !budgets.take(&port.service, port.number, policy) {
            spent("budget");
            return false;
        }
        tries.place = place;
        worker.metrics.internal(|i| i.retries.add(cause.code(), 1));
        let target = request_target(&relay.request);
        tracing::debug!(
            service = &*port.service,
            target = &*String::from_utf8_lossy(&target),
            cause = cause.code(),
            retry = tries.made + 1,
            "sent again"
        );
        true
    }

    /// Decides what follows a failed or held-back try. `None`: another try.
    pub(super) async fn after(&mut self, exchange: &mut Exchange, tried: Tried) -> Option<Next> {
        let (lease, end) = match tried {
            Ok((mut lease, end)) => {
                if let (Target::Service(port), true) = (&exchange.decision.target, is_theirs(&end))
                {
                    port.ended(&mut lease, 0, exchange.asked.started);
                }
                (lease, end)
            }
            // The client has left the queue for a place.
            Err(failure) if failure.reason == Reason::ClientClosed => {
                return Some(self.cut(exchange, 499, &failure));
            }
            Err(failure) => {
                if self.may_try_again(exchange, Cause::Connect) {
                    return self.before_next_try(exchange).await;
                }
                return Some(self.refuse_exchange(exchange, &failure).await);
            }
        };
        let (side, reason, detail) = match end {
            // Whether to try again was decided before the response was given up.
            End::Withheld | End::Complete => {
                give_up(lease, &mut exchange.tries);
                return self.before_next_try(exchange).await;
            }
            // This happens when a pod ends: its application accepts no more, and not all proxies
            // know yet.
            End::Unreached => {
                exchange.tries.replays += 1;
                self.worker.metrics.internal(|i| i.replays += 1);
                give_up(lease, &mut exchange.tries);
                exchange.relay.rewind();
                return None;
            }
            // gRPC servers keep the client's time, too, and reset the stream when it has passed.
            End::Failed(Side::Up, Reason::UpstreamReset, detail)
                if exchange
                    .asked
                    .came_as
                    .is_overdue(exchange.asked.started.elapsed()) =>
            {
                (Side::Up, Reason::RequestTimeout, detail)
            }
            End::Failed(side, reason, detail) => (side, reason, detail),
        };
        let refused = reason == Reason::Overload;
        // A connection that is merely slow has not died.
        let died = lease.reused && reason == Reason::UpstreamReset;
        if side == Side::Up
            && (died || refused)
            && exchange.tries.replays < REPLAYS
            && exchange.relay.can_replay(exchange.asked.method, refused)
        {
            exchange.tries.replays += 1;
            self.worker.metrics.internal(|i| i.replays += 1);
            exchange.relay.rewind();
            return None;
        }
        let address = lease.upstream().key.address;
        let again = cause_of(side, reason).is_some_and(|c| self.may_try_again(exchange, c));
        give_up(lease, &mut exchange.tries);
        if again {
            return self.before_next_try(exchange).await;
        }
        let failure = Failure::new(reason, format!("{detail} ({address})"));
        let relay = &exchange.relay;
        if relay.response_started() {
            if side == Side::Down && reason == Reason::Overload {
                self.worker.metrics.internal(|i| i.shed += 1);
            }
            let status = match relay.status {
                0 => reason.status(),
                status => status,
            };
            return Some(self.cut(exchange, status, &failure));
        }
        if side == Side::Down && reason == Reason::ClientClosed {
            return Some(self.cut(exchange, 499, &failure));
        }
        let next = self.refuse_exchange(exchange, &failure).await;
        // The rest of the request's body cannot be told from the next request.
        Some(if exchange.relay.request_done() {
            next
        } else {
            Next::Close
        })
    }

    /// Answers in place of the upstream.
    pub(super) async fn refuse_exchange(
        &mut self,
        exchange: &mut Exchange,
        failure: &Failure,
    ) -> Next {
        note_tags(&mut exchange.asked, &exchange.relay);
        let Exchange {
            config,
            asked,
            decision,
            relay,
            ..
        } = exchange;
        let target = request_target(&relay.request);
        let edits = relay.edits.as_deref();
        self.refuse(config, asked, Some(decision), failure, &target, edits)
            .await
    }

    /// Ends a request whose client has gone, or whose answer had begun.
    fn cut(&self, exchange: &mut Exchange, status: u16, failure: &Failure) -> Next {
        note_tags(&mut exchange.asked, &exchange.relay);
        let Exchange {
            asked,
            decision,
            relay,
            ..
        } = exchange;
        self.count(asked, decision, status, failure, relay);
        Next::Abort
    }

    /// Waits before the next try; `None`: it may begin.
    async fn before_next_try(&mut self, exchange: &mut Exchange) -> Option<Next> {
        exchange.relay.rewind();
        let random = self.worker.random();
        let tries = &mut exchange.tries;
        let policy = exchange.decision.retry.as_ref();
        let pause = policy.map(|p| p.pause(tries.made.into(), random));
        tries.made = tries.made.saturating_add(1);
        let waited = match pause {
            Some(pause) if !pause.is_zero() => self.pause(pause).await,
            _ => Ok(()),
        };
        let failure = waited.err()?;
        Some(self.cut(exchange, 499, &failure))
    }
}

fn millis_since(started: Instant) -> u32 {
    u32::try_from(started.elapsed().as_millis()).unwrap_or(u32::MAX)
}

/// Whether the upstream is to blame.
fn is_theirs(end: &End) -> bool {
    matches!(
        end,
        End::Withheld | End::Unreached | End::Failed(Side::Up, ..)
    )
}

fn give_up(mut lease: Lease, tries: &mut Tries) {
    tries.failed = Some(lease.upstream().clone());
    lease.link.abort();
}

/// Returns the cause of a retry that a failure stands for.
fn cause_of(side: Side, reason: Reason) -> Option<Cause> {
    match (side, reason) {
        (Side::Up, Reason::Overload) => Some(Cause::Refused),
        (Side::Up, Reason::UpstreamReset) => Some(Cause::Reset),
        (Side::Up, Reason::RequestTimeout) => Some(Cause::Timeout),
        _ => None,
    }
}
