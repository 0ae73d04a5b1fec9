//! Axes: from values to places, and the ticks between. The last tick carries the unit.

use super::number;

/// How values become places.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    Linear,
    Log,
    /// Percentiles, each nine after the other equally wide.
    Tail,
}

/// One axis, still without a place on the picture.
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    /// Values with what is written there.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Makes an axis from zero to a round value not below `max`.
    pub(super) fn from_zero(max: f64, unit: &str) -> Self {
        let max = if max.is_finite() && max > 0.0 {
            max
        } else {
            1.0
        };
        let step = round_up(max / 5.0);
        let count = (max / step - 1e-9).ceil().max(1.0);
        // 65k: five such numbers have a place on a narrow chart.
        let thousands = count * step >= 10_000.0;
        let text = |value: f64| match thousands && value > 0.0 {
            true => number::tick(value / 1000.0) + "k",
            false => number::tick(value),
        };
        let mut ticks = Vec::new();
        let mut at = 0.0;
        while at <= count {
            ticks.push((at * step, text(at * step)));
            at += 1.0;
        }
        Self::new(Scale::Linear, 0.0, count * step, ticks, unit)
    }

    /// Makes an axis from zero to exactly `max`, for time: no chart ends in empty space.
    pub(super) fn until(max: f64, unit: &str) -> Self {
        let mut axis = Self::from_zero(max, "");
        axis.high = max.max(1e-9);
        axis.ticks.retain(|(value, _)| *value <= max * 1.0001);
        Self::new(Scale::Linear, 0.0, axis.high, axis.ticks, unit)
    }

    /// Logarithmic, from a round value below `min` to one above `max`.
    pub(super) fn log(min: f64, max: f64, unit: &str) -> Self {
        let min = if min.is_finite() && min > 0.0 {
            min
        } else {
            0.01
        };
        let max = if max.is_finite() {
            max.max(min * 2.0)
        } else {
            min * 10.0
        };
        let steps = |wanted: &[f64]| -> Vec<f64> {
            let decades = (min.log10().floor() as i32)..=(max.log10().ceil() as i32);
            decades
                .flat_map(|d| wanted.iter().map(move |m| m * 10f64.powi(d)))
                .collect()
        };
        let fine = steps(&[1.0, 2.0, 5.0]);
        let low = fine
            .iter()
            .rev()
            .find(|v| **v <= min)
            .copied()
            .unwrap_or(min);
        let high = fine.iter().find(|v| **v >= max).copied().unwrap_or(max);
        let within = |v: &f64| *v >= low * 0.999 && *v <= high * 1.001;
        let mut values: Vec<f64> = fine.into_iter().filter(within).collect();
        if values.len() > 8 {
            let coarse = steps(&[1.0]).into_iter().filter(within).collect();
            values = coarse;
        }
        let ticks = values.iter().map(|v| (*v, number::tick(*v))).collect();
        Self::new(Scale::Log, low, high, ticks, unit)
    }

    /// Percentiles from 0 to one less than all of `count` values.
    pub(super) fn tail(count: f64) -> Self {
        let nines = count.max(100.0).log10().clamp(2.0, 6.0);
        let names = [
            (0.5, "50%"),
            (0.9, "90%"),
            (0.99, "99%"),
            (0.999, "99.9%"),
            (0.9999, "99.99%"),
            (0.99999, "99.999%"),
        ];
        let ticks = names.map(|(v, name)| (v, name.to_owned())).to_vec();
        let high = 1.0 - 10f64.powf(-nines);
        let ticks = ticks.into_iter().filter(|(v, _)| *v <= high).collect();
        Self::new(Scale::Tail, 0.0, high, ticks, "")
    }

    /// Logarithmic through the values that were measured, a tick at each.
    pub(super) fn values(values: &[f64]) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(0.0, f64::max);
        let (low, high) = if low < high {
            (low, high)
        } else {
            (low / 2.0, low * 2.0)
        };
        let ticks = values.iter().map(|v| (*v, number::tick(*v))).collect();
        Self::new(Scale::Log, low, high, ticks, "")
    }

    fn new(scale: Scale, low: f64, high: f64, mut ticks: Vec<(f64, String)>, unit: &str) -> Self {
        if let (Some((_, last)), false) = (ticks.last_mut(), unit.is_empty()) {
            let space = if ["%", "/s"].contains(&unit) { "" } else { " " };
            *last = format!("{last}{space}{unit}");
        }
        Self {
            scale,
            low,
            high,
            ticks,
        }
    }

    /// 0 at the low end, 1 at the high end; what lies outside stays at the end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let along = |v: f64| match self.scale {
            Scale::Linear => v,
            Scale::Log => v.max(f64::MIN_POSITIVE).log10(),
            Scale::Tail => -(1.0 - v).max(1e-9).log10(),
        };
        let (low, high) = (along(self.low), along(self.high));
        ((along(value) - low) / (high - low)).clamp(0.0, 1.0)
    }
}

/// The next of 1, 2, 2.5, 5, 10 … not below.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let rounds = [1.0, 2.0, 2.5, 5.0, 10.0];
    let round = rounds.iter().find(|r| **r * power >= value * 0.999_999);
    round.copied().unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn round_ticks_from_zero_with_the_unit_at_the_last() {
        let axis = Axis::from_zero(142.9, "µs");
        assert_eq!(ticks(&axis), ["0", "50", "100", "150 µs"]);
        assert_eq!((axis.place(0.0), axis.place(75.0)), (0.0, 0.5));
        let axis = Axis::from_zero(72_000.0, "/s");
        assert_eq!(ticks(&axis), ["0", "20k", "40k", "60k", "80k/s"]);
        assert_eq!(ticks(&Axis::from_zero(0.0, "MiB")).len(), 6);
        assert_eq!(ticks(&Axis::from_zero(f64::NAN, "")).len(), 6);
        let time = Axis::until(23.0, "s");
        assert_eq!(ticks(&time), ["0", "5", "10", "15", "20 s"]);
        assert_eq!(time.place(23.0), 1.0);
    }

    #[test]
    fn logarithms_and_nines() {
        let axis = Axis::log(1.9, 178.0, "ms");
        assert_eq!(
            ticks(&axis),
            ["1", "2", "5", "10", "20", "50", "100", "200 ms"]
        );
        assert_eq!(ticks(&Axis::log(0.06, 4000.0, "")).len(), 5);
        let tail = Axis::tail(10_000.0);
        assert_eq!(ticks(&tail), ["50%", "90%", "99%", "99.9%", "99.99%"]);
        assert!((tail.place(0.99) - 0.5).abs() < 1e-9);
        let one = Axis::values(&[64.0]);
        assert!((one.place(64.0) - 0.5).abs() < 1e-9);
    }
}
