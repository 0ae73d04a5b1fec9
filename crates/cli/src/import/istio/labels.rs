//! Labels and annotations of namespaces, of Services and of the pods of workloads.

use crate::import::labels::{
    EXCLUDE_INBOUND, EXCLUDE_OUTBOUND, EXCLUDE_RANGES, INCLUDE_RANGES, INJECT, Ours, switch,
};
use crate::import::mesh_config::log_level;

pub(super) fn translate(_: &str, name: &str, value: &str, is_namespace: bool) -> Ours {
    let ours = match name {
        "istio-injection" if is_namespace => return inject(switch(value)),
        "istio.io/dataplane-mode" if value == "none" => return inject("disabled"),
        "istio.io/rev" | "istio.io/dataplane-mode" => return inject("enabled"),
        "sidecar.istio.io/inject" => return inject(switch(value)),
        // Marks of the injector, and what is so in any case.
        "sidecar.istio.io/status" | "sidecar.istio.io/rewriteAppHTTPProbers" => return Ours::Moot,
        "traffic.sidecar.istio.io/excludeInboundPorts" => EXCLUDE_INBOUND,
        "traffic.sidecar.istio.io/excludeOutboundPorts" => EXCLUDE_OUTBOUND,
        "traffic.sidecar.istio.io/excludeOutboundIPRanges" => EXCLUDE_RANGES,
        "traffic.sidecar.istio.io/includeInboundPorts"
        | "traffic.sidecar.istio.io/includeOutboundIPRanges"
            if value == "*" =>
        {
            return Ours::Moot;
        }
        "traffic.sidecar.istio.io/includeOutboundIPRanges" => INCLUDE_RANGES,
        "prometheus.istio.io/merge-metrics" => {
            return Ours::Is("annotations", "tulle.dev/metrics", switch(value).to_owned());
        }
        "sidecar.istio.io/logLevel" => {
            let level = log_level(value).0;
            return Ours::Is("annotations", "tulle.dev/log-level", level.to_owned());
        }
        "sidecar.istio.io/proxyCPU" => "tulle.dev/cpu-request",
        "sidecar.istio.io/proxyCPULimit" => "tulle.dev/cpu-limit",
        "sidecar.istio.io/proxyMemory" => "tulle.dev/memory-request",
        "sidecar.istio.io/proxyMemoryLimit" => "tulle.dev/memory-limit",
        _ if name.contains("istio.io/") => return Ours::Lost,
        _ => return Ours::NotTheirs,
    };
    Ours::Is("annotations", ours, value.to_owned())
}

/// A label, which a pod may have, too.
fn inject(value: &str) -> Ours {
    Ours::Is("labels", INJECT, value.to_owned())
}
