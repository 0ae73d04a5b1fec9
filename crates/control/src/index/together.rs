//! Combines the demands of several objects about one port so that all of them hold.
//!
//! A sidecar applies the first rule that matches a request. So the rules of two objects become one list
//! with a rule for each pair: it has the conditions of both and the filters of both.

use std::collections::BTreeSet;
use tulle_model::letter_case::folded;
use tulle_model::resource::{Filter, Jwt, JwtProvider, PathMatch, PolicyMatch, RateLimit};

/// A longer list would make every request slower.
const MOST_RULES: usize = 256;
/// Most pairs of a rule, condition or text of one object with those of another, each of which is looked at.
const MOST_PAIRS: usize = 1 << 20;
/// Most objects that a text names: there may be thousands about a port, and a closed port of each pod has such a text.
const MOST_NAMED: usize = 5;

/// A rule in the making.
#[derive(Debug, Clone, Default)]
pub(super) struct Demand {
    /// The objects it comes from.
    pub(super) objects: Vec<String>,
    /// Which requests; empty: all.
    pub(super) matches: Vec<PolicyMatch>,
    /// Filters they go through.
    pub(super) filters: Vec<Filter>,
}

/// Combines the lists of two objects (one may itself be a combination). The last rule of each list is for
/// all other requests.
///
/// # Errors
/// No rule can have the conditions of both, or there are too many.
pub(super) fn both(one: &[Demand], other: &[Demand]) -> Result<Vec<Demand>, String> {
    if texts(one).saturating_mul(texts(other)) > MOST_PAIRS {
        let names = named(one.iter().chain(other).flat_map(|d| &d.objects), " and ");
        return Err(format!(
            "{names} have too many rules and conditions to combine (those of one times those of the other): make them \
             one object"
        ));
    }
    let mut all = Vec::new();
    for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (a, b))) {
        let names = || [a.objects.as_slice(), &b.objects].concat();
        let Some(matches) = conditions(&a.matches, &b.matches) else {
            let names = named(&names(), " and ");
            return Err(format!(
                "{names} have conditions that no rule can have both of (regular expressions for \
                 the path): make them one object"
            ));
        };
        // Empty conditions mean every request, unless both sides had some: then no request meets both.
        let everything = a.matches.is_empty() && b.matches.is_empty();
        if everything || !matches.is_empty() {
            all.push(Demand {
                objects: names(),
                matches,
                filters: [a.filters.as_slice(), &b.filters].concat(),
            });
        }
        if all.len() > MOST_RULES {
            let names = named(&names(), " and ");
            return Err(format!(
                "{names} make more than {MOST_RULES} rules together: make them one object"
            ));
        }
    }
    Ok(all)
}

/// Names objects in a text, each once, and counts those that are too many for it.
pub(super) fn named<'a>(objects: impl IntoIterator<Item = &'a String>, between: &str) -> String {
    let all: BTreeSet<&str> = objects.into_iter().map(String::as_str).collect();
    let more = all.len().saturating_sub(MOST_NAMED);
    let named: Vec<&str> = all.into_iter().take(MOST_NAMED).collect();
    let named = named.join(between);
    match more {
        0 => named,
        _ => format!("{named} and {more} more"),
    }
}

/// Counts rules, conditions, and texts in them.
fn texts(list: &[Demand]) -> usize {
    let texts = |m: &PolicyMatch| m.methods.len() + m.hosts.len() + m.header_matches.len();
    let conditions = list.iter().flat_map(|demand| &demand.matches);
    list.len() + conditions.map(|m| 1 + texts(m)).sum::<usize>()
}

/// Conjoins two lists of alternatives; an empty result means that no request meets both. `None`: no list
/// of conditions can say it.
fn conditions(one: &[PolicyMatch], other: &[PolicyMatch]) -> Option<Vec<PolicyMatch>> {
    if one.is_empty() || other.is_empty() {
        return Some([one, other].concat());
    }
    let pairs = one.iter().flat_map(|a| other.iter().map(move |b| (a, b)));
    let met: Option<Vec<_>> = pairs.map(|(a, b)| condition(a, b)).collect();
    Some(met?.into_iter().flatten().collect())
}

/// Conjoins two conditions; `Some(None)`: no request meets both.
fn condition(a: &PolicyMatch, b: &PolicyMatch) -> Option<Option<PolicyMatch>> {
    let Some(methods) = methods(&a.methods, &b.methods) else {
        return Some(None);
    };
    let Some(hosts) = hosts(&a.hosts, &b.hosts) else {
        return Some(None);
    };
    // A header that is named twice must meet both.
    let mut header_matches = a.header_matches.clone();
    for wanted in &b.header_matches {
        if !header_matches.contains(wanted) {
            header_matches.push(wanted.clone());
        }
    }
    // Where one of them overlooks letter case, so does the rule for both: rather one more request is
    // limited than one fewer.
    let any_case = a.ignore_case || b.ignore_case;
    let mut regexes: Vec<&str> = Vec::new();
    let mut plain: Option<PathMatch> = None;
    for part in [a, b] {
        let inner = match &part.path {
            Some(PathMatch::Regex(regex)) => regex,
            Some(path) => {
                plain = match plain {
                    None => Some(path.clone()),
                    Some(known) => match narrower(&known, path, any_case) {
                        Some(both) => Some(both),
                        None => return Some(None),
                    },
                };
                ""
            }
            None => "",
        };
        for regex in [part.path_regex.as_str(), inner] {
            if !regex.is_empty() && !regexes.contains(&regex) {
                regexes.push(regex);
            }
        }
    }
    let mut regexes = regexes.into_iter().map(str::to_owned);
    let path_regex = regexes.next().unwrap_or_default();
    let path = match (plain, regexes.next()) {
        (plain, None) => plain,
        (None, Some(regex)) => Some(PathMatch::Regex(regex)),
        (Some(_), Some(_)) => return None,
    };
    if regexes.next().is_some() || !(a.headers.is_empty() && b.headers.is_empty()) {
        return None;
    }
    Some(Some(PolicyMatch {
        name: String::new(),
        methods,
        path_regex,
        path,
        header_matches,
        hosts,
        ignore_case: any_case,
        when: [a.when.as_slice(), &b.when].concat(),
        ..Default::default()
    }))
}

/// Intersects lists of methods, of which an empty one has all; `None`: nothing is left.
fn methods(a: &[String], b: &[String]) -> Option<Vec<String>> {
    let is_all = |methods: &[String]| methods.is_empty() || methods.iter().any(|m| m == "*");
    match (is_all(a), is_all(b)) {
        (true, true) => Some(Vec::new()),
        (true, false) => Some(b.to_vec()),
        (false, true) => Some(a.to_vec()),
        (false, false) => {
            let both: Vec<String> = a.iter().filter(|m| b.contains(m)).cloned().collect();
            (!both.is_empty()).then_some(both)
        }
    }
}

/// Intersects lists of hosts, of which an empty one has all; `None`: nothing is left.
fn hosts(a: &[String], b: &[String]) -> Option<Vec<String>> {
    if a.is_empty() || b.is_empty() {
        return Some([a, b].concat());
    }
    let mut both: Vec<String> = Vec::new();
    for host in a.iter().flat_map(|host| common_hosts(host, b)).flatten() {
        if !both.contains(&host) {
            both.push(host);
        }
    }
    (!both.is_empty()).then_some(both)
}

/// The hosts that a listener and a route have in common, most of them as the route names them; `None`:
/// they have none. No hostname means every host.
pub fn common_hosts(listener: &str, route: &[String]) -> Option<Vec<String>> {
    let listener = listener.to_ascii_lowercase();
    if route.is_empty() {
        let own = Some(listener).filter(|l| !l.is_empty());
        return Some(own.into_iter().collect());
    }
    let within = |host: &str, pattern: &str| match pattern.strip_prefix('*') {
        Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
        None => pattern.is_empty() || host == pattern,
    };
    let common = route.iter().filter_map(|host| {
        let host = host.to_ascii_lowercase();
        match (within(&host, &listener), within(&listener, &host)) {
            (true, _) => Some(host),
            (false, true) => Some(listener.clone()),
            (false, false) => None,
        }
    });
    let common: Vec<String> = common.collect();
    (!common.is_empty()).then_some(common)
}

/// Intersects two path conditions that are not regular expressions; `None`: nothing is left.
fn narrower(a: &PathMatch, b: &PathMatch, any_case: bool) -> Option<PathMatch> {
    use PathMatch::{Exact, Prefix};
    let read = |path: &str| match any_case {
        true => folded(path.as_bytes()),
        false => path.as_bytes().to_vec(),
    };
    let within = |path: &str, prefix: &str| {
        let (path, prefix) = (read(path), read(prefix.trim_end_matches('/')));
        let rest = path.strip_prefix(prefix.as_slice());
        rest.is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
    };
    let (narrow, wide) = match (a, b) {
        (Exact(one), Exact(other)) => return (read(one) == read(other)).then(|| a.clone()),
        (Exact(path), Prefix(prefix)) | (Prefix(prefix), Exact(path)) => {
            let exact = || Exact(path.clone());
            return within(path, prefix).then(exact);
        }
        (Prefix(one), Prefix(other)) if one.len() >= other.len() => (one, other),
        (Prefix(one), Prefix(other)) => (other, one),
        _ => return None,
    };
    within(narrow, wide).then(|| Prefix(narrow.clone()))
}

/// Makes one bucket that admits no more than any of these: as slow as the slowest and as small as the
/// smallest. The order of the limits does not matter.
pub(super) fn one_bucket(mut limits: Vec<RateLimit>) -> Option<RateLimit> {
    limits.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    limits.dedup();
    let holds = |l: &RateLimit| u64::from(l.tokens) + u64::from(l.burst);
    let most = limits.iter().map(holds).min()?.max(1);
    let name = named(limits.iter().map(|l| &l.name), " and ");
    let slowest = limits.iter().min_by(|a, b| {
        let left = u64::from(a.tokens) * u64::from(b.per_ms);
        left.cmp(&(u64::from(b.tokens) * u64::from(a.per_ms)))
    })?;
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let (mut tokens, mut per_ms) = (slowest.tokens, slowest.per_ms);
    if tokens > most {
        // This is the same rate in smaller steps.
        let scaled = u64::from(per_ms) * u64::from(most);
        per_ms = u32::try_from(scaled.div_ceil(u64::from(tokens))).unwrap_or(u32::MAX);
        tokens = most;
    }
    Some(RateLimit {
        name,
        tokens,
        per_ms,
        burst: most - tokens,
        ..slowest.clone()
    })
}

/// Adjusts filters that check tokens so that each of them sees its token: only the last one for a header
/// may remove it.
///
/// # Errors
/// No request can have a token that all of them take.
pub(super) fn tokens(filters: &mut [Filter]) -> Result<(), String> {
    let mut all: Vec<&mut Jwt> = Vec::new();
    for filter in filters {
        if let Filter::Jwt(jwt) = filter {
            all.push(jwt);
        }
    }
    for (i, one) in all.iter().enumerate() {
        for other in all.iter().skip(i + 1) {
            let together = |a: &JwtProvider, b: &JwtProvider| {
                header_of(a) != header_of(b) || a.issuer == b.issuer
            };
            let mut pairs = one.providers.iter();
            let mut possible = pairs.any(|a| other.providers.iter().any(|b| together(a, b)));
            // Requests without a token pass both.
            possible |= one.optional && other.optional;
            if !possible {
                return Err(format!(
                    "{} and {} want tokens of different issuers in one header, and a request has \
                     one: make them one object, or take one from another header",
                    one.name, other.name
                ));
            }
        }
    }
    let providers = |jwt: &Jwt| -> Vec<(String, bool)> {
        let each = jwt.providers.iter();
        each.map(|p| (header_of(p).to_owned(), p.forward)).collect()
    };
    let said: Vec<Vec<(String, bool)>> = all.iter().map(|jwt| providers(jwt)).collect();
    for (i, jwt) in all.iter_mut().enumerate() {
        for provider in &mut jwt.providers {
            let of_header = |(header, _): &&(String, bool)| header == header_of(provider);
            let later = said.iter().skip(i + 1).flatten().any(|p| of_header(&p));
            let mut others = said.iter().flatten().filter(of_header);
            // The application gets the token only if every object forwards it.
            let forward = provider.forward && others.all(|(_, forward)| *forward);
            provider.forward = later || forward;
        }
    }
    Ok(())
}

fn header_of(provider: &JwtProvider) -> &str {
    match provider.header.as_str() {
        "" => "authorization",
        header => header,
    }
}
