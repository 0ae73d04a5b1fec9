//! A moment of the past: a time of the day (UTC), or how long ago.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tulle_model::manifest::parse_duration;

const DAY: u64 = 86_400;

/// Reads `14:02`, `14:02:30` or `5m` as Unix seconds.
///
/// # Errors
/// It is none of these.
pub(super) fn parse(text: &str) -> Result<i64, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    at(text, now.unwrap_or_default())
}

fn at(text: &str, now: Duration) -> Result<i64, String> {
    let wrong = || {
        "expected a time of the day in UTC such as 14:02, or how long ago, such as 5m".to_owned()
    };
    let seconds = match text.contains(':') {
        true => {
            let of_day = time_of_day(text).ok_or_else(wrong)?;
            let today = now.as_secs() / DAY * DAY + of_day;
            // A time still to come was yesterday.
            match today > now.as_secs() {
                true => today.saturating_sub(DAY),
                false => today,
            }
        }
        false => {
            let ago = parse_duration(text).map_err(|_| wrong())?;
            now.saturating_sub(ago).as_secs()
        }
    };
    i64::try_from(seconds).map_err(|_| wrong())
}

fn time_of_day(text: &str) -> Option<u64> {
    let parts: Option<Vec<u64>> = text.split(':').map(|part| part.parse().ok()).collect();
    match parts?[..] {
        [hours @ 0..24, minutes @ 0..60] => Some(hours * 3600 + minutes * 60),
        [hours @ 0..24, minutes @ 0..60, seconds @ 0..60] => {
            Some(hours * 3600 + minutes * 60 + seconds)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_the_past() {
        // 00:10:00 of some day.
        let now = Duration::from_secs(20_000 * DAY + 600);
        let at = |text| at(text, now).map(|at| at - 20_000 * DAY as i64);
        assert_eq!(at("00:05"), Ok(300));
        assert_eq!(at("00:05:30"), Ok(330));
        assert_eq!(at("23:59"), Ok(-60));
        assert_eq!(at("5m"), Ok(300));
        for wrong in ["24:00", "1:2:3:4", "noon", "", "12:"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }
}
