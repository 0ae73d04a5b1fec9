//! Sets of keys that objects name by address: which are fetched, where, and with what result.

use super::inputs::Inputs;
use super::{Unit, dependents};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use tulle_model::https_uri::HttpsUri;
use tulle_model::namespaced::ObjectName;
use tulle_model::network::Network;

/// Most sets that the objects of one namespace may name: each is a task that asks for as long as it is
/// named, and up to 64 KiB.
pub(super) const MAX_SETS: usize = 8;

/// A set that is fetched, and where the Mesh allows that.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeySource {
    /// The address as objects write it.
    pub address: String,
    /// The parsed address.
    pub uri: HttpsUri,
    /// Roots (PEM) of its server's certificate; empty: the system's.
    pub roots: String,
    /// Networks its addresses must be in; empty: any of the internet.
    pub networks: Vec<Network>,
}

/// A set of keys, as the controller knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FetchedKeys {
    /// The last good one.
    pub jwks: Option<String>,
    /// Why the last fetch failed.
    pub trouble: Option<String>,
}

impl FetchedKeys {
    /// Whether a fetch returned the set that is known already.
    pub(crate) fn is(&self, fetched: &Result<String, String>) -> bool {
        match fetched {
            Ok(jwks) => self.jwks.as_ref() == Some(jwks) && self.trouble.is_none(),
            Err(why) => self.trouble.as_ref() == Some(why),
        }
    }
}

/// Whether resources wait for keys that were not asked for yet.
#[derive(Debug, Clone, Default)]
pub(super) struct KeysWait {
    is_on: bool,
    /// A resource that is being built needs such keys.
    is_met: Cell<bool>,
}

impl Inputs {
    /// Returns the last good set, if the Mesh still allows its address.
    pub(super) fn fetched(&self, address: &str) -> Option<String> {
        self.key_source(address).ok()?;
        let known = self.keys.get(address);
        if known.is_none() && self.keys_wait.is_on {
            self.keys_wait.is_met.set(true);
        }
        known?.jwks.clone()
    }

    /// Whether what was built since the last call needs keys that were not asked for yet.
    pub(super) fn awaited_keys(&self) -> bool {
        self.keys_wait.is_met.take()
    }

    /// Begins to wait for keys, or ends it, whether they were asked for or not.
    pub(super) fn wait_for_keys(&mut self, begin: bool, dirty: &mut BTreeSet<Unit>) {
        self.keys_wait.is_on = begin;
        for (_, _, address) in self.key_users() {
            if !self.keys.contains_key(address) {
                dependents::keys(self, address, dirty);
            }
        }
    }

    /// Where an address leads.
    fn key_source(&self, address: &str) -> Result<KeySource, String> {
        let uri = HttpsUri::parse(address)?;
        let hosts = self.mesh.iter().flat_map(|mesh| &mesh.jwks.hosts);
        let mut hosts = hosts.filter(|h| h.host == uri.host && h.port() == uri.port);
        let host = hosts.next().ok_or_else(|| {
            format!(
                "the Mesh does not list {}:{} among `jwks.hosts`",
                uri.host, uri.port
            )
        })?;
        Ok(KeySource {
            address: address.to_owned(),
            roots: host.roots.clone(),
            networks: host.networks.clone(),
            uri,
        })
    }

    /// Lists objects with the addresses of keys they name, in a fixed order.
    fn key_users(&self) -> Vec<(String, &ObjectName, &str)> {
        let authentication = self.authentication.iter();
        let authentication = authentication.map(|(n, s)| ("Authentication", n, s.jwt.as_ref()));
        let filters = self.filters.iter();
        let filters = filters.map(|(n, s)| ("HTTPFilter", n, s.jwt.as_ref()));
        let mut users = Vec::new();
        for (kind, name, jwt) in authentication.chain(filters) {
            let providers = jwt.into_iter().flat_map(|jwt| &jwt.providers);
            for address in providers.filter_map(|p| p.jwks_uri.as_deref()) {
                users.push((format!("{kind}/{name}"), name, address));
            }
        }
        users
    }

    /// Finds what each object that names keys gets, in the same order.
    fn key_places(&self) -> Vec<(String, &str, Result<KeySource, String>)> {
        let mut taken: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut places = Vec::new();
        for (object, name, address) in self.key_users() {
            let taken = taken.entry(name.namespace()).or_default();
            let place = match taken.contains(address) || taken.len() < MAX_SETS {
                false => Err(format!("its namespace names more than {MAX_SETS} sets")),
                true => self.key_source(address),
            };
            if place.is_ok() {
                taken.insert(address);
            }
            places.push((object, address, place));
        }
        places
    }

    /// All sets that are fetched.
    pub fn key_sources(&self) -> BTreeSet<KeySource> {
        let places = self.key_places().into_iter();
        places.filter_map(|(_, _, place)| place.ok()).collect()
    }

    /// Reports what keeps sets from being there or up to date.
    pub(super) fn key_problems(&self, report: &mut dyn FnMut(String, String)) {
        for (object, address, place) in self.key_places() {
            let known = self.keys.get(address);
            let trouble = match place {
                Err(why) => Some(why),
                Ok(_) => known.and_then(|k| k.trouble.clone()),
            };
            let Some(why) = trouble else {
                continue;
            };
            let then = match self.fetched(address) {
                Some(_) => "the last good set stays in use",
                None => "requests that need a token signed by them are refused",
            };
            report(
                object,
                format!("the keys of {address} are not fetched: {why}; {then}"),
            );
        }
    }

    /// Stores the result of a fetch; a failure leaves the set as it was.
    pub(super) fn put_keys(
        &mut self,
        address: &str,
        fetched: Result<String, String>,
        dirty: &mut BTreeSet<Unit>,
    ) {
        let was_awaited = self.keys_wait.is_on && !self.keys.contains_key(address);
        let known = self.keys.entry(address.to_owned()).or_default();
        let are_new = match fetched {
            Err(why) => {
                known.trouble = Some(why);
                false
            }
            Ok(jwks) => {
                known.trouble = None;
                let are_new = known.jwks.as_ref() != Some(&jwks);
                known.jwks = Some(jwks);
                are_new
            }
        };
        if are_new || was_awaited {
            dependents::keys(self, address, dirty);
        }
    }
}
