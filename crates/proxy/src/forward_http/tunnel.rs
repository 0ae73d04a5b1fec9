//! What follows an upgrade, or a CONNECT that was granted: bytes both ways.

use super::Conversation;
use crate::forward_tcp;
use crate::scope::{Asks, Scope};
use crate::upstream::Lease;
use tulle_net::Buf;

impl Conversation<'_> {
    /// Bytes both ways. What led to it was counted as a request. It may last
    /// for days, so the policy is asked about it again when the configuration has changed.
    pub(super) async fn tunnel(&mut self, (mut lease, from_up): (Lease, Buf)) {
        let (worker, scope) = (self.worker, self.scope);
        let judged = self.judged.take();
        let allowed = || match (scope, &judged) {
            (Scope::Inbound(_) | Scope::Egress(_), Some(judged)) => {
                let asks = Asks {
                    head: &judged.head,
                    bytes: &judged.bytes,
                    forwarded: &judged.forwarded,
                };
                scope.decide(worker, &worker.config(), &asks).map(drop)
            }
            _ => Ok(()),
        };
        let from_down = std::mem::take(&mut self.received);
        let idle = worker.config().snapshot.mesh.idle_timeout_ms;
        let mut pipe = forward_tcp::Pipe::new(from_down, from_up, idle);
        let ended = loop {
            let changed = worker.changed();
            if let Err(failure) = allowed() {
                let series = scope.series(worker, &worker.config());
                let source = series.labels.source.as_ref().map(|id| id.as_str());
                let target = judged
                    .as_ref()
                    .map_or(&b""[..], |j| j.head.target.of(&j.bytes));
                let service = &series.labels.destination_service;
                worker.failed(source, service, target, 0, &failure);
                break false;
            }
            let run = pipe.run(&mut self.down, &mut lease.link, &self.deadline, |_, _| {});
            tokio::select! {
                biased;
                result = run => break result.is_ok(),
                () = changed => {}
            }
        };
        if !ended {
            self.down.abort();
            lease.link.abort();
        }
    }
}
