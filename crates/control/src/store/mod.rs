//! Where the mesh's objects are kept.
//!
//! One trait with two implementations: [`memory`] for tests and throw-away meshes, [`embedded`] for a
//! single host that must survive `kill -9`. A store keeps bytes and knows nothing of their meaning:
//! objects are manifests as JSON under (kind, name); small values live in named spaces. Checking and
//! interpreting them is the caller's part.

pub mod embedded;
pub mod memory;

pub use embedded::Embedded;
pub use memory::Memory;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::broadcast;

/// Commits a watcher may be behind before it has to read everything again.
const WATCH_BACKLOG: usize = 1024;

/// An object as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Kind, such as `Workload`.
    pub kind: String,
    /// Name, unique within its kind.
    pub name: String,
    /// The manifest.
    pub json: String,
    /// The commit that last changed it; grows without gaps per store.
    pub revision: u64,
}

/// The subjects of small values. Each space has its own keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// The certificate authority's root and key.
    Authority,
    /// Join tokens not yet spent, by their public part.
    Tokens,
    /// Where workloads run, by workload name.
    Placements,
    /// The joined host a workload belongs to, by workload name.
    Owners,
    /// Hosts that joined and were not removed, by name.
    Nodes,
    /// Hosts that were removed, by the number of their membership: until when their certificates are refused.
    Removed,
    /// Identities and certificates that an operator has revoked.
    Revoked,
    /// Authorities that hosts were given, by the host's name.
    HostAuthorities,
    /// Facts about the whole mesh, such as the trust domain.
    Settings,
    /// The last good set of keys of tokens, by where it was fetched.
    Keys,
    /// Counts of hosts from while they were away, by host and time.
    Away,
}

impl Space {
    fn as_str(self) -> &'static str {
        match self {
            Self::Authority => "authority",
            Self::Tokens => "tokens",
            Self::Placements => "placements",
            Self::Owners => "owners",
            Self::Nodes => "nodes",
            Self::Removed => "removed",
            Self::Revoked => "revoked",
            Self::HostAuthorities => "host-authorities",
            Self::Settings => "settings",
            Self::Keys => "keys",
            Self::Away => "away",
        }
    }
}

/// One write of a batch.
#[derive(Clone, PartialEq, Eq)]
pub enum Write {
    /// Create or replace an object.
    Put {
        /// Kind.
        kind: String,
        /// Name.
        name: String,
        /// Manifest.
        json: String,
    },
    /// Remove an object.
    Delete {
        /// Kind.
        kind: String,
        /// Name.
        name: String,
    },
    /// Create or replace a value.
    PutValue {
        /// Space.
        space: Space,
        /// Key.
        key: String,
        /// Value.
        value: Vec<u8>,
    },
    /// Remove a value.
    DeleteValue {
        /// Space.
        space: Space,
        /// Key.
        key: String,
    },
}

/// The effect of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It was not there before.
    Created,
    /// It was there and differed.
    Configured,
    /// It was there and is the same: nothing was written.
    Unchanged,
    /// It was there and is gone.
    Deleted,
    /// It was not there.
    Absent,
}

/// One object's change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Created or replaced.
    Applied(StoredObject),
    /// Removed.
    Deleted {
        /// Kind.
        kind: String,
        /// Name.
        name: String,
    },
}

/// The changes of one batch, which became visible together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Its number.
    pub revision: u64,
    /// The changes, in order.
    pub changes: Vec<Change>,
}

/// All objects at one moment, and every commit after it, without a gap.
#[derive(Debug)]
pub struct StoreWatch {
    /// The objects at the start.
    pub objects: Vec<StoredObject>,
    /// Commits since. A receiver that lags behind must watch anew.
    pub commits: broadcast::Receiver<Arc<Commit>>,
}

/// Keeps objects and small values. Calls may block on the disk.
pub trait Store: Send + Sync {
    /// All objects, ordered by kind and name.
    ///
    /// # Errors
    /// The store cannot be read.
    fn objects(&self) -> Result<Vec<StoredObject>, StoreError>;

    /// The length of an object's manifest in bytes, readable to this version or not; `None`: there is no such object.
    ///
    /// # Errors
    /// The store cannot be read.
    fn object_bytes(&self, kind: &str, name: &str) -> Result<Option<usize>, StoreError>;

    /// Makes all writes or none, durably; answers with one outcome for each.
    ///
    /// # Errors
    /// The store cannot be written: then nothing changed.
    fn commit(&self, writes: &[Write]) -> Result<Vec<WriteOutcome>, StoreError>;

    /// A value.
    ///
    /// # Errors
    /// The store cannot be read.
    fn value(&self, space: Space, key: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// All values of a space, ordered by key.
    ///
    /// # Errors
    /// The store cannot be read.
    fn values(&self, space: Space) -> Result<Vec<(String, Vec<u8>)>, StoreError>;

    /// Removes a value and returns it. Of several callers exactly one gets it.
    ///
    /// # Errors
    /// The store cannot be written: then the value is still there.
    fn take(&self, space: Space, key: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// The objects and every later commit.
    ///
    /// # Errors
    /// The store cannot be read.
    fn watch(&self) -> Result<StoreWatch, StoreError>;
}

/// Why a store does not work.
#[derive(Debug)]
pub enum StoreError {
    /// The file exists and cannot be used.
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another process has it open.
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file or its directory cannot be created.
    Create {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Reading or writing failed while running.
    Failed {
        /// The operation that failed.
        doing: &'static str,
        /// Why.
        reason: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable { path, reason } => write!(
                f,
                "the store {} cannot be used: {reason}. It is left as it is, because it holds the \
                 certificate authority and all objects: restore it from a copy, or move it away to \
                 start an empty mesh (every proxy then has to join again)",
                path.display()
            ),
            Self::InUse { path } => write!(
                f,
                "the store {} is open in another process: stop the other controller or choose \
                 another state directory",
                path.display()
            ),
            Self::Create { path, source } => {
                write!(
                    f,
                    "the store {} cannot be created: {source}",
                    path.display()
                )
            }
            Self::Failed { doing, reason } => write!(
                f,
                "the store failed while {doing}: {reason}. Nothing was changed: look at the disk's \
                 free space and health"
            ),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Create { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl fmt::Debug for Write {
    /// Without the values: some are keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put { kind, name, .. } => write!(f, "Put({kind}/{name})"),
            Self::Delete { kind, name } => write!(f, "Delete({kind}/{name})"),
            Self::PutValue { space, key, .. } => write!(f, "PutValue({space:?}/{key})"),
            Self::DeleteValue { space, key } => write!(f, "DeleteValue({space:?}/{key})"),
        }
    }
}

#[cfg(test)]
pub(crate) mod double;
#[cfg(test)]
mod power_cut;
#[cfg(test)]
mod tests;
