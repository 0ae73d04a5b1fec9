//! Callers who ask for changes, and reasons to refuse them.

use crate::store::StoreError;
use crate::tokens::TokenError;
use std::fmt;

/// The caller who asks for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Actor {
    /// The owner of the controller, over its Unix socket.
    Operator,
    /// A joined host of this name.
    Node(String),
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator => f.write_str("operator"),
            Self::Node(name) => write!(f, "node/{name}"),
        }
    }
}

/// Why a request for a change is refused. The kinds tell what a caller can do about it.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Wrong in itself.
    Invalid(String),
    /// About something that does not exist.
    NotFound(String),
    /// The caller may not do it.
    NotAllowed(String),
    /// Contradicts what is there.
    Conflict(String),
    /// A limit is reached.
    TooMany(String),
    /// The controller is at fault.
    Failed(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Invalid(text)
        | Self::NotFound(text)
        | Self::NotAllowed(text)
        | Self::Conflict(text)
        | Self::TooMany(text)
        | Self::Failed(text)) = self;
        f.write_str(text)
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "store failed");
        Self::Failed(error.to_string())
    }
}

impl From<TokenError> for Refused {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Store(e) => e.into(),
            TokenError::Refused | TokenError::Expired => Self::NotAllowed(error.to_string()),
            TokenError::TooMany(_) => Self::TooMany(error.to_string()),
            TokenError::Random => Self::Failed(error.to_string()),
        }
    }
}
