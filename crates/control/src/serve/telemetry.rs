//! The Telemetry service: what proxies count, and what they are asked. One stream per proxy, whose pace is bounded: who
//! tells more than that is read later.

use super::peer::{self, Member};
use crate::reports::{Proxy, ToProxies};
use crate::state::MeshState;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use tulle_api::v1;

/// Messages that wait for a proxy.
const WAITING: usize = 16;
/// Longest wait for the first message.
const FIRST: Duration = Duration::from_secs(10);
/// Least time between messages on average. A proxy reports every few seconds and shows requests five times a second; an
/// answer is cut into up to a hundred messages.
const PACE: Duration = Duration::from_millis(20);
/// How far ahead of that a proxy may be.
const AHEAD: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub(crate) struct TelemetryService {
    state: Arc<MeshState>,
    shutdown: watch::Receiver<bool>,
}

impl TelemetryService {
    pub(crate) fn new(state: &Arc<MeshState>, shutdown: &watch::Receiver<bool>) -> Self {
        Self {
            state: state.clone(),
            shutdown: shutdown.clone(),
        }
    }
}

type Messages = Pin<Box<dyn Stream<Item = Result<v1::ToProxy, Status>> + Send>>;

#[tonic::async_trait]
impl v1::telemetry_server::Telemetry for TelemetryService {
    type ReportStream = Messages;

    async fn report(
        &self,
        request: Request<Streaming<v1::FromProxy>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let member = peer::proxy_of(&request, "telemetry")?;
        let (sender, receiver) = mpsc::channel(WAITING);
        let service = self.clone();
        let incoming = request.into_inner();
        tokio::spawn(async move {
            if let Err(status) = serve(&member, incoming, &sender, service).await {
                tracing::debug!(identity = %member.id, reason = status.message(), "reports ended");
                // The proxy may be gone already.
                let _ = sender.try_send(Err(status));
            }
        });
        let messages = ReceiverStream::new(receiver);
        Ok(Response::new(Box::pin(messages.map(|m| m.map(|m| *m)))))
    }
}

async fn serve(
    member: &Member,
    mut incoming: Streaming<v1::FromProxy>,
    sender: &ToProxies,
    service: TelemetryService,
) -> Result<(), Status> {
    let TelemetryService {
        state,
        mut shutdown,
    } = service;
    let first = tokio::time::timeout(FIRST, incoming.message()).await;
    let first = first.map_err(|_| Status::deadline_exceeded("no message came"))??;
    let reporter = first.and_then(|first| first.reporter);
    let reporter = reporter
        .ok_or_else(|| Status::invalid_argument("the first message does not say who reports"))?;
    let proxy = state
        .reports
        .join(member.id.clone(), reporter, sender.clone());
    let proxy = proxy.map_err(Status::resource_exhausted)?;
    let _leaving = Leaving(&state, &proxy);
    let mut expired = pin!(member.expired());
    let mut down = pin!(async move {
        // An error means that the controller was dropped: then it ends too.
        let _ = shutdown.wait_for(|down| *down).await;
    });
    let mut pace = Pace::new();
    loop {
        tokio::select! {
            message = incoming.message() => {
                let Some(message) = message? else {
                    return Ok(());
                };
                state.reports.hear(&proxy, &state.nodes_known(), message);
                sleep(pace.message(Instant::now())).await;
            }
            () = sender.closed() => return Ok(()),
            status = &mut expired => return Err(status),
            () = &mut down => {
                return Err(Status::unavailable("the controller is shutting down"));
            }
        }
    }
}

/// Removes a proxy when its stream ends, however it does.
struct Leaving<'a>(&'a MeshState, &'a Arc<Proxy>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.reports.leave(self.1);
    }
}

/// Says how long a proxy that tells much has to wait.
struct Pace {
    last: Instant,
    ahead: Duration,
}

impl Pace {
    fn new() -> Self {
        Self {
            last: Instant::now(),
            ahead: Duration::ZERO,
        }
    }

    /// Counts a message; how long the next one has to wait.
    fn message(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.last);
        self.last = now;
        self.ahead = self.ahead.saturating_sub(passed) + PACE;
        self.ahead.saturating_sub(AHEAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_tells_much_is_read_later() {
        let mut pace = Pace::new();
        let mut now = pace.last;
        for _ in 0..150 {
            assert_eq!(pace.message(now), Duration::ZERO, "a burst is fine");
        }
        let begin = now;
        for _ in 0..500 {
            now += pace.message(now);
        }
        assert!(now - begin >= 498 * PACE, "{:?}", now - begin);
        assert_eq!(pace.message(now + AHEAD), Duration::ZERO);
    }
}
