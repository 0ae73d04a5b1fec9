//! Bounds what one resource repeats of the objects that its rules name.
//!
//! Each rule has a copy of all that holds for its requests: sources of Plugins, keys of tokens, HTTPFilters, policies. A
//! few objects of a tenant could so be gigabytes of the controller's memory, and of proxies'.

use super::Inputs;
use serde::Serialize;
use std::cell::Cell;
use std::slice;
use tulle_model::manifest::{FilterRefs, HttpFilterSpec, ObjectRef, PluginSpec, RouteFilter};
use tulle_model::resource::{Filter, Policy, Respond, RouteMatch, RouteRule};

/// Most bytes in one resource, of which a proxy reads messages of up to 64 MiB. Thirty rules with 30 KiB each are a tenth of it.
pub(super) const MOST: usize = 8 << 20;
/// Most HTTPFilters of a rule in Gateway API.
const MOST_FILTERS: usize = 16;

/// The bytes that rules may still have in a resource. In a gateway or service, routes of each namespace have a room of
/// their own, so that no tenant takes another's.
pub(super) struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(MOST)
    }
}

impl Room {
    /// Takes so many bytes. Returns false, and takes none, if there are fewer.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }

    /// Returns the objects as a rule with so many matches may read them.
    pub(super) fn refs<'a>(&self, inputs: &'a Inputs, matches: usize) -> Refs<'a> {
        Refs {
            inputs,
            matches,
            left: Cell::new(Some(self.0)),
        }
    }

    /// Makes a rule of a route that has so many matches and these filters. Returns false with one that answers with 500 if
    /// there is no room for what it names.
    pub(super) fn rule(
        &mut self,
        inputs: &Inputs,
        (matches, filters): (usize, &[RouteFilter]),
        make: impl FnOnce(&dyn FilterRefs) -> Option<RouteRule>,
        policy: impl FnOnce(&RouteRule) -> Option<Box<Policy>>,
    ) -> Option<(RouteRule, bool)> {
        let refs = self.refs(inputs, matches);
        let mut rule = make(&refs)?;
        rule.policy = policy(&rule);
        let policy = bytes(rule.policy.as_slice());
        match refs.left().and_then(|left| left.checked_sub(policy)) {
            Some(left) => {
                self.0 = left;
                Some((rule, true))
            }
            None => Some((refusing(inputs, rule, filters), false)),
        }
    }
}

/// The rule that answers for one without room. It takes all requests that the other would: fewer could reach another
/// rule that refuses less.
fn refusing(inputs: &Inputs, rule: RouteRule, filters: &[RouteFilter]) -> RouteRule {
    let named = filters.iter().filter_map(RouteFilter::http_filter);
    let conditions = named.filter_map(|r| inputs.http_filter(&r.name)?.match_when.as_ref());
    // These may be what is too long. A match with more conditions comes first, so as many stay, and they always hold.
    let when = vec!["true".to_owned(); conditions.count().min(MOST_FILTERS)];
    let mut matches = rule.matches;
    if matches.is_empty() && !when.is_empty() {
        matches.push(RouteMatch::default());
    }
    for one in &mut matches {
        one.when.clone_from(&when);
    }
    RouteRule {
        name: rule.name,
        matches,
        filters: vec![Filter::Respond(Respond {
            status: 500,
            body: "there is no room for all that this rule of a route names\n".to_owned(),
            content_type: String::new(),
        })],
        ..RouteRule::default()
    }
}

/// The objects that rules refer to, as long as there is room for what is copied of them.
pub(super) struct Refs<'a> {
    inputs: &'a Inputs,
    /// Number of matches, each of which has the conditions of all HTTPFilters.
    matches: usize,
    /// Bytes that are left; `None`: more was asked for.
    left: Cell<Option<usize>>,
}

impl Refs<'_> {
    /// How much room is left; `None`: there was too little, and what was made of these objects must not be used.
    pub(super) fn left(&self) -> Option<usize> {
        self.left.get()
    }

    /// Takes room for what is copied. Where there is too little, there is none for anything that follows.
    fn fits(&self, bytes: usize) -> bool {
        let left = self.left.get().and_then(|left| left.checked_sub(bytes));
        self.left.set(left);
        left.is_some()
    }
}

impl FilterRefs for Refs<'_> {
    /// Counts twice, because a rule reads conditions and filters of each apart.
    fn http_filter(&self, name: &str) -> Option<&HttpFilterSpec> {
        self.left.get()?;
        let spec = self.inputs.http_filter(name)?;
        let condition = spec.match_when.as_ref().map_or(0, String::len);
        let conditions = condition.saturating_mul(self.matches);
        let copied = conditions.saturating_add(bytes(slice::from_ref(spec)));
        self.fits(copied).then_some(spec)
    }

    fn plugin(&self, name: &str) -> Option<&PluginSpec> {
        self.left.get()?;
        let spec = self.inputs.plugin(name)?;
        self.fits(bytes(slice::from_ref(spec))).then_some(spec)
    }

    fn text(&self, reference: &ObjectRef, key: &str) -> Option<String> {
        self.left.get()?;
        let text = self.inputs.text(reference, key)?;
        self.fits(text.len()).then_some(text)
    }

    fn fetched_keys(&self, address: &str) -> Option<String> {
        // The question alone says that a resource waits for keys.
        let keys = self.inputs.fetched_keys(address)?;
        self.fits(keys.len()).then_some(keys)
    }
}

/// Counts the bytes that these have where proxies are sent them.
pub(super) fn bytes<T: Serialize>(all: &[T]) -> usize {
    let json = all.iter().map(serde_json::to_vec);
    json.map(|json| json.map_or(0, |json| json.len())).sum()
}
