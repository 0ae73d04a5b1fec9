//! Collects the matches of HTTPRouteGroups that an Egress or a TrafficTarget names.

use std::collections::{HashMap, HashSet};
use tulle_model::manifest::{HttpRouteGroupMatch, HttpRouteGroupSpec};
use tulle_model::resource::PolicyMatch;

/// Most matches of one object. Many short objects may name a long group, and sidecars have a copy for each.
const MOST: usize = 1000;
/// Most bytes of these.
const MOST_BYTES: usize = 64 * 1024;

/// A group's matches by their names, which are unique in it.
type Named<'a> = HashMap<&'a str, &'a HttpRouteGroupMatch>;

/// The matches that one object has named so far. Its list and those of groups may be as long as objects can be: so each
/// group is read once, no list is searched for a name, and what is named again is not taken again.
#[derive(Default)]
pub(super) struct Groups<'a> {
    named: HashMap<&'a str, Named<'a>>,
    /// Names of groups and of their matches.
    taken: HashSet<(&'a str, &'a str)>,
    matches: Vec<PolicyMatch>,
    /// Bytes of the matches.
    bytes: usize,
}

impl<'a> Groups<'a> {
    /// Takes matches of the group of this name: those that are wanted, or all. Returns the wanted that it has not.
    pub(super) fn take(
        &mut self,
        name: &'a str,
        group: &'a HttpRouteGroupSpec,
        wanted: &'a [String],
    ) -> Vec<&'a str> {
        if wanted.is_empty() {
            group.matches.iter().for_each(|one| self.add(name, one));
            return Vec::new();
        }
        let named = self.named.entry(name).or_insert_with(|| {
            let matches = group.matches.iter();
            matches.map(|m| (m.name.as_str(), m)).collect()
        });
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for wanted in wanted {
            match named.get(wanted.as_str()) {
                Some(one) => found.push(*one),
                None => missing.push(wanted.as_str()),
            }
        }
        found.into_iter().for_each(|one| self.add(name, one));
        missing
    }

    fn add(&mut self, group: &'a str, one: &'a HttpRouteGroupMatch) {
        // One beyond a bound is enough to know.
        if !self.is_too_much() && self.taken.insert((group, &one.name)) {
            self.matches.push(one.policy_match());
            let headers = one
                .headers
                .iter()
                .map(|(name, value)| name.len() + value.len());
            let texts = one.methods.iter().chain(&one.path_regex);
            self.bytes += one.name.len() + texts.map(String::len).chain(headers).sum::<usize>();
        }
    }

    fn is_too_much(&self) -> bool {
        self.matches.len() > MOST || self.bytes > MOST_BYTES
    }

    /// Returns all that were taken.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn matches(self) -> Result<Vec<PolicyMatch>, String> {
        match self.is_too_much() {
            true => Err(format!(
                "it names more than {MOST} matches of HTTPRouteGroups, or more than {MOST_BYTES} bytes of them"
            )),
            false => Ok(self.matches),
        }
    }
}
