//! Bars from zero: the median, a whisker from the least to the largest, and the figures beside it.

use super::axis::Axis;
use super::look;
use super::number;
use super::svg::{Anchor, Picture, Svg, WIDTH, width_of};
use crate::results::stats::Spread;

/// A chart of bars.
pub(super) struct Bars {
    pub(super) title: String,
    /// The meaning of the bars, and which direction is good.
    pub(super) subtitle: String,
    pub(super) unit: &'static str,
    pub(super) groups: Vec<Group>,
}

/// One peer.
pub(super) struct Group {
    pub(super) peer: String,
    pub(super) label: String,
    /// A bar each, with its name when there are several; the first of several is lighter.
    pub(super) bars: Vec<(&'static str, Spread)>,
}

const TOP: f64 = 54.0;
/// Least distance from the label to the bar.
const GAP: f64 = 10.0;
const BOTTOM: f64 = 30.0;

impl Bars {
    /// The picture.
    pub(super) fn draw(&self) -> Picture {
        let height_of = |group: &Group| 14.0 + 18.0 * group.bars.len().max(1) as f64;
        let height = TOP + self.groups.iter().map(height_of).sum::<f64>() + BOTTOM;
        let mut svg = Svg::new(height);
        svg.text((12.0, 22.0), "title", Anchor::Start, &self.title);
        svg.text((12.0, 41.0), "soft", Anchor::Start, &self.subtitle);

        let widest = |texts: &mut dyn Iterator<Item = String>| {
            texts.map(|t| width_of(&t)).fold(0.0, f64::max)
        };
        let left = 12.0 + GAP + widest(&mut self.groups.iter().map(|g| g.label.clone()));
        let all = || self.groups.iter().flat_map(|g| &g.bars);
        let right =
            22.0 + widest(&mut all().map(|(n, s)| format!("{}{}", number::median(s), soft(n, s))));
        let most = all().map(|(_, spread)| spread.max).fold(0.0, f64::max);
        let axis = Axis::from_zero(most, self.unit);
        let width = (WIDTH - left - right).max(60.0);
        let x = |value: f64| left + axis.place(value) * width;

        let floor = height - BOTTOM;
        for (i, (tick, _)) in axis.ticks.iter().enumerate() {
            let class = if i == 0 { "axis" } else { "grid" };
            svg.line((x(*tick), TOP), (x(*tick), floor), class);
        }
        // The last one has the unit; the others as far as there is place.
        let mut free = WIDTH;
        for (tick, text) in axis.ticks.iter().rev() {
            let half = width_of(text) / 2.0;
            if x(*tick) + half < free {
                svg.text((x(*tick), floor + 17.0), "soft", Anchor::Middle, text);
                free = x(*tick) - half - 5.0;
            }
        }
        let mut y = TOP;
        for group in &self.groups {
            let next = y + height_of(group);
            let class = look::class(&group.peer);
            let middle = f64::midpoint(y, next) + 4.5;
            let label = if group.peer == crate::results::stats::SUBJECT {
                "strong"
            } else {
                ""
            };
            svg.text((left - GAP, middle), label, Anchor::End, &group.label);
            if group.bars.is_empty() {
                svg.text((left + 6.0, middle), "soft", Anchor::Start, "no valid run");
            }
            for (i, (name, spread)) in group.bars.iter().enumerate() {
                let top = y + 7.0 + 18.0 * i as f64;
                let centre = top + 9.0;
                let second = group.bars.len() > 1 && i == 0;
                let class = if second {
                    format!("{class} second")
                } else {
                    class.clone()
                };
                let long = x(spread.median) - left;
                svg.rect((left, top + 1.0), (long.max(1.0), 16.0), &class);
                if spread.count > 1 {
                    let (low, high) = (x(spread.min), x(spread.max));
                    svg.line((low, centre), (high, centre), "whisker");
                    for end in [low, high] {
                        svg.line((end, centre - 4.0), (end, centre + 4.0), "whisker");
                    }
                }
                let at = (x(spread.max.max(spread.median)) + 7.0, centre + 4.5);
                svg.text_and_soft(at, "strong", &number::median(spread), &soft(name, spread));
            }
            y = next;
        }
        svg.finish(&self.title, &self.description())
    }

    fn description(&self) -> String {
        let one = |group: &Group| {
            let bar = |(name, spread): &(&str, Spread)| {
                format!(
                    "{} {} {}",
                    number::median(spread),
                    self.unit,
                    soft(name, spread)
                )
            };
            let bars: Vec<String> = group.bars.iter().map(bar).collect();
            let bars = if bars.is_empty() {
                "no valid run".into()
            } else {
                bars.join(", ")
            };
            format!("{}: {}", group.label, bars.trim_end())
        };
        let groups: Vec<String> = self.groups.iter().map(one).collect();
        format!("{}. {}.", self.subtitle, groups.join("; "))
    }
}

fn soft(name: &str, spread: &Spread) -> String {
    let range = number::range(spread).map(|r| format!("({r})"));
    let words = [Some(name.to_owned()).filter(|n| !n.is_empty()), range];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
