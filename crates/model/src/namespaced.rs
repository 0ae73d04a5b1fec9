//! The name of something in a namespace of a cluster.
//!
//! Past the API server objects are named `<name>.<namespace>`, and names may have dots. The namespace
//! decides who may change what, so code that needs it does not cut it out of a text: a [`Namespaced`] was
//! split once, here.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A name in a namespace, written `<name>.<namespace>`. Neither is empty, and the namespace has no dot,
/// so that no two of them are written alike. A copy shares the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespaced(Arc<str>);

impl Namespaced {
    /// Puts a name into a namespace; `None`: one of them is empty, or the namespace has a dot.
    pub fn new(name: &str, namespace: &str) -> Option<Self> {
        let valid = !name.is_empty() && !namespace.is_empty() && !namespace.contains('.');
        valid.then(|| Self(format!("{name}.{namespace}").into()))
    }

    /// Reads `<name>.<namespace>`.
    pub fn parse(qualified: &str) -> Option<Self> {
        let (name, namespace) = split(qualified)?;
        Self::new(name, namespace)
    }

    /// Splits `<name>.<namespace>` without keeping it.
    pub fn split(qualified: &str) -> Option<(&str, &str)> {
        let parts = split(qualified)?;
        (!parts.0.is_empty() && !parts.1.is_empty()).then_some(parts)
    }

    /// The name alone.
    pub fn name(&self) -> &str {
        split(&self.0).map_or("", |(name, _)| name)
    }

    /// The namespace alone.
    pub fn namespace(&self) -> &str {
        split(&self.0).map_or("", |(_, namespace)| namespace)
    }

    /// Something else of the same namespace.
    pub fn sibling(&self, name: &str) -> Self {
        Self(format!("{name}.{}", self.namespace()).into())
    }

    /// `<name>.<namespace>`
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether `name` is this one, written with or without its namespace.
pub fn is_short_for(name: &str, qualified: &str) -> bool {
    let rest = qualified.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The name of an object: a [`Namespaced`] one in a cluster, a plain one on a host or if it belongs to the
/// cluster as a whole. Names are ordered, compared and hashed as they are written.
#[derive(Clone)]
pub enum ObjectName {
    /// Without a namespace. It may have dots.
    Plain(Arc<str>),
    /// In a namespace.
    InNamespace(Namespaced),
}

impl ObjectName {
    /// Puts a name into a namespace. It stays plain if there is none, or none that [`Namespaced::new`] takes.
    pub fn in_namespace(name: &str, namespace: &str) -> Self {
        match Namespaced::new(name, namespace) {
            Some(name) => Self::InNamespace(name),
            None => Self::Plain(name.into()),
        }
    }

    /// The name as it is written.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Plain(name) => name,
            Self::InNamespace(name) => name.as_str(),
        }
    }

    /// The name alone.
    pub fn name(&self) -> &str {
        match self {
            Self::Plain(name) => name,
            Self::InNamespace(name) => name.name(),
        }
    }

    /// The whole name, if there is a namespace in it.
    pub fn namespaced(&self) -> Option<&Namespaced> {
        match self {
            Self::Plain(_) => None,
            Self::InNamespace(name) => Some(name),
        }
    }

    /// The namespace; empty if there is none.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Plain(_) => "",
            Self::InNamespace(name) => name.namespace(),
        }
    }
}

impl PartialEq for ObjectName {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for ObjectName {}

impl PartialOrd for ObjectName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for ObjectName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

/// Maps by such names can be asked with the text.
impl Borrow<str> for ObjectName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<Namespaced> for ObjectName {
    fn from(name: Namespaced) -> Self {
        Self::InNamespace(name)
    }
}

/// Splits `<name>.<namespace>` at the last dot; namespaces contain no dots. Nobody else splits one.
fn split(qualified: &str) -> Option<(&str, &str)> {
    qualified.rsplit_once('.')
}

/// Maps with such names as keys can be searched by text: both are ordered and hashed alike.
impl Borrow<str> for Namespaced {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Namespaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Namespaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_is_what_comes_after_the_last_dot() {
        let web = Namespaced::parse("web.v1.shop").unwrap();
        assert_eq!((web.name(), web.namespace()), ("web.v1", "shop"));
        assert_eq!(web.sibling("cart.v2").as_str(), "cart.v2.shop");
        assert_eq!(Namespaced::split("web.v1.shop"), Some(("web.v1", "shop")));
        for bad in ["web", ".shop", "web.", "", "."] {
            assert_eq!(Namespaced::parse(bad), None, "{bad:?}");
            assert_eq!(Namespaced::split(bad), None, "{bad:?}");
        }
        assert_eq!(Namespaced::new("web", "a.b"), None);
    }

    #[test]
    fn names_of_objects_are_found_by_what_is_written() {
        let of_cluster = ObjectName::InNamespace(Namespaced::parse("web.shop").unwrap());
        let of_host = ObjectName::Plain("web.shop".into());
        assert_eq!((of_cluster.namespace(), of_host.namespace()), ("shop", ""));
        // No larger than the text that it replaces as a key.
        assert_eq!(size_of::<ObjectName>(), size_of::<String>());
        let mut names = std::collections::BTreeMap::from([(of_cluster, 1)]);
        assert_eq!(names.get("web.shop"), Some(&1));
        assert_eq!(names.insert(of_host, 2), Some(1));
        let plain = ObjectName::in_namespace("web", "");
        assert_eq!((plain.name(), plain.namespaced()), ("web", None));
        let web = ObjectName::in_namespace("web.v1", "shop");
        assert_eq!((web.name(), web.namespace()), ("web.v1", "shop"));
        assert_eq!(format!("{web:?} {web}"), "\"web.v1.shop\" web.v1.shop");
        let mut sets = std::collections::HashSet::from([ObjectName::Plain("a".into())]);
        assert!(sets.contains("a") && sets.remove("a"));
    }
}
