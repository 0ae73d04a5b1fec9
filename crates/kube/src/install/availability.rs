//! Objects that keep several controllers apart, and scale their number with the load.

use super::template::{Condition, set, value, when};
use super::{namespaced, selector};
use crate::names::CONTROLLER;
use serde_json::{Value, json};

pub(super) fn templates() -> [Value; 2] {
    let scaled = || set("controller.autoscaling.enabled");
    let several = Condition::Any(vec![
        scaled(),
        Condition::Several("controller.replicas".into()),
    ]);
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": namespaced(CONTROLLER),
        "spec": {
            "maxUnavailable": value("controller.disruptionBudget.maxUnavailable"),
            "selector": { "matchLabels": selector() },
        },
    });
    let scaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": namespaced(CONTROLLER),
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": CONTROLLER },
            "minReplicas": value("controller.autoscaling.minReplicas"),
            "maxReplicas": value("controller.autoscaling.maxReplicas"),
            "metrics": [{
                "type": "Resource",
                "resource": { "name": "cpu", "target": {
                    "type": "Utilization",
                    "averageUtilization": value("controller.autoscaling.targetCpuUtilization"),
                } },
            }],
        },
    });
    [
        when(
            Condition::All(vec![set("controller.disruptionBudget.enabled"), several]),
            budget,
        ),
        when(scaled(), scaler),
    ]
}
