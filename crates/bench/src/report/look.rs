//! How peers look: their names for a reader, and one colour each in every chart and table.
//!
//! The colours are Okabe's and Ito's, which people who see colours otherwise can tell apart,
//! darkened (and for dark pages lightened) until text in them can be read.

use std::fmt::Write as _;

struct Look {
    peer: &'static str,
    label: &'static str,
    light: &'static str,
    dark: &'static str,
}

const LOOKS: [Look; 11] = [
    look("tulle", "Tulle", "#0068a9", "#56b4e9"),
    look("envoy", "Envoy", "#b84a00", "#f58b4c"),
    look("envoy-wasmless-h2", "Envoy (HTTP/2)", "#8a6000", "#e6b93c"),
    look("nginx", "nginx", "#00764f", "#3ec99c"),
    look("haproxy", "HAProxy", "#a23d7c", "#e08bbd"),
    look("haproxy-tcp", "HAProxy (TCP)", "#6a55b5", "#b3a5f0"),
    look("pipy", "Pipy", "#5c6600", "#c2cc55"),
    look("osm", "Open Service Mesh", "#a8323e", "#f08a90"),
    look("osm-nowasm", "OSM (no WASM)", "#7a5230", "#d0a27c"),
    look("istio", "Istio", "#00707a", "#4fc3cc"),
    look("none", "no sidecars", "#666d78", "#9aa3af"),
];

const fn look(
    peer: &'static str,
    label: &'static str,
    light: &'static str,
    dark: &'static str,
) -> Look {
    Look {
        peer,
        label,
        light,
        dark,
    }
}

fn known(peer: &str) -> Option<&'static Look> {
    LOOKS.iter().find(|look| look.peer == peer)
}

/// A peer's name for a reader.
pub(super) fn label(peer: &str) -> &str {
    known(peer).map_or(peer, |look| look.label)
}

/// The class that gives things a peer's colour.
pub(super) fn class(peer: &str) -> String {
    let name = known(peer).map_or("other", |look| look.peer);
    format!("p-{name}")
}

/// So that lines differ in more than their colour: a dash pattern, and the shape of their points.
pub(super) fn dash(peer: &str) -> &'static str {
    match peer {
        "tulle" | "envoy" | "osm" => "",
        "none" => "2 4",
        "nginx" | "istio" => "9 4",
        "haproxy" => "7 3 2 3",
        "envoy-wasmless-h2" => "5 3",
        _ => "3 3",
    }
}

/// Style of every chart. Plain rules without variables: other programs than browsers show files.
pub(super) fn chart_style() -> String {
    let mut style = String::from(
        ".chart{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',Arial,sans-serif;font-size:13px}\
.chart text{fill:#22262d}.chart .title{font-size:15px;font-weight:600}.chart .soft{fill:#5b626d;font-size:12px}\
.chart .source{fill:#6a717c;font-size:11px}.chart .strong{font-weight:600}.chart .bg{fill:#fff}.chart .grid{stroke:#e6e8ec;stroke-width:1}\
.chart .axis{stroke:#8b929d;stroke-width:1}.chart .whisker{stroke:#22262d;stroke-width:1.25}\
.chart .limit{stroke:#22262d;stroke-width:1.25;stroke-dasharray:5 4}\
.chart .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.chart .faint{stroke-width:1;opacity:.3}\
.chart .band{opacity:.15;stroke:none}.chart .second{opacity:.45}.chart .leader{stroke-width:.75;opacity:.6}",
    );
    let mut dark = String::from(
        ".chart text{fill:#e4e7ec}.chart .soft,.chart .source{fill:#a2a9b5}.chart .bg{fill:#16191f}.chart .grid{stroke:#2b303a}\
.chart .axis{stroke:#6d7480}.chart .whisker,.chart .limit{stroke:#e4e7ec}",
    );
    let other = look("other", "", "#7a5230", "#d0a27c");
    for look in LOOKS.iter().chain([&other]) {
        for (into, colour) in [(&mut style, look.light), (&mut dark, look.dark)] {
            let class = look.peer;
            let _ = write!(
                into,
                ".chart .p-{class}{{fill:{colour}}}.chart .line.p-{class},.chart .leader.p-{class}{{fill:none;stroke:{colour}}}"
            );
        }
    }
    format!("{style}@media (prefers-color-scheme:dark){{{dark}}}")
}

/// Returns the style of the small squares beside names in tables.
pub(super) fn page_style() -> String {
    let (mut light, mut dark) = (String::new(), String::new());
    for look in &LOOKS {
        let _ = write!(light, "i.p-{}{{background:{}}}", look.peer, look.light);
        let _ = write!(dark, "i.p-{}{{background:{}}}", look.peer, look.dark);
    }
    format!("{light}@media (prefers-color-scheme:dark){{{dark}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WCAG's contrast of two colours.
    fn contrast(a: &str, b: &str) -> f64 {
        let luminance = |colour: &str| {
            let channel = |i: usize| {
                let byte = u8::from_str_radix(&colour[i..i + 2], 16).unwrap();
                let c = f64::from(byte) / 255.0;
                if c <= 0.03928 {
                    c / 12.92
                } else {
                    ((c + 0.055) / 1.055).powf(2.4)
                }
            };
            0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
        };
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        a.max(b) / a.min(b)
    }

    #[test]
    fn text_in_a_peers_colour_can_be_read() {
        for look in &LOOKS {
            assert!(contrast(look.light, "#ffffff") >= 4.5, "{}", look.peer);
            assert!(contrast(look.dark, "#16191f") >= 4.5, "{}", look.peer);
        }
    }
}
