//! Index of a route table by host and path, so that entries of other hosts and paths cost a request
//! nothing, however many there are.

use super::Entry;
use super::matching::{HostMatch, PathPattern};
use crate::codec::host::Host;
use regex::bytes::Regex;
use std::collections::BTreeMap;

/// All entries. They are inserted by rank: of several with the same host and path, the first
/// inserted is tried first.
#[derive(Default)]
pub(super) struct Index {
    exact: BTreeMap<Vec<u8>, Paths>,
    /// Entries by suffix, with its leading dot.
    wild: BTreeMap<Vec<u8>, Paths>,
    any: Paths,
}

/// Entries of a host.
#[derive(Default)]
struct Paths {
    exact: BTreeMap<Vec<u8>, Vec<Entry>>,
    regexes: Vec<(Regex, Entry)>,
    prefixes: Node,
}

/// Entries whose prefix begins with the same elements.
#[derive(Default)]
struct Node {
    /// Entries whose prefix ends here.
    entries: Vec<Entry>,
    /// Entries whose prefix goes on, by its next element.
    longer: BTreeMap<Vec<u8>, Node>,
}

impl Index {
    /// Inserts an entry.
    pub(super) fn insert(&mut self, host: HostMatch, path: PathPattern, entry: Entry) {
        let paths = match host {
            HostMatch::Exact(host) => self.exact.entry(host.into_bytes()).or_default(),
            HostMatch::Suffix(suffix) => self.wild.entry(suffix.into_bytes()).or_default(),
            HostMatch::Any => &mut self.any,
        };
        match path {
            PathPattern::Exact(path) => {
                paths
                    .exact
                    .entry(path.into_bytes())
                    .or_default()
                    .push(entry);
            }
            PathPattern::Regex(regex) => paths.regexes.push((regex, entry)),
            PathPattern::Prefix(prefix) => {
                let mut node = &mut paths.prefixes;
                let mut rest = prefix.as_bytes();
                while !rest.is_empty() {
                    let (element, after) = first_element(rest);
                    node = node.longer.entry(element.to_vec()).or_default();
                    rest = after;
                }
                node.entries.push(entry);
            }
        }
    }

    /// Returns the first entry that fits: the most specific host comes first, then the most
    /// specific path. A port in `authority` is ignored.
    pub(super) fn find(
        &self,
        authority: &[u8],
        path: &[u8],
        fits: impl Fn(&Entry) -> bool + Copy,
    ) -> Option<&Entry> {
        if self.exact.is_empty() && self.wild.is_empty() {
            return self.any.find(path, fits);
        }
        let host = Host::from_authority(authority).to_lower();
        if let Some(paths) = self.exact.get(&*host)
            && let Some(entry) = paths.find(path, fits)
        {
            return Some(entry);
        }
        if !self.wild.is_empty() {
            // A suffix has at least one label before it; longer suffixes come first.
            let dots = (1..host.len()).filter(|&at| host.get(at) == Some(&b'.'));
            let mut suffixes = dots.filter_map(|at| self.wild.get(host.get(at..)?));
            if let Some(entry) = suffixes.find_map(|paths| paths.find(path, fits)) {
                return Some(entry);
            }
        }
        self.any.find(path, fits)
    }
}

impl Paths {
    fn find(&self, path: &[u8], fits: impl Fn(&Entry) -> bool + Copy) -> Option<&Entry> {
        if !self.exact.is_empty()
            && let Some(entries) = self.exact.get(path)
            && let Some(entry) = entries.iter().find(|e| fits(e))
        {
            return Some(entry);
        }
        let mut regexes = self.regexes.iter();
        if let Some((_, entry)) = regexes.find(|(regex, e)| regex.is_match(path) && fits(e)) {
            return Some(entry);
        }
        // `*` (RFC 9112 3.2.4) and the target of CONNECT match no prefix, not even `/`.
        match path.first() {
            Some(b'/') => self.prefixes.find(path, fits),
            _ => None,
        }
    }
}

impl Node {
    /// Goes down only as far as there are prefixes, not to the end of the path.
    fn find(&self, path: &[u8], fits: impl Fn(&Entry) -> bool + Copy) -> Option<&Entry> {
        if !self.longer.is_empty() {
            let (element, after) = first_element(path);
            if let Some(node) = self.longer.get(element)
                && let Some(entry) = node.find(after, fits)
            {
                return Some(entry);
            }
        }
        self.entries.iter().find(|e| fits(e))
    }
}

/// Splits `/a/b/c` into `/a` and `/b/c`: elements keep the slash before them.
fn first_element(path: &[u8]) -> (&[u8], &[u8]) {
    // Elements are short: calling a library to find their end would cost more.
    let mut ends = path.iter().skip(1);
    let end = ends.position(|&byte| byte == b'/');
    let end = end.map_or(path.len(), |at| at + 1);
    path.split_at_checked(end).unwrap_or((path, &[]))
}
