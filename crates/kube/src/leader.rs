//! One of several replicas writes to the API server; all of them serve proxies.

use crate::names::{CONTROLLER, LEASE};
use kube::Client;
use kube_lease_manager::LeaseManagerBuilder;
use std::time::Duration;
use tokio::sync::watch;

/// A leader that is gone is followed by another after this long.
const DURATION: u64 = 15;
/// A leader that cannot renew gives up this long before others may follow.
const GRACE: u64 = 5;
const PAUSE: Duration = Duration::from_secs(5);

/// Tells whether this process is the leader, for as long as the process runs.
pub fn run(client: Client, namespace: String, identity: String) -> watch::Receiver<bool> {
    let (leads, receiver) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            if let Err(error) = follow(&client, &namespace, &identity, &leads).await {
                tracing::warn!(error, "cannot find out which replica leads");
            }
            leads.send_replace(false);
            tokio::time::sleep(PAUSE).await;
        }
    });
    receiver
}

async fn follow(
    client: &Client,
    namespace: &str,
    identity: &str,
    leads: &watch::Sender<bool>,
) -> Result<(), String> {
    let manager = LeaseManagerBuilder::new(client.clone(), LEASE)
        .with_namespace(namespace)
        .with_identity(identity)
        .with_duration(DURATION)
        .with_grace(GRACE)
        .with_field_manager(CONTROLLER)
        .build()
        .await
        .map_err(|e| e.to_string())?;
    let (mut state, task) = manager.watch().await;
    while state.changed().await.is_ok() {
        let is = *state.borrow_and_update();
        if leads.send_replace(is) != is {
            tracing::info!(leads = is, "leadership");
        }
    }
    drop(state);
    match task.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}
