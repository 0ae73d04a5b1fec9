//! The fewest paths and prefixes that cover what was asked for.

use std::collections::BTreeMap;

/// Ways on from a path above which they are taken for any: names of things, not of resources.
const BRANCHES: usize = 5;
/// Longest segment that is taken for a name.
const LONGEST: usize = 24;

/// A condition on a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathRule {
    /// This path.
    Exact(String),
    /// This path and those below it. `/`: all.
    Prefix(String),
}

#[derive(Debug, Default)]
struct Node {
    /// A path ends here.
    ends: bool,
    next: BTreeMap<String, Node>,
}

/// Covers all of these paths.
pub(super) fn covering<'a>(paths: impl IntoIterator<Item = &'a str>) -> Vec<PathRule> {
    let mut root = Node::default();
    for path in paths {
        let mut node = &mut root;
        for segment in path.trim_start_matches('/').split('/') {
            node = node.next.entry(segment.to_owned()).or_default();
        }
        node.ends = true;
    }
    let mut rules = Vec::new();
    gather(&root, String::new(), &mut rules);
    rules.sort_unstable();
    rules
}

fn gather(node: &Node, path: String, rules: &mut Vec<PathRule>) {
    let is_any = node.next.len() > BRANCHES || node.next.keys().any(|s| is_identifier(s));
    if is_any {
        rules.push(PathRule::Prefix(if path.is_empty() {
            "/".to_owned()
        } else {
            path
        }));
        return;
    }
    if node.ends {
        rules.push(PathRule::Exact(path.clone()));
    }
    for (segment, next) in &node.next {
        gather(next, format!("{path}/{segment}"), rules);
    }
}

/// Whether a segment is the name of one of many things: a number, a UUID, a hash.
fn is_identifier(segment: &str) -> bool {
    let digits = segment.bytes().filter(u8::is_ascii_digit).count();
    let is_version = segment.len() <= 3 && segment.starts_with('v');
    segment.len() > LONGEST || digits > 0 && !is_version && digits * 3 >= segment.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(paths: &[&str]) -> Vec<String> {
        let rules = covering(paths.iter().copied()).into_iter();
        rules
            .map(|rule| match rule {
                PathRule::Exact(path) => path,
                PathRule::Prefix(path) => format!("{path}*"),
            })
            .collect()
    }

    #[test]
    fn names_stay_and_identifiers_become_prefixes() {
        assert_eq!(covered(&["/health", "/ready"]), ["/health", "/ready"]);
        assert_eq!(
            covered(&["/ratings/1", "/ratings/2", "/health"]),
            ["/health", "/ratings*"]
        );
        assert_eq!(covered(&["/v1/users/0b9f12aa/posts"]), ["/v1/users*"]);
        assert_eq!(covered(&["/"]), ["/"]);
        assert_eq!(covered(&["/a/b", "/a"]), ["/a", "/a/b"]);
        assert_eq!(
            covered(&["/shop.Cart/Add", "/shop.Cart/List"]),
            ["/shop.Cart/Add", "/shop.Cart/List"]
        );
        assert_eq!(covered(&["/1", "/2"]), ["/*"]);
        let many = ["/u/a", "/u/b", "/u/c", "/u/d", "/u/e", "/u/f"];
        assert_eq!(covered(&many), ["/u*"]);
    }
}
