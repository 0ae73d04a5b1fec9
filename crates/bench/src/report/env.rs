//! The file `env.json`, and when it was.

use crate::results::Results;

/// `env.json`: what took part, apart from what was measured.
pub(super) fn json(results: &Results) -> String {
    let value = serde_json::json!({
        "study": results.study,
        "date": results.date,
        "incomplete": results.incomplete(),
        "machine": results.environment,
        "versions": results.versions,
        "command": results.command,
        "options": results.options,
    });
    format!("{value:#}\n")
}

/// Now, for a reader and for a file's name, in UTC.
pub(super) fn now() -> (String, String) {
    let now = time::OffsetDateTime::now_utc();
    let (date, time) = (now.date(), now.time());
    let (hour, minute, second) = time.as_hms();
    (
        format!("{date} {hour:02}:{minute:02} UTC"),
        format!("{date}-{hour:02}{minute:02}{second:02}"),
    )
}
