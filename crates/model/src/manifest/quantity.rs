//! Durations and resource quantities as Kubernetes writes them.

use crate::document::shorten;
use crate::resource::LONGEST_PAUSE_US;
use std::fmt;
use std::time::Duration;

/// A text that is not of the expected form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidQuantity {
    text: String,
    expected: &'static str,
}

impl fmt::Display for InvalidQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found `{}`", self.expected, self.text)
    }
}

impl std::error::Error for InvalidQuantity {}

/// Reads a duration: one or more of `<number><unit>` with units `h`, `m`, `s`, `ms`.
///
/// ```
/// use std::time::Duration;
/// use tulle_model::manifest::parse_duration;
/// assert_eq!(parse_duration("1m30s").unwrap(), Duration::from_secs(90));
/// assert!(parse_duration("90").is_err());
/// ```
///
/// # Errors
/// The text is empty, has another unit or none, or is longer than `u64` milliseconds.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidQuantity> {
    duration_ms(text)
        .map(Duration::from_millis)
        .ok_or_else(|| InvalidQuantity {
            text: shorten(text),
            expected: "a duration such as `24h`, `1m30s` or `100ms`",
        })
}

/// Reads a pause in microseconds: a number of `us`, or of `ms`.
///
/// # Errors
/// The text is not of that form, or the pause is longer than a millisecond.
pub fn parse_pause(text: &str) -> Result<u32, InvalidQuantity> {
    pause_us(text).ok_or_else(|| InvalidQuantity {
        text: shorten(text),
        expected: "a pause of at most a millisecond, such as `200us` or `1ms`",
    })
}

fn pause_us(text: &str) -> Option<u32> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(digits)?;
    let factor = match unit {
        "us" => 1,
        "ms" => 1000,
        _ => return None,
    };
    let pause = number.parse::<u32>().ok()?.checked_mul(factor)?;
    (pause <= LONGEST_PAUSE_US).then_some(pause)
}

fn duration_ms(text: &str) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut rest = text;
    let mut total = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let letters = rest
            .find(|c: char| !c.is_ascii_lowercase())
            .unwrap_or(rest.len());
        let factor = match rest.get(..letters)? {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return None,
        };
        rest = rest.get(letters..)?;
        total = total.checked_add(number.checked_mul(factor)?)?;
    }
    Some(total)
}

/// Reads a share in millionths: `10%` is 100,000, `0.01%` is 100.
///
/// # Errors
/// The text is not a number from 0 to 100 with `%`, or finer than a millionth.
pub fn parse_percent(text: &str) -> Result<u32, InvalidQuantity> {
    percent_ppm(text)
        .filter(|ppm| *ppm <= 1_000_000)
        .ok_or_else(|| InvalidQuantity {
            text: shorten(text),
            expected: "a share such as `10%` or `0.5%`",
        })
}

fn percent_ppm(text: &str) -> Option<u32> {
    let number = text.strip_suffix('%')?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if fraction.len() > 4 || whole.is_empty() || fraction.is_empty() {
        return None;
    }
    let ppm = digits::<u32>(fraction)? * 10u32.pow(4 - u32::try_from(fraction.len()).ok()?);
    digits::<u32>(whole)?.checked_mul(10_000)?.checked_add(ppm)
}

/// Reads a CPU quantity in thousandths of a core: `500m` is 500, `2` is 2000, `0.5` is 500.
///
/// # Errors
/// The text is not such a quantity, finer than a thousandth, zero or above a million cores.
pub fn parse_cpu(text: &str) -> Result<u32, InvalidQuantity> {
    cpu_milli(text)
        .filter(|milli| (1..=1_000_000_000).contains(milli))
        .ok_or_else(|| InvalidQuantity {
            text: shorten(text),
            expected: "an amount of CPU such as `500m`, `2` or `0.5`",
        })
}

fn cpu_milli(text: &str) -> Option<u32> {
    if let Some(milli) = text.strip_suffix('m') {
        return digits(milli);
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if fraction.len() > 3 {
        return None;
    }
    let milli = digits::<u32>(fraction)? * 10u32.pow(3 - u32::try_from(fraction.len()).ok()?);
    digits::<u32>(whole)?.checked_mul(1000)?.checked_add(milli)
}

/// Like `parse`, without its `+`.
fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    let only_digits = text.bytes().all(|b| b.is_ascii_digit());
    only_digits.then(|| text.parse().ok()).flatten()
}

/// Reads an amount of memory in bytes: `64Mi`, `1G`, `65536`.
///
/// # Errors
/// The text is not such a quantity, or zero.
pub fn parse_memory(text: &str) -> Result<u64, InvalidQuantity> {
    memory_bytes(text)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| InvalidQuantity {
            text: shorten(text),
            expected: "an amount of memory such as `64Mi` or `1G`",
        })
}

fn memory_bytes(text: &str) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = digits(text.get(..end)?)?;
    let factor = match text.get(end..)? {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, ms) in [
            ("24h", 86_400_000),
            ("1m30s", 90_000),
            ("100ms", 100),
            ("0s", 0),
            ("1h2m3s4ms", 3_723_004),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for text in [
            "",
            "1",
            "h",
            "1d",
            "1.5h",
            "-1s",
            "1 s",
            "1sm",
            "+1s",
            "1µs",
            "99999999999999999999h",
            "18446744073709551615h",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cpu() {
        for (text, milli) in [("500m", 500), ("2", 2000), ("0.5", 500), ("1.25", 1250)] {
            assert_eq!(parse_cpu(text), Ok(milli), "{text}");
        }
        for text in [
            "",
            "0",
            "m",
            "-1",
            "1.2345",
            ".",
            "0.5m",
            "2 ",
            "9999999999",
        ] {
            assert!(parse_cpu(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory() {
        for (text, bytes) in [("64Mi", 64 << 20), ("1G", 1_000_000_000), ("4096", 4096)] {
            assert_eq!(parse_memory(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "Mi",
            "0",
            "64mi",
            "1.5Gi",
            "-1",
            "18446744073709551615Ti",
        ] {
            assert!(parse_memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pauses_are_short() {
        for (text, us) in [("0us", 0), ("200us", 200), ("1000us", 1000), ("1ms", 1000)] {
            assert_eq!(parse_pause(text).unwrap(), us, "{text}");
        }
        for text in [
            "",
            "us",
            "200",
            "1001us",
            "2ms",
            "1s",
            "-1us",
            "1 us",
            "5000000000us",
        ] {
            assert!(parse_pause(text).is_err(), "{text}");
        }
        let error = parse_pause("2ms").unwrap_err().to_string();
        assert_eq!(
            error,
            "expected a pause of at most a millisecond, such as `200us` or `1ms`, found `2ms`"
        );
    }
}
