//! Objects of a cluster that are refused: the console and the operator hear why, and what is in force in their place.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "common/alone.rs"]
mod alone;
mod common;

use alone::cluster;
use serde_json::json;
use tulle_api::v1;
use tulle_control::index::{Edit, ObjectProblem};
use tulle_control::observe::Observer;
use tulle_control::{Controller, ControllerConfig, RunningController, StoreKind, read_object};
use tulle_model::manifest::Object;

async fn controller(config: ControllerConfig) -> RunningController {
    Controller::start_in_cluster(config, cluster("tulle.local"))
        .await
        .unwrap()
}

/// A policy that denies everybody, with the name that the index has.
fn denying(name: &str) -> Object {
    let policy = json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": "AuthorizationPolicy",
        "metadata": { "name": "p", "namespace": "shop" },
        "spec": {
            "targetRefs": [{ "kind": "Service", "name": "web" }], "action": "Deny", "rules": [{}],
        },
    });
    let mut policy = read_object(&policy.to_string()).unwrap();
    policy.qualify();
    name.clone_into(&mut policy.metadata_mut().name);
    policy
}

/// Name, status and message of each policy in the console.
fn policies(observer: &Observer) -> Vec<(String, &'static str, String)> {
    let rows = observer.objects(Some("AuthorizationPolicy")).into_iter();
    rows.map(|row| (row.name, row.status, row.message))
        .collect()
}

#[tokio::test]
async fn what_is_in_the_place_of_a_refused_object_is_shown_as_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let config = ControllerConfig {
        store: StoreKind::Memory,
        observe: true,
        ..common::config(directory.path())
    };
    let socket = config.socket.clone();
    let running = controller(config).await;
    let (feed, observer) = (running.feed(), running.observer().unwrap());

    let closed = "Authentication/a.shop: it is refused (why); nobody may call its targets";
    let kept =
        "AuthorizationPolicy/p.shop: it is refused (why); its last valid version stays in force";
    let nothing = "RateLimit/r.shop: it is refused (why); nothing of it is in force";
    let refused = [
        ("AuthorizationPolicy/authentication/a.shop", closed),
        ("AuthorizationPolicy/p.shop", kept),
        ("", nothing),
    ];
    let names = ["authentication/a.shop", "p.shop", "q.shop"].into_iter();
    let mut edits: Vec<Edit> = names
        .map(|name| Edit::Put(Box::new(denying(name))))
        .collect();
    let problems = refused.iter().map(|(object, text)| ObjectProblem {
        object: (*object).to_owned(),
        text: (*text).to_owned(),
    });
    edits.push(Edit::Refused(problems.collect()));
    let harmless = ObjectProblem {
        object: "Ingress/i.shop".to_owned(),
        text: "it is not served".to_owned(),
    };
    edits.push(Edit::Problems(vec![harmless]));
    feed.edit(edits);

    let shown = policies(&observer);
    let [a, p, q] = shown.as_slice() else {
        panic!("{shown:?}");
    };
    let expected = ("authentication/a".to_owned(), "refused", closed.to_owned());
    assert_eq!(*a, expected);
    assert_eq!(*p, ("p".to_owned(), "refused", kept.to_owned()));
    assert_eq!((q.0.as_str(), q.1), ("q", "accepted"));
    let page = observer.object("AuthorizationPolicy", "p", Some("shop"));
    let mut findings = page.unwrap().findings.into_iter();
    assert!(findings.any(|finding| finding.message == kept));
    let found = observer.findings().into_iter();
    let found = found.filter(|finding| finding.severity == "error");
    let found: Vec<String> = found.map(|finding| finding.message).collect();
    assert_eq!(found, [closed, kept, nothing]);

    // `tulle check` reads these, and shows the first of them.
    let mut operator = common::local(&socket).await;
    let status = operator.status(v1::StatusRequest::default()).await;
    let problems = status.unwrap().into_inner().problems;
    let first = [closed, kept, nothing].map(str::to_owned);
    assert!(problems.starts_with(&first), "{problems:?}");
    let harmless = "Ingress/i.shop: it is not served".to_owned();
    assert!(problems.contains(&harmless), "{problems:?}");

    drop(operator);

    feed.edit(vec![Edit::Refused(Vec::new())]);
    let shown = policies(&observer);
    let accepted = shown.iter().all(|(_, status, _)| *status == "accepted");
    assert!(accepted && shown.len() == 3, "{shown:?}");
    running.shutdown().await;
}
