//! Deletes pods whose network was made before their node had the CNI plugin: a new node, or one whose
//! plugin somebody has removed. Their init container sees that the rules are missing and keeps failing,
//! for rules are made only with a pod's network. Such a pod is deleted as soon as its node has the plugin,
//! and its owner makes it again. A pod that was made when the node had the plugin already is given a
//! minute: where the plugin does not work, pods must not come and go without pause. A pod that nobody
//! would make again is left as it is: `tulle check` shows it.

use crate::names::{CNI, INIT, NOT_REDIRECTED};
use crate::pod::{ContainerStatus, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

const LOOK: Duration = Duration::from_secs(5);
const PAUSE: SignedDuration = SignedDuration::from_secs(60);

/// Looks for such pods while this replica leads.
pub(crate) async fn run(client: Client, mut leads: watch::Receiver<bool>) {
    let mut known_trouble = String::new();
    loop {
        if leads.wait_for(|leads| *leads).await.is_err() {
            return;
        }
        match look(&client).await {
            Ok(()) => known_trouble.clear(),
            Err(error) => {
                let trouble = error.to_string();
                if trouble != known_trouble {
                    tracing::warn!(error = trouble, "cannot look for pods without rules");
                    known_trouble = trouble;
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn look(client: &Client) -> kube::Result<()> {
    // The init container failed before anything of the pod's own ran. The list comes from the API server's
    // memory, which may be a little old.
    let pending = ListParams::default()
        .fields("status.phase=Pending")
        .match_any();
    let pods = Api::<Pod>::all(client.clone()).list(&pending).await?.items;
    let broken: Vec<&Pod> = pods.iter().filter(|pod| is_without_rules(pod)).collect();
    if broken.is_empty() {
        return Ok(());
    }
    let label = format!("app.kubernetes.io/name={CNI}");
    let of_nodes = Api::<Pod>::namespaced(client.clone(), CNI);
    let of_nodes = of_nodes
        .list(&ListParams::default().labels(&label))
        .await?
        .items;
    let able: BTreeMap<&str, Timestamp> = of_nodes
        .iter()
        .filter_map(|pod| Some((node(pod)?, ready_since(pod)?)))
        .collect();
    let now = Timestamp::now();
    let mut first = None;
    for pod in broken {
        let metadata = &pod.metadata;
        let (Some(name), Some(namespace)) = (&metadata.name, &metadata.namespace) else {
            continue;
        };
        let since = node(pod).and_then(|node| able.get(node));
        if !since.is_some_and(|since| is_time(pod, *since, now)) {
            continue;
        }
        let this = DeleteParams {
            preconditions: Some(Preconditions {
                uid: metadata.uid.clone(),
                ..Preconditions::default()
            }),
            ..DeleteParams::default()
        };
        match Api::<Pod>::namespaced(client.clone(), namespace)
            .delete(name, &this)
            .await
        {
            Ok(_) => tracing::info!(
                pod = format!("{namespace}/{name}"),
                "deleted: it was made before its node could redirect its traffic"
            ),
            // Somebody else was quicker.
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => {}
            // An admission policy about this pod alone, perhaps: the others have their turn.
            Err(error) => first = first.or(Some(error)),
        }
    }
    first.map_or(Ok(()), Err)
}

fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = pod.status.as_ref()?.ready()?;
    Some(ready.last_transition_time.as_ref()?.0)
}

/// Whether it is time to delete a pod. `since`: when its node became able to redirect traffic.
fn is_time(pod: &Pod, since: Timestamp, now: Timestamp) -> bool {
    let made = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    made.is_some_and(|made| made < since || now.duration_since(made) > PAUSE)
}

/// Whether its init container has found no rules, and somebody would make it again.
fn is_without_rules(pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    let is_made_again = owners
        .into_iter()
        .any(|owner| owner.controller == Some(true));
    let statuses = pod
        .status
        .as_ref()
        .and_then(|s| s.init_container_statuses.as_ref());
    let mut statuses = statuses.into_iter().flatten();
    is_made_again
        && pod.metadata.deletion_timestamp.is_none()
        && statuses.any(|s| s.name == INIT && ended(s) == Some(NOT_REDIRECTED))
}

/// How it has ended last: it may have been started again, and wait for that.
fn ended(status: &ContainerStatus) -> Option<i32> {
    let states = [&status.state, &status.last_state];
    let ended = states
        .into_iter()
        .flatten()
        .find_map(|s| s.terminated.as_ref());
    ended.map(|ended| ended.exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    #[tokio::test]
    async fn a_pod_that_nobody_may_delete_leaves_the_others_their_turn() {
        let broken = |name: &str| {
            let ended = json!({ "terminated": { "exitCode": NOT_REDIRECTED } });
            let mut pod = answered(owner(), status(INIT, ended, json!({})));
            pod["metadata"]["name"] = name.into();
            pod["metadata"]["creationTimestamp"] = "2026-11-22T09:00:00Z".into();
            pod
        };
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": "2026-11-22T10:00:00Z" });
        let mut of_node = broken("cni");
        of_node["status"] = json!({ "conditions": [ready] });
        let deleted: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&deleted);
        let server = tower::service_fn(move |request: hyper::Request<Body>| {
            let path = request.uri().path().to_owned();
            let (code, answer) = match (request.method().as_str(), path.as_str()) {
                ("GET", "/api/v1/pods") => (
                    200,
                    json!({ "metadata": {}, "items": [broken("a"), broken("b"), broken("c")] }),
                ),
                ("GET", _) => (200, json!({ "metadata": {}, "items": [of_node] })),
                (_, "/api/v1/namespaces/n/pods/a") => (
                    403,
                    json!({ "status": "Failure", "reason": "Forbidden", "code": 403 }),
                ),
                (_, path) => {
                    seen.lock().unwrap().push(path.to_owned());
                    (200, broken("b"))
                }
            };
            let body = Body::from(answer.to_string().into_bytes());
            let answer = hyper::Response::builder().status(code).body(body).unwrap();
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let failed = look(&Client::new(server, "n")).await.unwrap_err();
        assert!(matches!(failed, kube::Error::Api(answer) if answer.code == 403));
        let others = ["b", "c"].map(|name| format!("/api/v1/namespaces/n/pods/{name}"));
        assert_eq!(*deleted.lock().unwrap(), others);
    }

    fn pod(owner: Value, init: Value) -> Pod {
        serde_json::from_value(answered(owner, init)).unwrap()
    }

    /// A pod as the API server answers.
    fn answered(owner: Value, init: Value) -> Value {
        json!({
            "metadata": { "name": "a", "namespace": "n", "ownerReferences": owner },
            "spec": { "nodeName": "one", "containers": [] },
            "status": {
                "conditions": [{ "type": "Ready", "status": "False" }],
                "initContainerStatuses": [init],
            },
        })
    }

    fn owner() -> Value {
        json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a", "uid": "1", "controller": true }])
    }

    fn status(name: &str, state: Value, last: Value) -> Value {
        json!({
            "name": name, "state": state, "lastState": last, "image": "", "imageID": "",
            "ready": false, "restartCount": 1,
        })
    }

    #[test]
    fn only_pods_that_come_again_and_found_no_rules() {
        let ended = |code: i32| json!({ "terminated": { "exitCode": code } });
        let waits = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
        let (now, before) = (
            status(INIT, ended(79), json!({})),
            status(INIT, waits.clone(), ended(79)),
        );
        for broken in [&now, &before] {
            assert!(is_without_rules(&pod(owner(), broken.clone())));
            assert!(!is_without_rules(&pod(json!([]), broken.clone())));
        }
        for other in [
            status(INIT, ended(1), json!({})),
            status(INIT, ended(0), ended(79)),
            status("migrate", ended(79), json!({})),
            status(INIT, waits, json!({})),
        ] {
            assert!(!is_without_rules(&pod(owner(), other)));
        }
        assert_eq!(node(&pod(owner(), now)), Some("one"));
    }

    #[test]
    fn where_the_plugin_does_not_help_there_is_a_pause() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let mut made = pod(owner(), status(INIT, json!({}), json!({})));
        made.metadata.creation_timestamp = Some(Time(at(100)));
        assert!(is_time(&made, at(101), at(102)), "before its node could");
        assert!(!is_time(&made, at(99), at(102)), "it could already");
        assert!(is_time(&made, at(99), at(161)), "but that was a while ago");
        assert_eq!(ready_since(&made), None);
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": "2026-11-22T10:00:00Z" });
        made.status = serde_json::from_value(json!({ "conditions": [ready] })).unwrap();
        assert_eq!(ready_since(&made), "2026-11-22T10:00:00Z".parse().ok());
    }
}
