//! Limits who reaches the controller's ports, in networks that enforce NetworkPolicies.
//!
//! No rule opens the port of health checks: a kubelet reaches the pods of its own node anyway, and nobody else has
//! any business there.

use super::template::{set, value, when};
use super::{namespaced, selector, smi_metrics};
use crate::names::{
    CONTROLLER, CONTROLLER_METRICS_PORT, CONTROLLER_PORT, METRICS_API_PORT, WEBHOOK_PORT,
};
use serde_json::{Value, json};

pub(super) fn template() -> Value {
    let port = |number: u16| json!({ "protocol": "TCP", "port": number });
    // An empty `from` is everybody.
    let from = |who: &str| value(&format!("networkPolicy.{who}"));
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": namespaced(CONTROLLER),
        "spec": {
            "podSelector": { "matchLabels": selector() },
            "policyTypes": ["Ingress"],
            "ingress": [
                { "ports": [port(CONTROLLER_PORT)], "from": from("proxies") },
                {
                    "ports": [
                        port(WEBHOOK_PORT),
                        when(smi_metrics::is_on(), port(METRICS_API_PORT)),
                    ],
                    "from": from("apiServer"),
                },
                { "ports": [port(CONTROLLER_METRICS_PORT)], "from": from("metrics") },
            ],
        },
    });
    when(set("networkPolicy.enabled"), policy)
}

#[cfg(test)]
mod tests {
    use super::super::choice::Choice;
    use super::super::objects;
    use super::*;

    fn rules(values: Value) -> Option<Vec<(Vec<u64>, Value)>> {
        let objects = objects("home", &Choice::from_layers(&[values]).unwrap());
        let policy = objects.iter().find(|o| o["kind"] == "NetworkPolicy")?;
        let deployment = objects.iter().find(|o| o["kind"] == "Deployment").unwrap();
        assert_eq!(
            policy["spec"]["podSelector"],
            deployment["spec"]["selector"]
        );
        let rules = policy["spec"]["ingress"].as_array().unwrap().iter();
        let ports = |rule: &Value| {
            let ports = rule["ports"].as_array().unwrap().iter();
            ports.map(|p| p["port"].as_u64().unwrap()).collect()
        };
        Some(rules.map(|r| (ports(r), r["from"].clone())).collect())
    }

    #[test]
    fn each_port_is_for_those_who_need_it() {
        let pods = || json!([{ "namespaceSelector": {} }]);
        let usual = rules(json!({})).unwrap();
        let expected = [
            (vec![15010], pods()),
            (vec![15017], json!([])),
            (vec![15014], pods()),
        ];
        assert_eq!(usual, expected);
        let server = json!([{ "ipBlock": { "cidr": "192.0.2.1/32" } }]);
        let chosen = rules(json!({
            "monitoring": { "smiMetrics": true },
            "networkPolicy": { "apiServer": server, "proxies": [], "metrics": server },
        }));
        let expected = [
            (vec![15010], json!([])),
            (vec![15017, 15018], server.clone()),
            (vec![15014], server),
        ];
        assert_eq!(chosen.unwrap(), expected);
        assert_eq!(
            rules(json!({ "networkPolicy": { "enabled": false } })),
            None
        );
    }
}
