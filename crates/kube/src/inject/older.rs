//! Compares the sidecar of a running pod with the one that the pod would get today.
//!
//! Only what a Mesh can change is compared: limits, workers and DNS. Requests and images have checks of
//! their own.

use super::{Options, Settings};
use crate::names::SIDECAR;
use serde_json::Value;
use tulle_model::manifest::{parse_cpu, parse_memory};

/// Whether two texts say the same.
type Same = fn(&str, &str) -> bool;

/// Lists how a pod's sidecar differs from that of a new pod, such as `memory limit: 64Mi, new pods have
/// 128Mi`. Empty: it does not differ, or the webhook gave the pod no sidecar.
pub fn differences(pod: &Value, settings: &Settings) -> Vec<String> {
    let lists = ["initContainers", "containers"].into_iter();
    let mut containers = lists.filter_map(|list| pod.get("spec")?.get(list)?.as_array());
    let is_sidecar = |c: &&Value| c.get("name").and_then(Value::as_str) == Some(SIDECAR);
    let sidecar = containers.find_map(|list| list.iter().find(is_sidecar));
    let (Some(sidecar), Ok(options)) = (sidecar, Options::from_pod(pod, settings)) else {
        return Vec::new();
    };
    let limit = |name: &str| -> String {
        let limits = sidecar.get("resources").and_then(|r| r.get("limits"));
        let limit = limits.and_then(|l| l.get(name)?.as_str());
        limit.unwrap_or_default().to_owned()
    };
    let config = config(sidecar);
    let workers = config.get("workers").and_then(Value::as_u64);
    let wanted = &options.resources;
    // The API server writes quantities its own way: 500m for 0.5.
    let same_cpu: Same = |a, b| a == b || parse_cpu(a).ok() == parse_cpu(b).ok();
    let same_memory: Same = |a, b| a == b || parse_memory(a).ok() == parse_memory(b).ok();
    let same_text: Same = |a, b| a == b;
    let count = |workers: u64| match workers {
        0 => "as many as the CPU limit allows".to_owned(),
        count => count.to_string(),
    };
    let answers = |dns: bool| {
        if dns {
            "the sidecar's"
        } else {
            "the cluster's"
        }
        .to_owned()
    };
    let all: [(&str, Same, String, String); 4] = [
        (
            "CPU limit",
            same_cpu,
            limit("cpu"),
            wanted.cpu_limit.clone(),
        ),
        (
            "memory limit",
            same_memory,
            limit("memory"),
            wanted.memory_limit.clone(),
        ),
        (
            "workers",
            same_text,
            count(workers.unwrap_or_default()),
            count(options.workers.into()),
        ),
        (
            "DNS",
            same_text,
            answers(config.get("dns").is_some()),
            answers(options.dns),
        ),
    ];
    let shown = |text: &str| if text.is_empty() { "none" } else { text }.to_owned();
    let others = all.iter().filter(|(_, same, is, now)| !same(is, now));
    others
        .map(|(what, _, is, now)| format!("{what}: {}, new pods have {}", shown(is), shown(now)))
        .collect()
}

/// The sidecar's configuration as the webhook wrote it.
fn config(sidecar: &Value) -> Value {
    let env = sidecar.get("env").and_then(Value::as_array);
    let mut env = env.into_iter().flatten();
    let config = env.find(|e| e.get("name").and_then(Value::as_str) == Some("TULLE_CONFIG"));
    let text = config.and_then(|c| c.get("value")?.as_str());
    let config = text.and_then(|text| serde_json::from_str(text).ok());
    config.unwrap_or_default()
}
