//! Names that an expression may use.

use crate::types::Type;

/// The place of a variable in its scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Variable(pub u16);

/// The variables an expression may use, each with its whole name, such as `request.path`.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'s> {
    variables: &'s [(&'s str, Type)],
}

impl<'s> Scope<'s> {
    /// A scope of these variables. [`Variable`] is the place in this list.
    #[must_use]
    pub fn new(variables: &'s [(&'s str, Type)]) -> Self {
        Self { variables }
    }

    /// Finds the variable with the longest name that `path` begins with; also how many parts that is.
    pub(crate) fn find(&self, path: &[&str]) -> Option<(Variable, &'s Type, usize)> {
        (1..=path.len()).rev().find_map(|parts| {
            let name = path.get(..parts)?.join(".");
            let at = self.variables.iter().position(|(n, _)| *n == name)?;
            let (_, kind) = self.variables.get(at)?;
            Some((Variable(u16::try_from(at).ok()?), kind, parts))
        })
    }

    /// The names that begin with this one, for messages.
    pub(crate) fn below(&self, name: &str) -> Vec<&'s str> {
        let names = self.variables.iter().map(|(n, _)| *n);
        names
            .filter(|n| {
                n.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with('.'))
            })
            .collect()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'s str> {
        self.variables.iter().map(|(name, _)| *name)
    }
}
