//! The name of something in a namespace of a cluster.
//!
//! Past the API server objects are named `<name>.<namespace>`, and names may have dots. The namespace
//! decides who may change what, so code that needs it does not cut it out of a text: a [`Namespaced`] was
//! split once, here.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// A name in a namespace, written `<name>.<namespace>`. Neither is empty, and the namespace has no dot,
/// so that no two of them are written alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespaced(Box<str>);

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

    /// The name alone.
    pub fn name(&self) -> &str {
        split(&self.0).map_or("", |(name, _)| name)
    }

    /// The namespace alone.
    pub fn namespace(&self) -> &str {
        namespace_of(&self.0)
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

/// The name of an object: a plain one on a host, a [`Namespaced`] one in a cluster. Names are ordered,
/// compared and hashed as they are written.
#[derive(Debug, Clone)]
pub enum ObjectName {
    /// On a host. It may have dots, and has no namespace.
    OfHost(Box<str>),
    /// In a cluster.
    OfCluster(Namespaced),
}

impl ObjectName {
    /// The name as it is written.
    pub fn as_str(&self) -> &str {
        match self {
            Self::OfHost(name) => name,
            Self::OfCluster(name) => name.as_str(),
        }
    }

    /// The namespace; empty on a host.
    pub fn namespace(&self) -> &str {
        match self {
            Self::OfHost(_) => "",
            Self::OfCluster(name) => name.namespace(),
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

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The namespace of `<name>.<namespace>`; empty if the name has no namespace.
pub fn namespace_of(qualified: &str) -> &str {
    split(qualified).map_or("", |(_, namespace)| namespace)
}

/// Splits `<name>.<namespace>` at the last dot; namespaces contain no dots.
pub fn split(qualified: &str) -> Option<(&str, &str)> {
    qualified.rsplit_once('.')
}

/// Maps with such names as keys can be searched by text: both are ordered and hashed alike.
impl Borrow<str> for Namespaced {
    fn borrow(&self) -> &str {
        &self.0
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
        for bad in ["web", ".shop", "web.", "", "."] {
            assert_eq!(Namespaced::parse(bad), None, "{bad:?}");
        }
        assert_eq!(Namespaced::new("web", "a.b"), None);
    }

    #[test]
    fn names_of_objects_are_found_by_what_is_written() {
        let of_cluster = ObjectName::OfCluster(Namespaced::parse("web.shop").unwrap());
        let of_host = ObjectName::OfHost("web.shop".into());
        assert_eq!((of_cluster.namespace(), of_host.namespace()), ("shop", ""));
        // No larger than the text that it replaces as a key.
        assert_eq!(size_of::<ObjectName>(), size_of::<String>());
        let mut names = std::collections::BTreeMap::from([(of_cluster, 1)]);
        assert_eq!(names.get("web.shop"), Some(&1));
        assert_eq!(names.insert(of_host, 2), Some(1));
        let mut sets = std::collections::HashSet::from([ObjectName::OfHost("a".into())]);
        assert!(sets.contains("a") && sets.remove("a"));
    }
}
