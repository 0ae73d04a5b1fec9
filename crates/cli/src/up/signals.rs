//! The signals that end a mesh. They are listened for before anything is started, so that a Ctrl-C
//! at any moment ends it in order.

use crate::failure::{OrFail, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Interrupt (Ctrl-C), terminate (`tulle down`), hang-up (a closed terminal).
#[derive(Clone)]
pub(crate) struct Signals(watch::Receiver<u32>);

impl Signals {
    /// Takes them over from now on. Must be called within a `LocalSet`.
    pub(crate) fn listen() -> Result<Self> {
        let what = || "cannot wait for signals".to_owned();
        let mut interrupt = signal(SignalKind::interrupt()).or_fail(what)?;
        let mut terminate = signal(SignalKind::terminate()).or_fail(what)?;
        let mut hangup = signal(SignalKind::hangup()).or_fail(what)?;
        let (count, signals) = watch::channel(0_u32);
        tokio::task::spawn_local(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => tracing::info!("interrupted"),
                    _ = terminate.recv() => tracing::info!("received SIGTERM; stopping"),
                    _ = hangup.recv() => tracing::info!("the terminal was closed; stopping"),
                }
                count.send_modify(|c| *c = c.saturating_add(1));
            }
        });
        Ok(Self(signals))
    }

    /// Done when one has come.
    pub(crate) async fn first(&self) {
        self.reach(1).await;
    }

    /// Done when another has come: somebody does not want to wait.
    pub(crate) async fn second(&self) {
        self.reach(2).await;
    }

    async fn reach(&self, count: u32) {
        let mut signals = self.0.clone();
        if signals.wait_for(|c| *c >= count).await.is_err() {
            // Nobody listens any more, so none will come.
            std::future::pending::<()>().await;
        }
    }
}
