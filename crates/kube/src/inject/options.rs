//! Options of a pod's own sidecar, from the pod's annotations.

use super::{InjectionRefusal, Settings};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tulle_model::manifest::{LOG_LEVELS, parse_cpu, parse_memory};
use tulle_model::network::Network;
use tulle_redirect::Exceptions;

/// Kubernetes quantities; empty: none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Resources {
    /// CPU that is set aside.
    pub cpu_request: String,
    /// CPU that is not exceeded.
    pub cpu_limit: String,
    /// Memory that is set aside.
    pub memory_request: String,
    /// Memory that is not exceeded.
    pub memory_limit: String,
}

impl Default for Resources {
    /// The defaults follow docs/performance.md: 4 MiB idle, 10 MiB at the highest load measured.
    /// There is no limit on CPU, so that a sidecar never waits while the node is idle.
    fn default() -> Self {
        Self {
            cpu_request: "10m".into(),
            cpu_limit: String::new(),
            memory_request: "16Mi".into(),
            memory_limit: "128Mi".into(),
        }
    }
}

/// All options of one sidecar.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) native_sidecar: bool,
    pub(crate) hold_application: bool,
    pub(crate) resources: Resources,
    /// `None`: what the Mesh says.
    pub(crate) log_level: Option<String>,
    pub(crate) workers: u16,
    pub(crate) redirection: Exceptions,
    /// The sidecar answers the pod's DNS.
    pub(crate) dns: bool,
    /// The pod's annotations for Prometheus name the sidecar.
    pub(crate) metrics: bool,
}

/// Port of resolvers.
const DNS: u16 = 53;
const PREFIX: &str = "tulle.dev/";
const KNOWN: [&str; 14] = [
    "native-sidecar",
    "hold-application",
    "cpu-request",
    "cpu-limit",
    "memory-request",
    "memory-limit",
    "log-level",
    "workers",
    "exclude-inbound-ports",
    "exclude-outbound-ports",
    "exclude-outbound-ranges",
    "include-outbound-ranges",
    "opaque-ports",
    "metrics",
];
/// Annotations that are for others: the controller, operators.
const OF_OTHERS: [&str; 4] = ["inject", "status", "redirection", "application-metrics"];

/// Whether an annotation of a pod means something to the mesh; others than its own do not concern it.
pub fn is_known_annotation(key: &str) -> bool {
    let name = key.strip_prefix(PREFIX);
    name.is_none_or(|name| KNOWN.contains(&name) || OF_OTHERS.contains(&name))
}

impl Options {
    pub(crate) fn from_pod(pod: &Value, settings: &Settings) -> Result<Self, InjectionRefusal> {
        let mut options = Self {
            native_sidecar: settings.native_sidecar,
            hold_application: settings.hold_application,
            resources: settings.resources.clone(),
            log_level: (settings.log_level != super::info()).then(|| settings.log_level.clone()),
            workers: settings.workers,
            redirection: settings.redirection.clone(),
            dns: settings.dns,
            metrics: true,
        };
        let annotations = pod
            .pointer("/metadata/annotations")
            .and_then(Value::as_object);
        for (key, value) in annotations.into_iter().flatten() {
            if let Some(name) = key.strip_prefix(PREFIX)
                && !OF_OTHERS.contains(&name)
            {
                let value = value.as_str().unwrap_or_default();
                let set = options.set(name, value.trim());
                set.map_err(|why| {
                    InjectionRefusal(format!("metadata.annotations[{key:?}] is {value:?}: {why}"))
                })?;
            }
        }
        // If port 53 is excluded, the pod asks its resolvers directly.
        options.dns &= !options.redirection.exclude_outbound_ports.contains(&DNS);
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "native-sidecar" => self.native_sidecar = switch(value)?,
            "hold-application" => self.hold_application = switch(value)?,
            "cpu-request" => self.resources.cpu_request = cpu(value)?,
            "cpu-limit" => self.resources.cpu_limit = cpu(value)?,
            "memory-request" => self.resources.memory_request = memory(value)?,
            "memory-limit" => self.resources.memory_limit = memory(value)?,
            "log-level" => {
                if !LOG_LEVELS.contains(&value) {
                    return Err(format!("use one of {}", LOG_LEVELS.join(", ")));
                }
                self.log_level = Some(value.into());
            }
            "workers" => {
                let workers = value.parse().ok();
                let in_range = |w: &u16| (1..=tulle_model::bootstrap::MAX_WORKERS).contains(w);
                self.workers = workers.filter(in_range).ok_or_else(|| {
                    format!(
                        "use a number from 1 to {}",
                        tulle_model::bootstrap::MAX_WORKERS
                    )
                })?;
            }
            // A pod's own lists are added to the cluster's, which keep what must not be redirected.
            "exclude-inbound-ports" => {
                self.redirection.exclude_inbound_ports.extend(ports(value)?);
            }
            "exclude-outbound-ports" => {
                self.redirection
                    .exclude_outbound_ports
                    .extend(ports(value)?);
            }
            "exclude-outbound-ranges" => {
                self.redirection
                    .exclude_outbound_ranges
                    .extend(ranges(value)?);
            }
            "include-outbound-ranges" => self.redirection.include_outbound_ranges = ranges(value)?,
            "metrics" => self.metrics = switch(value)?,
            // The controller reads it from the pod, and sends it to the sidecar.
            "opaque-ports" => drop(ports(value)?),
            _ => {
                return Err(format!(
                    "there is no option of this name; use one of {}",
                    KNOWN.join(", ")
                ));
            }
        }
        Ok(())
    }
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "enabled" => Ok(true),
        "disabled" => Ok(false),
        _ => Err("use enabled or disabled".into()),
    }
}

fn cpu(value: &str) -> Result<String, String> {
    parse_cpu(value).map_err(|e| e.to_string())?;
    Ok(value.into())
}

fn memory(value: &str) -> Result<String, String> {
    parse_memory(value).map_err(|e| e.to_string())?;
    Ok(value.into())
}

fn items(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|i| !i.is_empty())
}

/// Reads a list of ports, such as `8080, 9090`.
///
/// # Errors
/// An item is not a port; the text says which.
pub fn ports(value: &str) -> Result<Vec<u16>, String> {
    let port = |item: &str| {
        let port = item.parse().ok().filter(|p| *p != 0);
        port.ok_or_else(|| format!("{item:?} is no port: use numbers from 1 to 65535, with commas"))
    };
    items(value).map(port).collect()
}

fn ranges(value: &str) -> Result<Vec<String>, String> {
    let range = |item: &str| match item.parse::<Network>() {
        Ok(_) => Ok(item.to_owned()),
        Err(e) => Err(e.to_string()),
    };
    items(value).map(range).collect()
}
