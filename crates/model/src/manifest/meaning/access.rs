//! Targets of policies, and conditions for requests in the form that a proxy compares.

use super::super::{
    AuthorizationRule, HttpConditions, HttpHeaderMatch, HttpPathMatch, HttpRouteGroupMatch,
    RateLimitRule, TargetRef,
};
use crate::resource::{HeaderMatch, PathMatch, PolicyMatch};

impl TargetRef {
    /// Kind of the object that the reference means.
    pub fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("Service")
    }

    /// Whether the reference means this object or a part of it.
    pub fn is(&self, kind: &str, name: &str) -> bool {
        self.kind() == kind && self.name == name
    }

    /// Whether the reference means the whole object.
    pub fn is_whole(&self) -> bool {
        self.port.is_none() && self.section_name.is_none()
    }

    /// Whether the reference means this part of its object.
    pub fn covers(&self, section: Option<&str>, port: u16) -> bool {
        let section_name = self.section_name.as_deref();
        self.port.is_none_or(|p| p == port) && section_name.is_none_or(|s| Some(s) == section)
    }
}

impl AuthorizationRule {
    /// A path of the rule that has letters, where nothing says whether their case matters.
    pub fn path_in_one_case(&self) -> Option<&str> {
        let to = self.to.as_ref().filter(|_| self.ignore_case.is_none());
        to?.path_with_letters()
    }
}

impl RateLimitRule {
    /// A path of the rule that has letters, where nothing says whether their case matters.
    pub fn path_in_one_case(&self) -> Option<&str> {
        let to = Some(&self.to).filter(|_| self.ignore_case.is_none());
        to?.path_with_letters()
    }
}

impl HttpPathMatch {
    /// The path, if it has letters and is compared with their case.
    pub(super) fn with_letters(&self) -> Option<&str> {
        let value = self.value.as_deref()?;
        let regex = self.kind.as_deref() == Some("RegularExpression");
        let any_case = regex && value.starts_with("(?i)");
        let letters = value.chars().any(char::is_alphabetic);
        (letters && !any_case).then_some(value)
    }
}

/// Most bytes that paths make of the other conditions of a rule.
const MOST_COPIED: usize = 1024 * 1024;
/// Memory of a text beside its bytes.
const PER_TEXT: usize = 64;

impl HttpConditions {
    /// A path that has letters and is compared with their case.
    fn path_with_letters(&self) -> Option<&str> {
        self.paths.iter().find_map(HttpPathMatch::with_letters)
    }

    /// The kinds of request, whose paths are compared in any letter case. `None` as [`Self::matches`].
    pub fn matches_in_any_case(&self) -> Option<Vec<PolicyMatch>> {
        let mut matches = self.matches()?;
        let by_path = matches.iter_mut().filter(|m| m.path.is_some());
        by_path.for_each(|m| m.ignore_case = true);
        Some(matches)
    }

    /// Whether the paths make no more of the other conditions than sidecars are told: each path comes with a copy of them.
    pub fn is_short(&self) -> bool {
        let headers = self.headers.iter().map(|h| h.name.len() + h.value.len());
        let texts = self.methods.iter().chain(&self.hosts).chain(&self.when);
        let copied = texts.map(String::len).chain(headers);
        let copied: usize = copied.map(|bytes| bytes + PER_TEXT).sum();
        self.paths.len().saturating_mul(copied) <= MOST_COPIED
    }

    /// The kinds of request; empty: everything, also TCP. Ports are not part of it.
    ///
    /// `None`: a condition is not understood, or all of them are not [short](Self::is_short); ignoring it would widen the rule.
    pub fn matches(&self) -> Option<Vec<PolicyMatch>> {
        if !self.is_short() {
            return None;
        }
        let headers: Option<Vec<HeaderMatch>> =
            self.headers.iter().map(HttpHeaderMatch::header).collect();
        let rest = PolicyMatch {
            methods: self.methods.clone(),
            header_matches: headers?,
            hosts: self.hosts.iter().map(|h| h.to_ascii_lowercase()).collect(),
            when: self.when.iter().cloned().collect(),
            ..Default::default()
        };
        if self.paths.is_empty() {
            let nothing = rest == PolicyMatch::default();
            return Some(if nothing { Vec::new() } else { vec![rest] });
        }
        let with_path = |path: &HttpPathMatch| {
            Some(PolicyMatch {
                path: Some(path.path()?),
                ..rest.clone()
            })
        };
        self.paths.iter().map(with_path).collect()
    }
}

impl HttpRouteGroupMatch {
    /// The kind of request.
    pub fn policy_match(&self) -> PolicyMatch {
        let headers = self.headers.iter();
        PolicyMatch {
            name: self.name.clone(),
            methods: self.methods.clone(),
            path_regex: self.path_regex.clone().unwrap_or_default(),
            headers: headers
                .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
                .collect(),
            ..Default::default()
        }
    }
}

impl HttpPathMatch {
    /// How a path is compared; `None`: in a way that is not known.
    pub fn path(&self) -> Option<PathMatch> {
        let value = self.value.clone().unwrap_or_else(|| "/".into());
        match self.kind.as_deref() {
            None | Some("PathPrefix") => Some(PathMatch::Prefix(value)),
            Some("Exact") => Some(PathMatch::Exact(value)),
            Some("RegularExpression") => Some(PathMatch::Regex(value)),
            Some(_) => None,
        }
    }
}

impl HttpHeaderMatch {
    /// The condition for a header; `None`: of a kind that is not known.
    pub fn header(&self) -> Option<HeaderMatch> {
        Some(HeaderMatch {
            name: self.name.to_ascii_lowercase(),
            ..self.parameter()?
        })
    }

    /// The condition for a parameter of the query, whose name is compared exactly.
    pub fn parameter(&self) -> Option<HeaderMatch> {
        let regex = match self.kind.as_deref() {
            None | Some("Exact") => false,
            Some("RegularExpression") => true,
            Some(_) => return None,
        };
        Some(HeaderMatch {
            name: self.name.clone(),
            value: self.value.clone(),
            regex,
        })
    }
}
