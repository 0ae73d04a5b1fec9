//! A length of time, such as 30s.

use std::time::Duration;

/// Parses `500ms`, `30s`, `5m`, `2h`, `1d`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| "expected a number with ms, s, m, h or d, such as 30s".to_owned())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("expected ms, s, m, h or d after the number, such as 30s".into()),
    };
    number
        .checked_mul(millis)
        .map(Duration::from_millis)
        .ok_or_else(|| "too long".into())
}

/// Parses a duration of at least a second.
pub(super) fn whole_seconds(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time < Duration::from_secs(1) => Err("it must be at least 1s".into()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for text in [
            "",
            "s",
            "30",
            "-1s",
            "1.5s",
            "99999999999999999999s",
            "300000000000000d",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
