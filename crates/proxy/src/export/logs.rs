//! Exports the access log: a record for each line.

use crate::config::snapshot::Snapshot;
use crate::control::publish::Current;
use crate::export::batches::Batches;
use crate::export::collector::Signal;
use crate::export::own::{attribute, resource, scope};
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::export_totals::{BATCH, ExportTotals};
use crate::telemetry::log_export::Exported;
use prost::Message;
use prost::bytes::Bytes;
use serde_json::{Map, Value as Json};
use std::collections::vec_deque::Iter;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use tulle_api::otlp::common::AnyValue;
use tulle_api::otlp::common::any_value::Value;
use tulle_api::otlp::logs as otlp;
use tulle_model::resource::Collector;

/// A line, and when its request ended, in nanoseconds since 1970.
type Ended = (u64, Exported);

/// Sends lines until it is told to `end`, and then those that are left.
pub(super) async fn run(
    current: Current,
    log: AccessLog,
    totals: Arc<ExportTotals>,
    instance: String,
    mut end: watch::Receiver<bool>,
) {
    let mut batches = Batches::new(Signal::Logs, totals.clone());
    // Dropping the receiver ends the export.
    let mut lines: Option<mpsc::Receiver<Exported>> = None;
    loop {
        let changes = current.changed();
        let changed = changes.notified();
        let snapshot = current.get();
        let wanted = snapshot.mesh.otlp.as_ref().filter(|o| o.access_log);
        let Some(otlp) = wanted else {
            lines = None;
            batches.stop();
            tokio::select! {
                _ = end.wait_for(|end| *end) => return,
                () = changed => continue,
            }
        };
        let lines = lines.get_or_insert_with(|| log.export(&totals));
        let mut received = Vec::new();
        let full = take(lines, &mut received);
        let ended = tokio::select! {
            _ = end.wait_for(|end| *end) => true,
            () = changed => false,
            () = tokio::time::sleep(batches.pause()) => false,
            () = full, if batches.is_served() => false,
        };
        while let Ok(line) = lines.try_recv() {
            received.push((now(), line));
        }
        batches.add(received);
        let settings = &otlp.collector;
        let encode = |lines: Iter<'_, Ended>| batch(&snapshot, settings, &instance, lines);
        batches.send(settings, &encode).await;
        if ended {
            return;
        }
    }
}

/// Takes lines until there is a batch of them.
async fn take(lines: &mut mpsc::Receiver<Exported>, received: &mut Vec<Ended>) {
    while received.len() < BATCH {
        match lines.recv().await {
            Some(line) => received.push((now(), line)),
            None => std::future::pending().await,
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

fn batch(
    snapshot: &Snapshot,
    settings: &Collector,
    instance: &str,
    lines: Iter<'_, Ended>,
) -> Bytes {
    let message = otlp::ExportLogsServiceRequest {
        resource_logs: vec![otlp::ResourceLogs {
            resource: Some(resource(snapshot, settings, instance)),
            scope_logs: vec![otlp::ScopeLogs {
                scope: Some(scope()),
                log_records: lines.map(|(time, (line, _))| record(*time, line)).collect(),
            }],
        }],
    };
    message.encode_to_vec().into()
}

/// The record of a line: its fields are the attributes, under their names in the log.
fn record(time: u64, line: &[u8]) -> otlp::LogRecord {
    let fields: Map<String, Json> = serde_json::from_slice(line).unwrap_or_default();
    let said = |name: &str| fields.get(name).and_then(Json::as_str).unwrap_or("-");
    let code = fields.get("response_code").and_then(Json::as_u64);
    let failed = said("response_flags") != "-" || code.is_some_and(|code| code >= 500);
    let severity = match failed {
        true => (otlp::SeverityNumber::Error, "ERROR"),
        false => (otlp::SeverityNumber::Info, "INFO"),
    };
    let body = format!(
        "{} {} {}",
        said("method"),
        said("path"),
        code.unwrap_or_default()
    );
    let attributes = fields.iter().filter_map(|(name, value)| {
        let value = match value {
            Json::String(text) => Value::StringValue(text.clone()),
            Json::Number(number) => match number.as_i64() {
                Some(whole) => Value::IntValue(whole),
                None => Value::DoubleValue(number.as_f64()?),
            },
            _ => return None,
        };
        Some(attribute(name, value))
    });
    otlp::LogRecord {
        time_unix_nano: time,
        observed_time_unix_nano: time,
        severity_number: severity.0.into(),
        severity_text: severity.1.to_owned(),
        body: Some(AnyValue {
            value: Some(Value::StringValue(body)),
        }),
        attributes: attributes.collect(),
        event_name: "tulle.access".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_a_record_with_its_fields() {
        let line = br#"{"method":"GET","path":"/a?b","response_code":403,"duration":1.5,"response_flags":"denied"}"#;
        let record = record(7, line);
        assert_eq!((record.time_unix_nano, record.severity_number), (7, 17));
        let body = record.body.unwrap().value.unwrap();
        assert_eq!(body, Value::StringValue("GET /a?b 403".into()));
        let value = |name: &str| {
            let found = record.attributes.iter().find(|a| a.key == name);
            found.unwrap().value.clone().unwrap().value.unwrap()
        };
        assert_eq!(value("response_code"), Value::IntValue(403));
        assert_eq!(value("duration"), Value::DoubleValue(1.5));
        assert_eq!(value("response_flags"), Value::StringValue("denied".into()));
    }

    #[test]
    fn what_is_no_line_is_a_record_without_fields() {
        let record = record(7, b"nonsense");
        assert!(record.attributes.is_empty());
    }
}
