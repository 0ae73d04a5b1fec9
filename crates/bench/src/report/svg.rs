//! A small writer of SVG: what the charts need and no more. It knows no data.

use super::look;
use std::fmt::{Display, Write as _};

/// Width of every chart. Small, so that its text stays readable on a phone.
pub(super) const WIDTH: f64 = 480.0;

/// Where a text is at its x.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture being drawn.
pub(super) struct Svg {
    body: String,
    height: f64,
}

impl Svg {
    pub(super) fn new(height: f64) -> Self {
        Self {
            body: String::new(),
            height,
        }
    }

    pub(super) fn text(&mut self, at: (f64, f64), class: &str, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let class = attribute("class", class);
        let _ = writeln!(
            self.body,
            "<text x=\"{}\" y=\"{}\"{class}{anchor}>{}</text>",
            Short(at.0),
            Short(at.1),
            escape(text)
        );
    }

    /// Two pieces in one line, the second soft.
    pub(super) fn text_and_soft(&mut self, at: (f64, f64), class: &str, text: &str, soft: &str) {
        let _ = writeln!(
            self.body,
            "<text x=\"{}\" y=\"{}\"><tspan class=\"{class}\">{}</tspan><tspan class=\"soft\" dx=\"5\">{}</tspan></text>",
            Short(at.0),
            Short(at.1),
            escape(text),
            escape(soft)
        );
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let _ = writeln!(
            self.body,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{class}\"/>",
            Short(from.0),
            Short(from.1),
            Short(to.0),
            Short(to.1)
        );
    }

    pub(super) fn rect(&mut self, at: (f64, f64), size: (f64, f64), class: &str) {
        let _ = writeln!(
            self.body,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"{class}\"/>",
            Short(at.0),
            Short(at.1),
            Short(size.0.max(0.0)),
            Short(size.1)
        );
    }

    /// Through points; `dash` as SVG writes it, empty for a solid line.
    pub(super) fn polyline(&mut self, points: &[(f64, f64)], class: &str, dash: &str) {
        let dash = attribute("stroke-dasharray", dash);
        let _ = writeln!(
            self.body,
            "<polyline points=\"{}\" class=\"{class}\"{dash}/>",
            list(points)
        );
    }

    pub(super) fn polygon(&mut self, points: &[(f64, f64)], class: &str) {
        let _ = writeln!(
            self.body,
            "<polygon points=\"{}\" class=\"{class}\"/>",
            list(points)
        );
    }

    pub(super) fn circle(&mut self, (x, y): (f64, f64), radius: f64, class: &str) {
        let _ = writeln!(
            self.body,
            "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" class=\"{class}\"/>",
            Short(x),
            Short(y),
            Short(radius)
        );
    }

    /// The picture; `description` is for who cannot see it.
    pub(super) fn finish(self, title: &str, description: &str) -> Picture {
        Picture {
            title: escape(title),
            description: escape(description),
            drawing: self,
        }
    }
}

/// A finished picture.
pub(super) struct Picture {
    title: String,
    description: String,
    drawing: Svg,
}

impl Picture {
    /// Returns the drawing for a page that has the style.
    pub(super) fn inline(&self) -> String {
        self.write("", "", &self.drawing.body, self.drawing.height)
    }

    /// Returns the drawing as a file of its own, with style, size and source, so that it can be shown
    /// anywhere.
    pub(super) fn file(&self, source: &[String]) -> String {
        let mut footer = Svg::new(0.0);
        let mut y = self.drawing.height + 8.0;
        for text in source {
            footer.text((12.0, y), "source", Anchor::Start, &fitted(text));
            y += 16.0;
        }
        let size = format!(" width=\"{}\"", Short(WIDTH * 1.25));
        let style = format!("<style>{}</style>\n", look::chart_style());
        let body = format!("{}{}", self.drawing.body, footer.body);
        self.write(&size, &style, &body, y)
    }

    fn write(&self, size: &str, style: &str, body: &str, height: f64) -> String {
        let (width, height) = (Short(WIDTH), Short(height));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\"{size} class=\"chart\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n{style}<title>{}</title>\n<desc>{}</desc>\n<rect width=\"{width}\" height=\"{height}\" class=\"bg\"/>\n{body}</svg>\n",
            self.title, self.description
        )
    }
}

/// Cuts a text at 11 px to the available width.
fn fitted(text: &str) -> String {
    let mut kept = text.to_owned();
    while width_of(&kept) * 11.0 / 13.0 > WIDTH - 24.0 {
        kept.pop();
        kept.pop();
        kept.push('…');
    }
    kept
}

/// Text for XML and HTML, also in attributes. Characters that XML has no way to hold are left out.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {}
            c => escaped.push(c),
        }
    }
    escaped
}

/// About how wide a text is at 13 px. Fonts differ; this is a wide one.
pub(super) fn width_of(text: &str) -> f64 {
    let wide = |c: char| match c {
        'i' | 'l' | 'j' | '.' | ',' | ':' | ' ' | '\'' | '(' | ')' => 4.2,
        'm' | 'w' | 'M' | 'W' => 11.5,
        c if c.is_uppercase() => 9.0,
        _ => 7.5,
    };
    text.chars().map(wide).sum()
}

fn attribute(name: &str, value: &str) -> String {
    if value.is_empty() {
        String::new()
    } else {
        format!(" {name}=\"{value}\"")
    }
}

fn list(points: &[(f64, f64)]) -> String {
    let points: Vec<String> = points
        .iter()
        .map(|(x, y)| format!("{},{}", Short(*x), Short(*y)))
        .collect();
    points.join(" ")
}

/// A coordinate: a tenth of a pixel is enough, and files stay small.
struct Short(f64);

impl Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tenths = (self.0 * 10.0).round() / 10.0;
        if tenths.is_finite() {
            write!(f, "{tenths}")
        } else {
            f.write_str("0")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_breaks_out_of_its_place() {
        assert_eq!(
            escape("a<b> & \"c\"\u{1b}[0m\n"),
            "a&lt;b&gt; &amp; &quot;c&quot;[0m\n"
        );
        let mut svg = Svg::new(10.0);
        svg.line((f64::NAN, 0.25), (f64::INFINITY, 1.0), "x");
        assert!(
            svg.finish("<", ">")
                .inline()
                .contains("x1=\"0\" y1=\"0.3\" x2=\"0\"")
        );
    }
}
