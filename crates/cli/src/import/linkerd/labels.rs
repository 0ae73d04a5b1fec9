//! Annotations of namespaces, of Services and of the pods of workloads.

use crate::import::labels::{EXCLUDE_INBOUND, EXCLUDE_OUTBOUND, EXCLUDE_RANGES, INJECT, Ours};

pub(super) fn translate(field: &str, name: &str, value: &str, is_namespace: bool) -> Ours {
    // Their labels are marks of their own programs.
    if field == "labels" || !name.contains("linkerd.io/") {
        return Ours::NotTheirs;
    }
    let short = name.strip_prefix("config.linkerd.io/");
    let ours = match (name, short) {
        // The injector's own marks of when and by whom.
        ("linkerd.io/created-by" | "linkerd.io/proxy-version", _) => return Ours::Moot,
        ("linkerd.io/inject", _) => INJECT,
        _ if is_namespace => return Ours::Lost,
        (_, Some("skip-inbound-ports")) => EXCLUDE_INBOUND,
        (_, Some("skip-outbound-ports")) => EXCLUDE_OUTBOUND,
        (_, Some("skip-subnets")) => EXCLUDE_RANGES,
        (_, Some("opaque-ports")) => "tulle.dev/opaque-ports",
        (_, Some("proxy-cpu-request")) => "tulle.dev/cpu-request",
        (_, Some("proxy-cpu-limit")) => "tulle.dev/cpu-limit",
        (_, Some("proxy-memory-request")) => "tulle.dev/memory-request",
        (_, Some("proxy-memory-limit")) => "tulle.dev/memory-limit",
        _ => return Ours::Lost,
    };
    let value = match (ours, value) {
        (INJECT, "enabled" | "ingress") => "enabled",
        (INJECT, _) => "disabled",
        _ => value,
    };
    // The webhook chooses namespaces and pods by labels alone.
    let field = if ours == INJECT {
        "labels"
    } else {
        "annotations"
    };
    Ours::Is(field, ours, value.to_owned())
}
