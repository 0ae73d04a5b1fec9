//! What is demanded of the requests to a port of the application, or to a listener of a gateway,
//! that the policy allows: rate limits, tokens, another service's word. The first rule that matches says.

use crate::conditions::{Conditions, Request};
use crate::filter::Filters;
use crate::plain_path;
use std::sync::Arc;
use tulle_model::resource;

/// Rules of a port.
pub struct InboundRules(Vec<Rule>);

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
        let rules = rules.iter().enumerate().map(|(index, rule)| {
            let place = format!("{port} {} {index}", rule.name);
            let filters = rule.filters.iter().map(|f| (f, place.as_str()));
            let compiled = || {
                Ok(Rule {
                    name: rule.name.clone(),
                    conditions: Conditions::compile(&rule.matches)?,
                    filters: Filters::compile(filters, false)?,
                })
            };
            compiled().map_err(|e: String| format!("{}: {e}", rule.name))
        });
        let rules: Result<_, String> = rules.collect();
        Ok(Some(Arc::new(Self(rules?))))
    }

    /// The filters for a request.
    ///
    /// # Errors
    /// Whether a rule means the request depends on how the application reads it; says which.
    pub fn find(&self, request: &Request<'_>) -> Result<Option<Arc<Filters>>, String> {
        let mut by_path = self.0.iter().filter(|r| r.conditions.look_at_paths());
        if let Some(rule) = by_path.next()
            && !plain_path::is_plain(request.path)
        {
            return Err(format!(
                "{} looks at paths, and servers read this one in different ways",
                rule.name
            ));
        }
        for rule in &self.0 {
            let may = rule.conditions.may_match(request);
            if may != rule.conditions.surely_match(request) {
                return Err(format!(
                    "whether {} holds for it depends on how headers or path are read",
                    rule.name
                ));
            }
            if may {
                return Ok(rule.filters.clone());
            }
        }
        Ok(None)
    }

    /// The first one that some requests in a tunnel would have to meet, and others not.
    pub fn hidden_by_tunnel(&self) -> Option<&str> {
        let mut rules = self.0.iter();
        let found = rules.find(|r| !r.conditions.are_about_connect());
        found.map(|r| r.name.as_str())
    }

    /// Whether one of them asks who makes a request.
    pub fn authenticate(&self) -> bool {
        let mut filters = self.0.iter().filter_map(|r| r.filters.as_ref());
        filters.any(|f| f.authenticate())
    }

    /// Their names, for an operator.
    pub fn names(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|r| r.name.as_str()).collect();
        names.join(", ")
    }

    /// Services that are asked.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        let filters = self.0.iter().filter_map(|r| r.filters.as_ref());
        filters.flat_map(|f| f.services())
    }
}
