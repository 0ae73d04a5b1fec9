//! Which calls did policies deny in the last minutes? They are answered, so no rate of success shows them.

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::workloads::text;
use crate::output::coarse;
use crate::proxies::now;
use crate::traffic::short;
use serde_json::Value;
use std::collections::BTreeMap;

/// How long ago one may be to be told.
const RECENT: i64 = 15 * 60;

#[allow(clippy::cast_possible_truncation)] // seconds since 1970
pub(super) fn check(facts: &Facts, report: &mut Report) {
    // Maps caller, service and reason to the number of denials and the time of the last one.
    let mut denied: BTreeMap<(&str, &str, &str), (u64, i64)> = BTreeMap::new();
    for error in facts
        .errors
        .iter()
        .filter(|e| text(e, "/reason") == "denied")
    {
        let at = error
            .get("time")
            .and_then(Value::as_f64)
            .unwrap_or_default() as i64;
        if now() - at > RECENT {
            continue;
        }
        let key = (
            text(error, "/source"),
            text(error, "/destination"),
            text(error, "/detail"),
        );
        let (count, last) = denied.entry(key).or_default();
        *count += 1;
        *last = at.max(*last);
    }
    let denied = denied.into_iter();
    let told = denied.map(|((source, destination, why), (count, last))| {
        let ago = coarse((now() - last).max(0));
        format!(
            "{} → {destination}: {count} times, the last {ago} ago: {why}",
            short(source)
        )
    });
    report.each(
        "TK095",
        Outcome::Warning,
        told.collect(),
        "none in the last 15 minutes",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn denials_of_the_last_minutes_are_told_once_with_their_reason() {
        let error = |reason: &str, ago: i64| {
            json!({
                "time": now() - ago, "source": "spiffe://t/ns/shop/sa/client", "destination": "web.shop",
                "reason": reason, "detail": "Deny/x denies it",
            })
        };
        let facts = Facts {
            errors: vec![
                error("denied", 10),
                error("denied", 20),
                error("denied", 2 * RECENT),
                error("no_endpoint", 1),
            ],
            ..Facts::default()
        };
        let wrong = Report::wrong(|report| check(&facts, report));
        let [found] = wrong.as_slice() else {
            panic!("{wrong:?}")
        };
        let told = &found.finding;
        assert!(
            told.starts_with("ns/shop/sa/client → web.shop: 2 times"),
            "{told}"
        );
        assert!(told.ends_with("Deny/x denies it"), "{told}");
    }
}
