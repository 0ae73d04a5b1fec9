//! Names the sender in every message, and builds attributes.

use crate::config::snapshot::Snapshot;
use tulle_api::otlp::common::any_value::Value;
use tulle_api::otlp::common::{AnyValue, InstrumentationScope, KeyValue, Resource};
use tulle_model::resource::Collector;

/// The proxy, with the attributes that the Mesh gives.
pub(super) fn resource(snapshot: &Snapshot, settings: &Collector, instance: &str) -> Resource {
    let own = [
        text("service.name", &service_name(snapshot, instance)),
        text("service.instance.id", instance),
    ];
    let given = settings.attributes.iter().map(|(n, v)| text(n, v));
    Resource {
        attributes: own.into_iter().chain(given).collect(),
    }
}

/// Returns the service's name. A pod without a service goes by its service account: there would be
/// a name for each pod that ever was.
fn service_name(snapshot: &Snapshot, instance: &str) -> String {
    match (snapshot.service(), snapshot.identity.service_account()) {
        (pod, Some((namespace, account))) if pod == instance => format!("{account}.{namespace}"),
        (service, _) => service.to_owned(),
    }
}

/// The program.
pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "tulle-proxy".into(),
        version: env!("CARGO_PKG_VERSION").into(),
    }
}

pub(super) fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

pub(super) fn number(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::IntValue(value))
}

pub(super) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}
