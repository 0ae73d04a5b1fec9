//! Sending a request again.

use std::sync::Arc;
use tulle_model::resource;

/// When and how often, compiled.
pub struct Policy {
    /// As configured.
    pub retry: resource::Retry,
}

impl Policy {
    /// Checks and compiles.
    ///
    /// # Errors
    /// Not yet.
    pub fn compile(_retry: &resource::Retry) -> Result<Arc<Self>, String> {
        Err("this proxy does not carry out: retries of a rule".into())
    }
}
