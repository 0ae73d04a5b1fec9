//! The CNI plugin is taken away from the nodes before what could do so is removed.

use super::cluster::Cluster;
use super::workloads::text;
use crate::failure::{Failure, Result};
use crate::output::line;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tulle_kube::install::take_away;
use tulle_kube::names::CNI;

/// Has each node's pod take it away, and waits until all have.
pub(super) async fn take_plugin_away(cluster: &Cluster, patience: Duration) -> Result<()> {
    let path = format!("/apis/apps/v1/namespaces/{CNI}/daemonsets/{CNI}");
    let Some(change) = cluster.get(&path).await?.as_ref().and_then(take_away) else {
        return Ok(());
    };
    cluster.patch(&path, &change).await?;
    let end = Instant::now() + patience;
    loop {
        let Some(daemon_set) = cluster.get(&path).await? else {
            return Ok(());
        };
        if is_done(&daemon_set) {
            line("the CNI plugin is on no node any more");
            return Ok(());
        }
        if Instant::now() > end {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let query =
        format!("/api/v1/namespaces/{CNI}/pods?labelSelector=app.kubernetes.io%2Fname%3D{CNI}");
    let pods = cluster.list(&query).await?;
    let not_ready = pods.iter().filter(|pod| !super::workloads::is_ready(pod));
    let nodes: BTreeSet<&str> = not_ready.map(|pod| text(pod, "/spec/nodeName")).collect();
    let nodes = nodes.into_iter().collect::<Vec<_>>().join(" ");
    Err(Failure::new(format!("the CNI plugin is not known to be gone from: {nodes}")).fix(
        "make these nodes ready, or delete them, and try again; with --force (Helm: --no-hooks) it stays there, where \
         it lets every pod pass",
    ))
}

fn is_done(daemon_set: &Value) -> bool {
    let number = |pointer: &str| {
        daemon_set
            .pointer(pointer)
            .and_then(Value::as_u64)
            .unwrap_or(0)
    };
    let wanted = number("/status/desiredNumberScheduled");
    number("/status/observedGeneration") >= number("/metadata/generation")
        && number("/status/updatedNumberScheduled") == wanted
        && number("/status/numberReady") == wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_pods_of_the_change_are_ready() {
        let with = |observed: u64, updated: u64, ready: u64| {
            json!({
                "metadata": { "generation": 2 },
                "status": {
                    "observedGeneration": observed, "desiredNumberScheduled": 3,
                    "updatedNumberScheduled": updated, "numberReady": ready,
                },
            })
        };
        assert!(is_done(&with(2, 3, 3)));
        for not in [with(1, 3, 3), with(2, 2, 3), with(2, 3, 2)] {
            assert!(!is_done(&not), "{not}");
        }
    }
}
