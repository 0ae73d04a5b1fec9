//! Demands on requests to a port of the application, or to a listener of a gateway, that the policy
//! allows: rate limits, tokens, external authorization. The first rule that matches decides.

use crate::config::conditions::{Conditions, Request};
use crate::filter::Filters;
use crate::filter::plugin::Configured;
use std::sync::Arc;
use tulle_model::{condition, resource};

/// Rules of a port.
pub struct InboundRules {
    rules: Vec<Rule>,
    /// The first rule that looks at paths.
    by_path: Option<usize>,
    claim_headers: Vec<String>,
}

struct Rule {
    name: String,
    conditions: Conditions,
    filters: Option<Arc<Filters>>,
}

impl InboundRules {
    /// Compiles the rules of a port; `None` if there are none.
    ///
    /// # Errors
    /// A condition or filter makes no sense.
    pub fn compile(
        port: &str,
        rules: &[resource::InboundRule],
    ) -> Result<Option<Arc<Self>>, String> {
        if rules.is_empty() {
            return Ok(None);
        }
        let rules = rules.iter().map(|rule| {
            let filters = rule.filters.iter().map(|f| (f, port));
            let compiled = || {
                Ok(Rule {
                    name: rule.name.clone(),
                    conditions: Conditions::compile(&rule.matches, condition::condition)?,
                    filters: Filters::compile(filters, false)?,
                })
            };
            compiled().map_err(|e: String| format!("{}: {e}", rule.name))
        });
        let rules = rules.collect::<Result<Vec<_>, String>>()?;
        let by_path = rules.iter().position(|r| r.conditions.look_at_paths());
        let filters = rules.iter().filter_map(|r| r.filters.as_ref());
        let mut claim_headers: Vec<_> = filters.flat_map(|f| f.claim_headers()).cloned().collect();
        claim_headers.sort_unstable();
        claim_headers.dedup();
        Ok(Some(Arc::new(Self {
            rules,
            by_path,
            claim_headers,
        })))
    }

    /// Plugins of any rule, each once.
    pub fn plugins(&self) -> Arc<[Arc<Configured>]> {
        let mut all: Vec<Arc<Configured>> = Vec::new();
        for plugin in self.filters().flat_map(|filters| filters.plugins()) {
            if !all.iter().any(|known| Arc::ptr_eq(known, plugin)) {
                all.push(plugin.clone());
            }
        }
        all.into()
    }

    /// All filters.
    pub fn filters(&self) -> impl Iterator<Item = &Arc<Filters>> {
        self.rules.iter().filter_map(|rule| rule.filters.as_ref())
    }

    /// Fields that some rule sets from a token's claims. No client may send them, also where none
    /// of these rules applies: the application cannot know which of them did.
    pub fn claim_headers(&self) -> &[String] {
        &self.claim_headers
    }

    /// The filters for a request.
    ///
    /// # Errors
    /// Whether a rule applies depends on how the application reads the request; names the rule.
    pub fn find(&self, request: &Request<'_>) -> Result<Option<Arc<Filters>>, String> {
        if let Some(rule) = self.by_path.and_then(|at| self.rules.get(at))
            && !request.is_plain()
        {
            return Err(format!(
                "{} looks at paths, and servers read this one in different ways",
                rule.name
            ));
        }
        for rule in &self.rules {
            if !rule.conditions.may_match(request) {
                continue;
            }
            if !rule.conditions.surely_demand(request) {
                return Err(format!(
                    "whether {} holds for it depends on how headers or path are read",
                    rule.name
                ));
            }
            return Ok(rule.filters.clone());
        }
        Ok(None)
    }

    /// Returns the first rule that some requests in a tunnel would have to meet.
    pub fn hidden_by_tunnel(&self) -> Option<&str> {
        let mut rules = self.rules.iter();
        let found = rules.find(|r| !r.conditions.are_about_connect());
        found.map(|r| r.name.as_str())
    }

    /// Whether one of them authenticates the client.
    pub fn authenticate(&self) -> bool {
        let mut filters = self.rules.iter().filter_map(|r| r.filters.as_ref());
        filters.any(|f| f.authenticate())
    }

    /// Their names, for an operator.
    pub fn names(&self) -> String {
        let names: Vec<_> = self.rules.iter().map(|r| r.name.as_str()).collect();
        names.join(", ")
    }

    /// Services that rules ask about requests.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        let filters = self.rules.iter().filter_map(|r| r.filters.as_ref());
        filters.flat_map(|f| f.services())
    }
}
