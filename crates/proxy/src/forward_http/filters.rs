//! Between the decision about a request and its way on: what its route says to do to it.

use super::{Conversation, Exchange, Next, request_target};
use crate::filter::{Passing, Wait};
use crate::header_edit::Draft;
use crate::reason::{Failure, Reason};
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

/// What became of a request among its filters; `Ok(None)`: it goes on.
pub(super) type Filtered = Result<Option<Wait>, Failure>;

impl Conversation<'_> {
    /// Takes a request through its filters, from the one at `at`, as far as it goes without
    /// waiting.
    pub(super) fn filter(&self, exchange: &mut Exchange, at: &mut usize) -> Filtered {
        let relay = &mut exchange.relay;
        let decision = &exchange.decision;
        let Some(filters) = &decision.filters else {
            return Ok(None);
        };
        let (whole, upgrade) = (relay.is_whole(), relay.is_upgrade());
        let head = relay.request.len() - relay.body_at_hand();
        let mut passing = Passing {
            worker: self.worker,
            config: &exchange.config,
            scope: self.scope,
            draft: Draft::new(&mut relay.request, head),
            matched: decision.matched,
            whole,
            upgrade,
            response: &mut relay.edits,
            copies: &mut relay.copies,
        };
        filters.run(at, &mut passing)
    }

    /// The same for a request that has to wait, or is answered. `None`: it goes on.
    pub(super) async fn filter_on(
        &mut self,
        exchange: &mut Exchange,
        mut at: usize,
        mut filtered: Filtered,
    ) -> Option<Next> {
        loop {
            match filtered {
                Ok(None) => return None,
                Ok(Some(Wait::Delay(time))) => {
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
                Err(failure) => {
                    let Exchange {
                        config,
                        asked,
                        decision,
                        relay,
                    } = exchange;
                    let target = request_target(&relay.request);
                    let edits = relay.edits.as_deref();
                    let next = self
                        .refuse(config, asked, Some(decision), &failure, &target, edits)
                        .await;
                    return Some(next);
                }
            }
            filtered = self.filter(exchange, &mut at);
        }
    }

    /// Waits, unless the client goes away meanwhile.
    pub(super) async fn pause(&mut self, time: Duration) -> io::Result<()> {
        self.deadline.arm(time);
        let mut ended = false;
        poll_fn(|cx| {
            if let Poll::Ready(error) = self.down.poll_reset(cx) {
                return Poll::Ready(Err(error));
            }
            // No more than one buffer is read ahead. A client may half-close and still wait.
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
