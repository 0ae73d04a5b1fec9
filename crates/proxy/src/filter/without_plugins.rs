//! In place of `plugin.rs` where the program is built without the engine of plugins.

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

    /// Why it does not run, and whether requests pass nevertheless.
    pub fn runs(&self) -> Result<&Infallible, (&str, bool)> {
        Err((&self.fault, self.fail_open))
    }

    /// Services that it may ask.
    pub fn services(&self) -> Empty<&str> {
        std::iter::empty()
    }
}
