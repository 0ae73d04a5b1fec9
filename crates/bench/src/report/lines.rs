//! Lines with their names at their ends, and the spread of the repeats as a band around them.

use super::axis::Axis;
use super::look;
use super::svg::{Anchor, Picture, Svg, WIDTH, width_of};

/// A chart of lines.
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) subtitle: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    /// The quantity on the horizontal axis, with its unit.
    pub(super) x_label: &'static str,
    pub(super) lines: Vec<Line>,
    /// A value that cannot be exceeded; the subtitle says which.
    pub(super) limit: Option<f64>,
    /// A description for readers who cannot see the chart.
    pub(super) description: String,
}

/// One line.
pub(super) struct Line {
    pub(super) peer: String,
    /// None: a line that stays in the background.
    pub(super) label: Option<String>,
    pub(super) points: Vec<Point>,
    /// Whether the points themselves were measured, and not only what is between them.
    pub(super) dots: bool,
}

/// A value with its spread.
#[derive(Clone, Copy)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Point {
    /// Makes a point without spread.
    pub(super) fn new(x: f64, y: f64) -> Self {
        Self {
            x,
            y,
            low: y,
            high: y,
        }
    }
}

const HEIGHT: f64 = 300.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 48.0;
/// Distance of two names at the right.
const LINE: f64 = 16.0;

impl Plot {
    /// The picture.
    pub(super) fn draw(&self) -> Picture {
        let mut svg = Svg::new(HEIGHT);
        svg.text((12.0, 22.0), "title", Anchor::Start, &self.title);
        svg.text((12.0, 41.0), "soft", Anchor::Start, &self.subtitle);

        let widest = |texts: &mut dyn Iterator<Item = &String>| {
            texts.map(|t| width_of(t)).fold(0.0, f64::max)
        };
        let left = 20.0 + widest(&mut self.y.ticks.iter().map(|(_, text)| text));
        let right = 26.0 + widest(&mut self.lines.iter().filter_map(|l| l.label.as_ref()));
        let (width, height) = (WIDTH - left - right, HEIGHT - TOP - BOTTOM);
        let x = |value: f64| left + self.x.place(value) * width;
        let y = |value: f64| TOP + (1.0 - self.y.place(value)) * height;
        let floor = TOP + height;

        for (value, text) in &self.y.ticks {
            svg.line((left, y(*value)), (left + width, y(*value)), "grid");
            svg.text((left - 8.0, y(*value) + 4.5), "soft", Anchor::End, text);
        }
        svg.line((left, floor), (left + width, floor), "axis");
        let mut free = f64::NEG_INFINITY;
        for (value, text) in &self.x.ticks {
            let (at, half) = (x(*value), width_of(text) / 2.0);
            svg.line((at, floor), (at, floor + 4.0), "axis");
            if at - half > free {
                svg.text((at, floor + 18.0), "soft", Anchor::Middle, text);
                free = at + half + 4.0;
            }
        }
        let under = (left + width / 2.0, floor + 37.0);
        svg.text(under, "soft", Anchor::Middle, self.x_label);

        for line in &self.lines {
            if line.points.iter().any(|p| p.low < p.y || p.high > p.y) {
                let high = line.points.iter().map(|p| (x(p.x), y(p.high)));
                let low = line.points.iter().rev().map(|p| (x(p.x), y(p.low)));
                let class = format!("band {}", look::class(&line.peer));
                svg.polygon(&high.chain(low).collect::<Vec<_>>(), &class);
            }
        }
        // Names in the background first, so that nothing covers the others.
        let mut order: Vec<&Line> = self.lines.iter().collect();
        order.sort_by_key(|line| line.label.is_some());
        for line in order {
            let class = look::class(&line.peer);
            let points: Vec<_> = line.points.iter().map(|p| (x(p.x), y(p.y))).collect();
            let faint = if line.label.is_none() { " faint" } else { "" };
            let stroke = format!("line {class}{faint}");
            svg.polyline(&points, &stroke, look::dash(&line.peer));
            if line.dots {
                for point in points {
                    svg.circle(point, 3.0, &class);
                }
            }
        }
        if let Some(limit) = self.limit {
            svg.line((left, y(limit)), (left + width, y(limit)), "limit");
        }
        self.names(&mut svg, (left + width, floor), &x, &y);
        svg.finish(&self.title, &self.description)
    }

    /// Writes names at the ends of the lines, moved apart where they would overlap.
    fn names(
        &self,
        svg: &mut Svg,
        (edge, floor): (f64, f64),
        x: &dyn Fn(f64) -> f64,
        y: &dyn Fn(f64) -> f64,
    ) {
        let mut ends: Vec<(f64, (f64, f64), &Line, &String)> = Vec::new();
        for line in &self.lines {
            if let (Some(label), Some(last)) = (&line.label, line.points.last()) {
                ends.push((y(last.y), (x(last.x), y(last.y)), line, label));
            }
        }
        ends.sort_by(|a, b| f64::total_cmp(&a.0, &b.0));
        // Down as far as needed, then up again from the floor.
        let mut free = f64::NEG_INFINITY;
        for end in &mut ends {
            end.0 = end.0.max(free);
            free = end.0 + LINE;
        }
        let mut free = floor;
        for end in ends.iter_mut().rev() {
            end.0 = end.0.min(free);
            free = end.0 - LINE;
        }
        for (at, (end_x, end_y), line, label) in ends {
            let class = look::class(&line.peer);
            if (at - end_y).abs() > 3.0 || edge - end_x > 3.0 {
                let leader = format!("leader {class}");
                svg.line((end_x + 3.0, end_y), (edge + 11.0, at), &leader);
            }
            let strong = if line.peer == crate::results::stats::SUBJECT {
                " strong"
            } else {
                ""
            };
            let class = format!("{class}{strong}");
            svg.text((edge + 14.0, at + 4.5), &class, Anchor::Start, label);
        }
    }
}
