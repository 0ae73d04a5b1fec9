//! Pods that say themselves whether they have a sidecar say it to the webhook, which chooses them by labels alone.

use super::*;

type Importer = fn(Vec<Value>) -> Imported;

/// Metadata of the pods of a Deployment after its import, in which nothing is lost.
fn of_pods(metadata: &str, import: Importer) -> Value {
    let text = format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: shop}}
spec: {{template: {{metadata: {metadata}}}}}
"
    );
    let imported = checked(&text, import);
    assert_eq!(imported.lost, [], "{text}");
    let [made] = imported.objects.as_slice() else {
        panic!("{imported:?}");
    };
    made.object["spec"]["template"]["metadata"].clone()
}

#[test]
fn a_pods_wish_becomes_a_label() {
    let wishes: [(&str, &str, Importer); 6] = [
        (
            "openservicemesh.io/sidecar-injection: enabled",
            "enabled",
            osm::import,
        ),
        (
            "flomesh.io/sidecar-injection: enabled",
            "enabled",
            osm::import,
        ),
        (
            "flomesh.io/sidecar-injection: disabled",
            "disabled",
            osm::import,
        ),
        ("linkerd.io/inject: enabled", "enabled", linkerd::import),
        ("linkerd.io/inject: ingress", "enabled", linkerd::import),
        ("linkerd.io/inject: disabled", "disabled", linkerd::import),
    ];
    for (theirs, ours, import) in wishes {
        let metadata = format!("{{labels: {{app: web}}, annotations: {{{theirs}}}}}");
        assert_eq!(
            of_pods(&metadata, import),
            json!({ "labels": { "app": "web", "tulle.dev/inject": ours } }),
            "{theirs}"
        );
    }
}

/// A label `enabled` would win over an annotation `disabled`.
#[test]
fn pods_that_are_kept_out_of_this_mesh_stay_out() {
    let wishes: [(&str, Importer); 2] = [
        ("openservicemesh.io/sidecar-injection: enabled", osm::import),
        ("linkerd.io/inject: enabled", linkerd::import),
    ];
    for (theirs, import) in wishes {
        let annotated = format!("{{annotations: {{tulle.dev/inject: disabled, {theirs}}}}}");
        assert_eq!(
            of_pods(&annotated, import),
            json!({ "annotations": { "tulle.dev/inject": "disabled" } }),
            "{theirs}"
        );
        let labelled =
            format!("{{labels: {{tulle.dev/inject: disabled}}, annotations: {{{theirs}}}}}");
        assert_eq!(
            of_pods(&labelled, import),
            json!({ "labels": { "tulle.dev/inject": "disabled" } }),
            "{theirs}"
        );
    }
}
