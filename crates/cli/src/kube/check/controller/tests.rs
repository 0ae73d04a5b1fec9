use super::*;
use serde_json::json;
use tulle_kube::names::WEBHOOK;

fn found(report: &Report, id: &str) -> Outcome {
    let mut all = report.0.iter().filter(|f| f.id == id);
    all.next()
        .unwrap_or_else(|| panic!("no {id} in {report:?}"))
        .outcome
}

#[test]
fn nothing_installed_is_an_error_that_says_so() {
    let facts = Facts {
        home: "tulle-system".into(),
        ..Facts::default()
    };
    let mut report = Report::default();
    check(&facts, &mut report);
    for id in ["TK020", "TK021", "TK030"] {
        assert_eq!(found(&report, id), Outcome::Error, "{id}");
    }
}

#[test]
fn what_the_controller_says_of_objects_is_told() {
    let outcome = |problems: &[&str]| {
        let facts = Facts {
            status: Some(Ok(tulle_api::v1::ControllerStatus {
                problems: problems.iter().map(ToString::to_string).collect(),
                ..Default::default()
            })),
            ..Facts::default()
        };
        let mut report = Report::default();
        objects(&facts, &mut report);
        found(&report, "TK039")
    };
    assert_eq!(outcome(&[]), Outcome::Ok);
    let wrong = "TrafficPolicy/p.shop: service web.shop, which it is about, does not exist";
    assert_eq!(outcome(&[wrong]), Outcome::Error);
}

#[test]
fn keys_that_are_not_fetched_are_a_warning() {
    let text = "Authentication/a.shop: the keys of https://a.example/ are not fetched";
    let status = tulle_api::v1::ControllerStatus {
        problems: vec![text.to_owned()],
        warnings: vec![text.to_owned()],
        ..Default::default()
    };
    let facts = Facts {
        status: Some(Ok(status)),
        ..Facts::default()
    };
    let mut report = Report::default();
    objects(&facts, &mut report);
    assert_eq!(found(&report, "TK039"), Outcome::Ok);
    assert_eq!(found(&report, "TK046"), Outcome::Warning);
}

#[test]
fn the_metrics_api_is_trusted_by_the_meshs_root() {
    use super::super::testing::{ONE, TWO};
    use base64::Engine as _;
    let base64 = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
    let outcome = |spec: Value| {
        let facts = Facts {
            home: "tulle-system".into(),
            bundles: vec![json!({
                "metadata": { "namespace": "tulle-system" }, "data": { "ca.crt": ONE },
            })],
            api_service: Some(json!({
                "spec": spec,
                "status": { "conditions": [{ "type": "Available", "status": "True" }] },
            })),
            ..Facts::default()
        };
        let mut report = Report::default();
        check(&facts, &mut report);
        found(&report, "TK040")
    };
    let both = base64(&format!("{TWO}{ONE}"));
    assert_eq!(outcome(json!({ "caBundle": base64(ONE) })), Outcome::Ok);
    assert_eq!(outcome(json!({ "caBundle": both })), Outcome::Ok);
    for wrong in [
        json!({}),
        json!({ "caBundle": base64(TWO) }),
        json!({ "insecureSkipTLSVerify": true }),
    ] {
        assert_eq!(outcome(wrong.clone()), Outcome::Error, "{wrong}");
    }
}

#[test]
fn the_service_is_looked_at_whatever_namespace_is_asked_about() {
    let outcome = |slices: Option<Vec<Value>>| {
        let facts = Facts {
            within: Some("shop".into()),
            home: "tulle-system".into(),
            controller: Some(json!({})),
            controller_slices: slices,
            ..Facts::default()
        };
        let mut report = Report::default();
        check(&facts, &mut report);
        found(&report, "TK029")
    };
    let slice = |ready: bool| json!({ "endpoints": [{ "conditions": { "ready": ready } }] });
    assert_eq!(outcome(Some(vec![slice(true)])), Outcome::Ok);
    for none in [vec![], vec![slice(false)], vec![json!({})]] {
        assert_eq!(outcome(Some(none)), Outcome::Error);
    }
    // It may not be seen.
    assert_eq!(outcome(None), Outcome::Ok);
}

#[test]
fn the_pods_are_looked_at_whatever_namespace_is_asked_about() {
    let found = |own_pods: Vec<Value>| {
        let facts = Facts {
            within: Some("shop".into()),
            home: "tulle-system".into(),
            pods: vec![json!({ "metadata": { "namespace": "shop", "name": "web" } })],
            own_pods,
            ..Facts::default()
        };
        let mut report = Report::default();
        deployment(&facts, &json!({}), &mut report);
        ["TK022", "TK023"].map(|id| {
            let mut all = report.0.iter().filter(|f| f.id == id);
            let found = all.next().unwrap();
            (found.outcome, found.finding.clone())
        })
    };
    let pod = |ready: &str, restarts: u64| {
        json!({
            "metadata": {
                "namespace": "tulle-system", "name": "controller-1",
                "labels": { "app.kubernetes.io/name": CONTROLLER },
            },
            "status": {
                "conditions": [{ "type": "Ready", "status": ready }],
                "containerStatuses": [{ "restartCount": restarts }],
            },
        })
    };
    let said = |outcome, finding: &str| (outcome, finding.to_owned());
    assert_eq!(
        found(vec![pod("True", 0)]),
        [
            said(Outcome::Ok, "all are ready"),
            said(Outcome::Ok, "few or none"),
        ]
    );
    assert_eq!(
        found(vec![pod("False", RESTARTS)]),
        [
            said(Outcome::Warning, "pod controller-1 is not ready"),
            said(Outcome::Warning, "pod controller-1: 3"),
        ]
    );
    // They may not be seen.
    let unseen = said(Outcome::Ok, "not looked at: none of its pods is to be seen");
    assert_eq!(found(vec![]), [unseen.clone(), unseen]);
}

#[test]
fn what_is_half_there_is_found_out() {
    let facts = Facts {
        home: "tulle-system".into(),
        namespaces: vec![
            json!({ "metadata": { "name": "tulle-system" } }),
            json!({ "metadata": { "name": "shop" } }),
        ],
        controller: Some(json!({ "spec": { "replicas": 2 }, "status": { "readyReplicas": 1 } })),
        settings: Some(json!({ "data": { "settings.json": "{}" } })),
        mutating: vec![json!({ "metadata": { "name": WEBHOOK }, "webhooks": [
            { "name": "a", "failurePolicy": "Ignore", "clientConfig": { "service": { "name": "x" } } },
        ] })],
        validating: vec![json!({ "metadata": { "name": "tulle-objects" }, "webhooks": [{}] })],
        bundles: vec![
            json!({ "metadata": { "namespace": "tulle-system" }, "data": { "ca.crt": "none" } }),
        ],
        crds: vec![
            json!({ "metadata": { "name": "meshes.tulle.dev" }, "spec": { "group": "tulle.dev" } }),
        ],
        api_service: Some(json!({ "status": { "conditions": [
            { "type": "Available", "status": "False", "message": "no endpoints" },
        ] } })),
        status: Some(Err("no".into())),
        trial: Some(Ok(false)),
        ..Facts::default()
    };
    let mut report = Report::default();
    check(&facts, &mut report);
    for id in [
        "TK024", "TK026", "TK028", "TK031", "TK032", "TK033", "TK034", "TK035", "TK037", "TK040",
    ] {
        assert_eq!(found(&report, id), Outcome::Error, "{id}");
    }
    for id in ["TK021", "TK025", "TK030", "TK036"] {
        assert_eq!(found(&report, id), Outcome::Warning, "{id}");
    }
    assert_eq!(found(&report, "TK020"), Outcome::Ok);
}
