//! Numbers as a reader wants them: as many digits as mean something, thousands apart; and the
//! capital letter of a sentence.

use crate::results::stats::Spread;

/// Three digits that count, not more than three after the point.
pub(super) fn digits(value: f64) -> usize {
    match value.abs() {
        v if v >= 99.5 => 0,
        v if v >= 9.95 => 1,
        v if v >= 0.995 || v == 0.0 => 2,
        _ => 3,
    }
}

/// Formats a number with groups of thousands.
pub(super) fn fixed(value: f64, digits: usize) -> String {
    let plain = format!("{:.digits$}", value.abs());
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut text = String::new();
    if value < 0.0 && plain.chars().any(|c| matches!(c, '1'..='9')) {
        text.push('−');
    }
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

/// Alone.
pub(super) fn number(value: f64) -> String {
    fixed(value, digits(value))
}

/// The median.
pub(super) fn median(spread: &Spread) -> String {
    number(spread.median)
}

/// Least and largest, with the median's digits; none when they are the same.
pub(super) fn range(spread: &Spread) -> Option<String> {
    let digits = digits(spread.median);
    let (min, max) = (fixed(spread.min, digits), fixed(spread.max, digits));
    (spread.count > 1 && min != max).then(|| format!("{min}–{max}"))
}

/// Formats a tick of an axis with no more digits than it needs.
pub(super) fn tick(value: f64) -> String {
    let digits = (0..=3).find(|d| {
        let scale = 10f64.powi(*d);
        ((value * scale).round() - value * scale).abs() < 1e-6
    });
    fixed(value, digits.map_or(3, |d| usize::try_from(d).unwrap_or(0)))
}

/// The first letter as at the beginning of a sentence.
pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().collect::<String>());
    first.unwrap_or_default() + chars.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_mean_something() {
        let shown = [65_588.4, 142.93, 15.04, 1.0, 0.1049, 0.0, -1234.5].map(number);
        assert_eq!(
            shown,
            ["65,588", "143", "15.0", "1.00", "0.105", "0.00", "−1,234"]
        );
        assert_eq!(
            [0.0, 0.25, 1000.0, 2.5].map(tick),
            ["0", "0.25", "1,000", "2.5"]
        );
    }

    #[test]
    fn a_range_has_the_digits_of_its_median() {
        let spread = Spread::from_values([14.0, 15.04, 116.2]).unwrap();
        assert_eq!(median(&spread), "15.0");
        assert_eq!(range(&spread).unwrap(), "14.0–116.2");
        assert_eq!(range(&Spread::from_values([1.0]).unwrap()), None);
    }
}
