//! Finds the matches of HTTPRouteGroups that Egresses and TrafficTargets name.

use std::collections::HashMap;
use tulle_model::manifest::{HttpRouteGroupMatch, HttpRouteGroupSpec};

/// A group's matches by their names, which are unique in it, with their places in its list.
type Named<'a> = HashMap<&'a str, (usize, &'a HttpRouteGroupMatch)>;

/// The groups that one object refers to. Both may be as long as an object can be, and the object may refer to one group
/// any number of times: so each group is read once, and no list is searched for a name.
#[derive(Default)]
pub(super) struct Groups<'a>(HashMap<&'a str, Named<'a>>);

impl<'a> Groups<'a> {
    /// The matches of the group of this name.
    pub(super) fn named(&mut self, name: &'a str, group: &'a HttpRouteGroupSpec) -> &Named<'a> {
        self.0.entry(name).or_insert_with(|| {
            let matches = group.matches.iter().enumerate();
            matches.map(|(i, m)| (m.name.as_str(), (i, m))).collect()
        })
    }
}
