//! In place of `plugin.rs` where the program is built without the engine of plugins.

use crate::telemetry::reason::{Failure, Reason};
use std::convert::Infallible;
use std::iter::Empty;
use std::sync::Arc;
use tulle_model::resource;

/// A plugin that cannot run.
pub struct Configured {
    fault: String,
    fail_open: bool,
}

impl Configured {
    /// A plugin as it was told.
    pub fn new(told: &resource::Plugin) -> Arc<Self> {
        let name = &told.name;
        Arc::new(Self {
            fault: format!("plugin {name}: this program is built without plugins"),
            fail_open: told.fail_open,
        })
    }

    /// Why it does not run.
    pub fn fault(&self) -> Option<&str> {
        Some(&self.fault)
    }

    /// Returns nothing, which is what runs.
    ///
    /// # Errors
    /// Requests may not pass without it.
    pub fn runs(&self) -> Result<Option<&Infallible>, Failure> {
        match self.fail_open {
            true => Ok(None),
            false => Err(Failure::new(Reason::PluginFailed, &*self.fault)),
        }
    }

    /// Services that it may ask.
    pub fn services(&self) -> Empty<&str> {
        std::iter::empty()
    }
}
