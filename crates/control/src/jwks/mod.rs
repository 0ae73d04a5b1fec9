//! Keys that sign tokens, fetched where an Authentication names them by `jwksUri`.
//!
//! The controller fetches each set once for all sidecars, and sends them the keys like keys that stand in
//! an object. A tenant's object must not make it reach hosts that only the controller reaches. So it asks
//! only the hosts that the Mesh lists, over TLS, at addresses of the internet unless the Mesh says
//! otherwise. It follows no redirect, and bounds size, time and number.

mod address;
mod fetch;
mod set;

use crate::index::KeySource;
use crate::state::MeshState;
use fetch::Fetched;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// Least time between two fetches of a set; also while the last one failed.
pub const LEAST_REFRESH: Duration = Duration::from_secs(30);
/// Time until the next fetch where an answer does not say how long it holds (`Cache-Control: max-age`).
const REFRESH: Duration = Duration::from_mins(5);
/// Longest time until the next fetch, whatever the answer says.
const MOST_REFRESH: Duration = Duration::from_hours(1);

/// Least time between two looks at what objects name: a new address is asked at once, so whoever changes
/// objects again and again must not decide how often a server is asked.
const SETTLE: Duration = Duration::from_secs(1);

/// Fetches what objects ask for, for as long as they do, until the controller is `down`. Each set has a
/// task of its own, so that a server that does not answer delays nobody else's keys.
///
/// It ends by itself and is not cut off: what it writes would go on, and keep the store open.
pub(crate) async fn follow(
    state: Arc<MeshState>,
    least: Duration,
    mut down: watch::Receiver<bool>,
) {
    let mut wanted = state.key_sources();
    let mut tasks = JoinSet::new();
    let mut running: BTreeMap<KeySource, AbortHandle> = BTreeMap::new();
    loop {
        let sources = wanted.borrow_and_update().clone();
        running.retain(|source, task| {
            let keep = sources.contains(source);
            if !keep {
                task.abort();
            }
            keep
        });
        while tasks.try_join_next().is_some() {}
        let (all, forgetful) = (sources.clone(), state.clone());
        // It may wait for the disk.
        let forgotten = tokio::task::spawn_blocking(move || forgetful.forget_keys(&all)).await;
        if forgotten.is_err() {
            break;
        }
        for source in sources {
            let (state, down) = (state.clone(), down.clone());
            running
                .entry(source.clone())
                .or_insert_with(|| tasks.spawn(refresh(state, source, least, down)));
        }
        let more = async {
            tokio::time::sleep(SETTLE.min(least)).await;
            wanted.changed().await.is_ok()
        };
        let ends = tokio::select! {
            more = more => !more,
            _ = down.wait_for(|down| *down) => true,
        };
        if ends {
            break;
        }
    }
    while tasks.join_next().await.is_some() {}
}

async fn refresh(
    state: Arc<MeshState>,
    source: KeySource,
    least: Duration,
    mut down: watch::Receiver<bool>,
) {
    loop {
        let fetched = tokio::select! {
            fetched = fetch::fetch(&source) => fetched,
            _ = down.wait_for(|down| *down) => return,
        };
        let wait = match &fetched {
            Ok(Fetched { max_age, .. }) => {
                let age = max_age.unwrap_or(REFRESH);
                age.clamp(least, MOST_REFRESH.max(least))
            }
            Err(_) => least,
        };
        let (from, keeper) = (source.clone(), state.clone());
        let fetched = fetched.map(|f| f.jwks);
        // It may wait for the disk.
        let kept = tokio::task::spawn_blocking(move || keeper.keep_keys(&from, fetched)).await;
        if kept.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = down.wait_for(|down| *down) => return,
        }
    }
}
