//! Paths of policies, which may be templates: `{*}` is one segment of a path, `{**}` any number of them.

use crate::import::cel::{any, either, quoted};

/// A segment of a template, as Envoy takes it.
const SEGMENT: &str = "[A-Za-z0-9._~%!$&'()+,;:@-]+";
const SEGMENTS: &str = "[A-Za-z0-9._~%!$&'()+,;:@/-]*";

fn is_template(path: &str) -> bool {
    path.contains("{*}") || path.contains("{**}")
}

/// Whether a path can be translated. Istio knows templates for whole segments only, and no other star or brace beside them.
pub(super) fn is_known(path: &str) -> bool {
    let is_plain =
        |segment: &str| matches!(segment, "{*}" | "{**}") || !segment.contains(['{', '}', '*']);
    !is_template(path) || path.split('/').all(is_plain)
}

/// Returns the condition that the path of a request is one of these. None: there are none.
pub(super) fn any_path(paths: &[String]) -> Option<String> {
    let (templates, others): (Vec<String>, Vec<String>) =
        paths.iter().cloned().partition(|path| is_template(path));
    let matching = templates
        .iter()
        .map(|path| format!("request.path.matches({})", quoted(&pattern(path))));
    either(
        any("request.path", &others)
            .into_iter()
            .chain(matching)
            .collect(),
    )
}

/// Translates a template to a regular expression for the whole path.
fn pattern(template: &str) -> String {
    let segments: Vec<String> = template
        .split('/')
        .map(|segment| match segment {
            "{*}" => SEGMENT.to_owned(),
            "{**}" => SEGMENTS.to_owned(),
            text => escaped(text),
        })
        .collect();
    format!("^{}$", segments.join("/"))
}

/// Escapes each character that could mean something in a regular expression.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
