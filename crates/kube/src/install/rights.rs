//! The rights of the controller.

use super::template::{OpenValue, set, when};
use super::{metadata, namespaced, subjects};
use crate::gateway::ROLE as GATEWAYS;
use crate::kinds::KINDS;
use crate::names::{CONTROLLER, LEASE, VALIDATOR, WEBHOOK};
use crate::root;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Rules to read the objects that say something of the mesh, and to write their status.
fn of_kinds() -> Vec<Value> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for kind in &KINDS {
        groups.entry(kind.group).or_default().push(kind.plural);
    }
    let rules = groups.into_iter().flat_map(|(group, plurals)| {
        let written = plurals.iter().filter(|plural| **plural != "ingressclasses");
        let statuses = written.map(|plural| format!("{plural}/status"));
        let statuses: Vec<String> = statuses.collect();
        [
            json!({ "apiGroups": [group], "resources": plurals, "verbs": ["get", "list", "watch"] }),
            json!({ "apiGroups": [group], "resources": statuses, "verbs": ["patch"] }),
        ]
    });
    rules.collect()
}

/// See where things are, say whose a token is, publish its root.
pub(super) fn of_controller() -> Vec<Value> {
    let reference = |kind: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": CONTROLLER });
    let mut rules = vec![
        json!({ "apiGroups": [""], "resources": ["services", "pods", "nodes", "namespaces"], "verbs": ["get", "list", "watch"] }),
        json!({ "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"] }),
        json!({ "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"] }),
        // Whether whoever opens the console may look at the mesh.
        when(
            set("console.enabled"),
            json!({ "apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"] }),
        ),
        // Server-side apply is a patch, and a create where there is nothing yet.
        json!({ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"] }),
        json!({ "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [crate::names::TRUST_BUNDLE], "verbs": ["get", "patch"] }),
        // ConfigMaps that policies and Gateways refer to are read one by one.
        json!({ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"] }),
        json!({ "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list", "watch"] }),
        json!({ "apiGroups": ["gateway.networking.k8s.io"], "resources": ["gatewayclasses"], "verbs": ["create"] }),
        json!({ "apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"], "resourceNames": [WEBHOOK], "verbs": ["get", "update"] }),
        json!({ "apiGroups": ["admissionregistration.k8s.io"], "resources": ["validatingwebhookconfigurations"], "resourceNames": [VALIDATOR], "verbs": ["get", "update"] }),
    ];
    rules.extend(of_kinds());
    vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": metadata(CONTROLLER),
            "rules": rules,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": metadata(CONTROLLER),
            "roleRef": reference("ClusterRole"), "subjects": subjects(),
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": namespaced(CONTROLLER),
            "rules": [
                { "apiGroups": [""], "resources": ["secrets"], "verbs": ["create"] },
                { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"] },
                { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [LEASE], "verbs": ["get", "list", "watch", "patch", "update"] },
                { "apiGroups": [""], "resources": ["secrets"], "resourceNames": [root::SECRET], "verbs": ["get", "list", "watch", "update"] },
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": namespaced(CONTROLLER),
            "roleRef": reference("Role"), "subjects": subjects(),
        }),
    ]
}

/// A role that is bound in the controller's own namespace and in those named for Gateways. With the value
/// `gateways.allNamespaces` it is bound in all.
pub(super) fn for_gateways() -> [Value; 3] {
    let role =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": GATEWAYS });
    let mut here = metadata(GATEWAYS);
    here["namespace"] = OpenValue::Item.open();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": here,
        "roleRef": role, "subjects": subjects(),
    });
    [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": metadata(GATEWAYS),
            "rules": crate::gateway::rights(),
        }),
        OpenValue::EachNamespace("gateways.namespaces".into(), binding).open(),
        when(
            set("gateways.allNamespaces"),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": metadata(GATEWAYS),
                "roleRef": role, "subjects": subjects(),
            }),
        ),
    ]
}

/// Grants the right to delete pods whose node could not redirect their traffic when it made them.
pub(super) fn to_repair() -> [Value; 2] {
    let name = "tulle-repair";
    let rights = [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": metadata(name),
            "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["delete"] }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": metadata(name),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": subjects(),
        }),
    ];
    rights.map(|right| when(set("cni.enabled"), right))
}

/// Grants the right to create cert-manager's requests.
pub(super) fn to_request() -> [Value; 2] {
    let name = "tulle-issuer";
    let rights = [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": namespaced(name),
            "rules": [{
                "apiGroups": ["cert-manager.io"], "resources": ["certificaterequests"],
                "verbs": ["create", "get", "list", "delete"],
            }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": namespaced(name),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
            "subjects": subjects(),
        }),
    ];
    rights.map(|right| when(set("issuer.certManager.name"), right))
}

#[cfg(test)]
mod tests {
    use super::super::choice::Choice;
    use super::super::template::Filler;
    use super::super::{chart, objects, templates};
    use super::*;
    use std::collections::BTreeSet;

    fn installed(values: Value) -> Vec<Value> {
        objects("home", &Choice::from_layers(&[values]).unwrap())
    }

    /// `verb resource.group` of all that a role lets the controller do.
    fn permitted(role: &Value) -> BTreeSet<String> {
        let list = |rule: &Value, field: &str| -> Vec<String> {
            let items = rule[field].as_array().unwrap().iter();
            items.map(|i| i.as_str().unwrap().to_owned()).collect()
        };
        let mut all = BTreeSet::new();
        for rule in role["rules"].as_array().unwrap() {
            for group in list(rule, "apiGroups") {
                for resource in list(rule, "resources") {
                    for verb in list(rule, "verbs") {
                        all.insert(format!("{verb} {resource}.{group}"));
                    }
                }
            }
        }
        all
    }

    /// Roles that hold in every namespace, of these objects.
    fn everywhere(objects: &[Value]) -> Vec<&Value> {
        let bound = |role: &Value| {
            objects.iter().any(|o| {
                o["kind"] == "ClusterRoleBinding"
                    && o["roleRef"]["name"] == role["metadata"]["name"]
            })
        };
        let roles = objects.iter().filter(|o| o["kind"] == "ClusterRole");
        roles.filter(|role| bound(role)).collect()
    }

    #[test]
    fn secrets_and_deployments_are_nowhere_unless_it_is_said() {
        let writes = ["create", "patch", "update", "delete"];
        let beyond = |objects: &[Value]| -> Vec<String> {
            let rights = everywhere(objects).into_iter().flat_map(permitted);
            let is_beyond = |right: &String| {
                let (verb, what) = right.split_once(' ').unwrap();
                what == "secrets."
                    || (writes.contains(&verb)
                        && ["deployments.apps", "services.", "serviceaccounts."].contains(&what))
            };
            rights.filter(is_beyond).collect()
        };
        assert_eq!(beyond(&installed(json!({}))), Vec::<String>::new());
        let named = installed(json!({ "gateways": { "namespaces": ["infra", "home"] } }));
        assert_eq!(beyond(&named), Vec::<String>::new());
        let bindings = named
            .iter()
            .filter(|o| o["kind"] == "RoleBinding" && o["metadata"]["name"] == GATEWAYS);
        let places: Vec<&Value> = bindings.map(|b| &b["metadata"]["namespace"]).collect();
        assert_eq!(places, ["home", "infra"]);
        let all = installed(json!({ "gateways": { "allNamespaces": true } }));
        assert!(beyond(&all).contains(&"list secrets.".to_owned()));
    }

    #[test]
    fn nothing_lets_the_controller_take_more_rights() {
        for role in every_role() {
            for right in permitted(&role) {
                let (verb, what) = right.split_once(' ').unwrap();
                assert!(!right.contains('*'), "{right}");
                assert!(
                    !["bind", "escalate", "impersonate"].contains(&verb),
                    "{right}"
                );
                let group = what.split_once('.').unwrap().1;
                assert!(
                    group != "rbac.authorization.k8s.io" || verb == "list" || verb == "delete",
                    "{right}"
                );
            }
        }
    }

    /// Returns the roles with every option enabled, and those of Helm's hooks.
    fn every_role() -> Vec<Value> {
        let values = json!({
            "cni": { "enabled": true },
            "issuer": { "certManager": { "name": "mesh" } },
            "monitoring": { "smiMetrics": true },
        });
        let choice = Choice::from_layers(&[values]).unwrap();
        let filler = Filler {
            namespace: "home",
            values: &choice.values,
            item: "",
        };
        let all = [templates(), chart::hook::templates()].concat();
        let all = all.iter().flat_map(|template| filler.objects(template));
        all.filter(|o| o["kind"] == "ClusterRole" || o["kind"] == "Role")
            .collect()
    }

    /// A rule as docs/kubernetes/rights.md has it: role, resources, verbs.
    fn rows(role: &Value) -> Vec<String> {
        let words = |value: &Value| -> Vec<String> {
            let all = value.as_array().into_iter().flatten();
            all.map(|word| format!("`{}`", word.as_str().unwrap()))
                .collect()
        };
        let rules = role["rules"].as_array().unwrap().iter();
        let row = |rule: &Value| {
            let mut what = words(&rule["resources"]).join(", ");
            let names = words(&rule["resourceNames"]).join(", ");
            if !names.is_empty() {
                what.push_str(&format!(" named {names}"));
            }
            let group = rule["apiGroups"][0].as_str().unwrap();
            if !group.is_empty() {
                what.push_str(&format!(" of `{group}`"));
            }
            format!(
                "| {} `{}` | {what} | {}",
                role["kind"].as_str().unwrap(),
                role["metadata"]["name"].as_str().unwrap(),
                words(&rule["verbs"]).join(", ")
            )
        };
        rules.map(row).collect()
    }

    #[test]
    fn the_documented_rights_are_those_that_are_installed() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/kubernetes/rights.md"
        );
        let text = std::fs::read_to_string(file).unwrap();
        let lines = text.lines();
        let documented =
            lines.filter(|l| l.starts_with("| ClusterRole") || l.starts_with("| Role"));
        let documented: BTreeSet<String> = documented
            .map(|line| {
                let (rule, purpose) = line.trim_end_matches(" |").rsplit_once("| ").unwrap();
                assert!(!purpose.trim().is_empty(), "what for? {line}");
                rule.trim_end().to_owned()
            })
            .collect();
        let wanted: BTreeSet<String> = every_role().iter().flat_map(rows).collect();
        let differ: Vec<&String> = wanted.symmetric_difference(&documented).collect();
        assert!(differ.is_empty(), "not in both: {differ:#?}");
    }
}
