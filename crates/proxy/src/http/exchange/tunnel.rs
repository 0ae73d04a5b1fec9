//! Relays bytes both ways after an upgrade, or after a CONNECT that was granted.

use super::Conversation;
use crate::context::memory_limit;
use crate::decision::ConnectionContext;
use crate::decision::between::Between;
use crate::decision::request::RequestView;
use crate::tcp::forward;
use crate::tcp::pipe::Pipe;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::Lease;
use tulle_net::Buf;

impl Conversation<'_> {
    /// Relays bytes both ways. The request that opened the tunnel was counted already. A tunnel may
    /// last for days, so the policy judges it again when the configuration has changed, and it ends
    /// with the certificates of its peers.
    pub(super) async fn tunnel(&mut self, (mut lease, from_up): (Lease, Buf)) {
        let (worker, scope) = (self.worker, self.scope);
        let judged = self.judged.take();
        let allowed = || match &judged {
            Some(judged) => {
                let config = worker.config();
                let view = RequestView {
                    head: &judged.head,
                    bytes: &judged.bytes,
                    forwarded: &judged.forwarded,
                    parties: &Between::new(scope, &config),
                };
                match scope {
                    ConnectionContext::Inbound(_) | ConnectionContext::Egress(_) => {
                        scope.decide(worker, &config, &view).map(drop)
                    }
                    ConnectionContext::Gateway(scope) => scope.judge_again(worker, &config, &view),
                    // The server's side decides.
                    ConnectionContext::Outbound(_) => Ok(()),
                }
            }
            None => Ok(()),
        };
        let from_down = std::mem::take(&mut self.received);
        let idle = worker.config().snapshot.mesh.idle_timeout_ms;
        let mut pipe = Pipe::new(from_down, from_up, idle);
        let expiry = forward::expiry(worker, scope.peer_not_after(), &lease);
        let ended = loop {
            let changed = worker.changed();
            if let Err(failure) = allowed() {
                break Err(Some(failure));
            }
            let run = pipe.run(&mut self.down, &mut lease.link, &self.deadline, |_, _| {});
            tokio::select! {
                biased;
                result = run => break result.map_err(|reason| {
                    (reason == Reason::Overload).then(|| {
                        worker.metrics.internal(|i| i.shed += 1);
                        Failure::new(reason, memory_limit::STUCK)
                    })
                }),
                () = changed => {}
                failure = forward::expired(expiry.as_ref()) => break Err(Some(failure)),
            }
        };
        if let Err(Some(failure)) = &ended {
            let series = scope.series(worker, &worker.config());
            let source = series.labels.source.as_ref().map(|id| id.as_str());
            let target = judged
                .as_ref()
                .map_or(&b""[..], |j| j.head.target.slice(&j.bytes));
            let service = &series.labels.destination_service;
            worker.failed(source, service, target, 0, failure);
        }
        if ended.is_err() {
            self.down.abort();
            lease.link.abort();
        }
    }
}
