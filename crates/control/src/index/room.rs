//! Bounds what one resource repeats of the objects that its rules name.
//!
//! Each rule has a copy of all that holds for its requests: sources of Plugins, keys of tokens, HTTPFilters, policies. A
//! few objects of a tenant could so be gigabytes of the controller's memory, and of proxies'.

use super::{Inputs, ObjectProblem};
use serde::Serialize;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::{io, slice};
use tulle_model::manifest::{FilterRefs, HttpFilterSpec, ObjectRef, PluginSpec, RouteFilter};
use tulle_model::resource::{Filter, Policy, Respond, RouteMatch, RouteRule};

/// Most bytes that routes of one namespace have in a resource. Thirty rules with 30 KiB each are a tenth of it.
const MOST: usize = 8 << 20;
/// Most bytes that routes of all namespaces but its own have in a gateway or service together. With all else that has a
/// bound here, a gateway has 56 MiB: a proxy reads messages of up to 64 MiB.
const MOST_OF_OTHERS: usize = 24 << 20;
/// Number of times that shares of these are made larger by what nobody needs. Each time all routes are made again.
const MOST_PASSES: usize = 4;
/// Most bytes that all ports of a workload, or all listeners of a gateway, have together. They are one namespace's alone.
const MOST_OF_PORTS: usize = 24 << 20;
/// Most bytes that the ports of all pods of a namespace have together: the controller keeps a resource for each pod,
/// also where nobody asks for it. They are a quarter of its memory limit, so that one namespace does not end it for all.
const MOST_OF_PODS: usize = 128 << 20;
/// Least bytes for the ports of a pod, however many pods there are, so that more than 256 may have more together: a
/// Plugin may have half of it.
const LEAST_OF_PORTS: usize = 512 << 10;
/// Number of times that all of a room may be read for rules that do not fit, before half of it is given away.
const IN_VAIN: usize = 4;

/// Most conditions that a rule without room has in all its matches together, if all are kept: no room counts them, and so
/// many are 4 MB of the controller's memory.
const MOST_KEPT: usize = 1 << 16;
/// Most conditions of each match in a rule that would have more than that. In a cluster no rule has more filters, so only
/// a host's manifest, which may have as many filters and matches as it is long, loses some.
const MOST_KEPT_OF_MATCH: usize = 16;

/// Something has more bytes than are left for it. Whoever has the room says to whom it belongs and what to do.
pub(super) struct NoRoom;

/// The bytes that rules may still have in a resource.
pub(super) struct Room {
    most: usize,
    left: usize,
    taken: usize,
    /// The bytes that may be read in vain before half of what is left is given away.
    in_vain: usize,
    /// Whether something did not fit.
    refused: bool,
}

impl Room {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            left: most,
            taken: 0,
            in_vain: IN_VAIN * most,
            refused: false,
        }
    }

    /// The room of a gateway's listeners, or of a pod without a sidecar, of whose rules nothing is kept but the ports that they
    /// name.
    pub(super) fn of_ports() -> Self {
        Self::new(MOST_OF_PORTS)
    }

    /// The room of the ports of a workload in this namespace. On hosts all rules are the operator's, and no workload
    /// takes from another.
    pub(super) fn of_workload(inputs: &Inputs, namespace: &str) -> Self {
        let cluster = inputs.cluster.as_ref();
        Self::new(cluster.map_or(MOST_OF_PORTS, |cluster| cluster.shares.each(namespace)))
    }

    /// The room of a pod without an address: it has no share yet, and there may be very many that never run.
    pub(super) fn of_waiting_pod() -> Self {
        Self::new(LEAST_OF_PORTS)
    }

    /// The bytes that there were before any were taken.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// The same for whoever wrote too much for a workload or gateway, with the reason where it is less than most have.
    pub(super) fn most_in_words(&self) -> String {
        let share = match self.most < MOST_OF_PORTS {
            true => ", which is a pod's share in a namespace of so many",
            false => "",
        };
        format!("{} bytes{share}", self.most)
    }

    /// The bytes that were taken.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// The bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Takes so many bytes. Returns false, and takes none, if there are fewer.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let left = self.left.checked_sub(bytes);
        match left {
            Some(left) => self.leave(left),
            None => self.refuse(),
        }
        left.is_some()
    }

    fn leave(&mut self, left: usize) {
        self.taken += self.left - left;
        self.left = left;
    }

    /// Counts what was read of something that does not fit: up to all that is left. Half of that is given away each time
    /// that this was read in full four times: so all that is refused costs at most eight times the work of what fits,
    /// however much it is, and what is much shorter than a few that do not fit has room after them.
    pub(super) fn refuse(&mut self) {
        self.refused = true;
        self.in_vain = self.in_vain.saturating_sub(self.left);
        if self.in_vain == 0 {
            self.left /= 2;
            self.in_vain = IN_VAIN * self.left;
        }
    }

    /// Returns the objects as a rule with so many matches may read them.
    pub(super) fn refs<'a>(&self, inputs: &'a Inputs, matches: usize) -> Refs<'a> {
        Refs {
            inputs,
            // A rule without matches gets one for the conditions.
            matches: matches.max(1),
            left: Cell::new(Some(self.left)),
        }
    }

    /// Makes a rule of a route that has so many matches and these filters. `policy` is told how many bytes are left for it.
    /// Returns false with one that answers with 500 if there is no room for what it names.
    pub(super) fn rule(
        &mut self,
        inputs: &Inputs,
        (matches, filters): (usize, &[RouteFilter]),
        make: impl FnOnce(&dyn FilterRefs) -> Option<RouteRule>,
        policy: impl FnOnce(&RouteRule, usize) -> Result<Option<Box<Policy>>, NoRoom>,
    ) -> Option<(RouteRule, bool)> {
        let refs = self.refs(inputs, matches);
        let mut rule = make(&refs)?;
        let left = refs.left().and_then(|left| {
            // Policies may be long, too: they are made only as far as there is room beside all else.
            rule.policy = policy(&rule, left).ok()?;
            match &rule.policy {
                Some(policy) => after(left, policy),
                None => Some(left),
            }
        });
        match left {
            Some(left) => {
                self.leave(left);
                Some((rule, true))
            }
            None => {
                self.refuse();
                Some((refusing(inputs, rule, filters), false))
            }
        }
    }
}

/// The bytes for the ports of each of so many pods of a namespace, and those that each has once they are too many for that.
/// The number is rounded up to a power of two, so that those of the others are seldom computed anew when a pod comes or
/// goes.
pub(super) fn shares(pods: usize) -> (usize, usize) {
    let pods = pods.next_power_of_two();
    let each = |pods: usize| (MOST_OF_PODS / pods).clamp(LEAST_OF_PORTS, MOST_OF_PORTS);
    (each(pods), each(2 * pods))
}

/// The rooms of the namespaces whose routes are attached to a gateway or service: each has its own, so that no tenant takes
/// another's.
pub(super) struct Rooms<'a> {
    /// The namespace of the gateway or service.
    own: &'a str,
    /// Most bytes of each other namespace.
    each: usize,
    rooms: BTreeMap<&'a str, Room>,
}

impl<'a> Rooms<'a> {
    fn new(own: &'a str, each: usize) -> Self {
        Self {
            own,
            each,
            rooms: BTreeMap::new(),
        }
    }

    /// The room of a namespace.
    pub(super) fn room(&mut self, namespace: &'a str) -> &mut Room {
        let most = match namespace == self.own {
            true => MOST,
            false => self.each,
        };
        let room = self.rooms.entry(namespace);
        room.or_insert_with(|| Room::new(most))
    }

    /// Whether routes of other namespaces have more than they may have together: what is made is not used.
    pub(super) fn are_too_full(&self) -> bool {
        self.others().map(|room| room.taken).sum::<usize>() > MOST_OF_OTHERS
    }

    fn others(&self) -> impl Iterator<Item = &Room> {
        let rooms = self.rooms.iter();
        let others = rooms.filter(|(namespace, _)| **namespace != self.own);
        others.map(|(_, room)| room)
    }

    /// An equal share, for each namespace that had too little, of what those that had enough leave; 0: all had enough.
    fn share(&self) -> usize {
        let enough = self.others().filter(|room| !room.refused);
        let taken: usize = enough.map(|room| room.taken).sum();
        let short = self.others().filter(|room| room.refused).count();
        let left = MOST_OF_OTHERS.saturating_sub(taken);
        left.checked_div(short).unwrap_or(0).min(MOST)
    }
}

/// Makes what has rooms in something of the namespace `own`. Where so many other namespaces have too much together, it is
/// made anew with an equal share for each of them, and with larger ones as long as some leave what others need: nobody takes
/// another's, and little stays unused.
pub(super) fn with_rooms<'a, T>(
    own: &'a str,
    others: usize,
    make: impl Fn(&mut Rooms<'a>) -> T,
) -> T {
    let mut rooms = Rooms::new(own, MOST);
    let made = make(&mut rooms);
    if !rooms.are_too_full() {
        return made;
    }
    // One of these may be tens of megabytes, so none is kept while the next is made.
    drop(made);
    let mut share = (MOST_OF_OTHERS / others.max(1)).min(MOST);
    for _ in 0..MOST_PASSES {
        let mut rooms = Rooms::new(own, share);
        let made = make(&mut rooms);
        // Whoever had enough takes as much with a larger share: all together never have too much.
        match rooms.share() {
            larger if larger > share => share = larger,
            _ => return made,
        }
    }
    make(&mut Rooms::new(own, share))
}

/// The rule that answers for one without room. It takes all requests that the other would: fewer could reach another
/// rule that refuses less.
fn refusing(inputs: &Inputs, rule: RouteRule, filters: &[RouteFilter]) -> RouteRule {
    let named = filters.iter().filter_map(RouteFilter::http_filter);
    let conditions = named.filter_map(|r| inputs.http_filter(&r.name)?.match_when.as_ref());
    let conditions = conditions.count();
    let mut matches = rule.matches;
    // These may be what is too long. A match with more conditions comes first, so as many stay, and they always hold.
    let kept = match conditions.saturating_mul(matches.len()) <= MOST_KEPT {
        true => conditions,
        false => conditions.min(MOST_KEPT_OF_MATCH),
    };
    let when = vec!["true".to_owned(); kept];
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

/// Takes a route's rules, each with whether there is room for it, and reports those that there is none for.
pub(super) fn told(
    object: String,
    made: impl Iterator<Item = (RouteRule, bool)>,
    most: usize,
    problems: &mut Vec<ObjectProblem>,
) -> Vec<RouteRule> {
    let (rules, fit): (Vec<RouteRule>, Vec<bool>) = made.unzip();
    if let Some(first) = fit.iter().position(|fits| !fits) {
        let text = format!(
            "{} of its rules answer with 500, rules[{first}] is the first: what rules of its namespace's routes name \
             (Plugins, HTTPFilters, keys of tokens, policies) has more than {most} bytes in one Gateway or Service, because each \
             rule has a copy: make fewer rules or shorter sources",
            fit.iter().filter(|fits| !**fits).count()
        );
        problems.push(ObjectProblem { object, text });
    }
    rules
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
    pub(super) fn fits<T: Serialize>(&self, copied: &T) -> bool {
        let left = self.left.get().and_then(|left| after(left, copied));
        self.left.set(left);
        left.is_some()
    }
}

impl FilterRefs for Refs<'_> {
    fn http_filter(&self, name: &str) -> Option<&HttpFilterSpec> {
        self.left.get()?;
        let spec = self.inputs.http_filter(name)?;
        self.fits(spec).then_some(spec)
    }

    /// Counts a copy for each match.
    fn condition(&self, name: &str) -> Option<&String> {
        let left = self.left.get()?;
        let condition = self.inputs.http_filter(name)?.match_when.as_ref()?;
        let copied = bytes(slice::from_ref(condition)).saturating_mul(self.matches);
        self.left.set(left.checked_sub(copied));
        self.left.get().map(|_| condition)
    }

    fn plugin(&self, name: &str) -> Option<&PluginSpec> {
        self.left.get()?;
        let spec = self.inputs.plugin(name)?;
        // A proxy gets the configuration as a text, with a backslash before each quote.
        self.fits(&(spec, &spec.config)).then_some(spec)
    }

    fn text(&self, reference: &ObjectRef, key: &str) -> Option<String> {
        self.left.get()?;
        let text = self.inputs.text(reference, key)?;
        self.fits(&text).then_some(text)
    }

    fn fetched_keys(&self, address: &str) -> Option<String> {
        // The question alone says that a resource waits for keys.
        let keys = self.inputs.fetched_keys(address)?;
        self.fits(&keys).then_some(keys)
    }
}

/// Counts the bytes that these have where proxies are sent them.
pub(super) fn bytes<T: Serialize>(all: &[T]) -> usize {
    let left = all.iter().map(|one| after(usize::MAX, one));
    left.map(|left| usize::MAX - left.unwrap_or(usize::MAX))
        .sum()
}

/// Takes what is made as long as there is room for it. None is made after the first that does not fit.
pub(super) fn fitting<T: Serialize>(
    made: impl Iterator<Item = T>,
    left: &mut usize,
) -> Result<Vec<T>, NoRoom> {
    let fits = |one: T| -> Result<T, NoRoom> {
        *left = after(*left, &one).ok_or(NoRoom)?;
        Ok(one)
    };
    made.map(fits).collect()
}

/// Returns what is left of so many bytes after those of a copy, which is read no further than to where it is too long.
pub(super) fn after<T: Serialize>(left: usize, copied: &T) -> Option<usize> {
    let mut left = Left(left);
    serde_json::to_writer(&mut left, copied).ok()?;
    Some(left.0)
}

/// Counts what is written, and keeps none of it.
struct Left(usize);

impl io::Write for Left {
    fn write(&mut self, written: &[u8]) -> io::Result<usize> {
        let left = self.0.checked_sub(written.len());
        self.0 = left.ok_or(io::ErrorKind::StorageFull)?;
        Ok(written.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
