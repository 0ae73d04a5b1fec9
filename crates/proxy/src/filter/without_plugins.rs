//! In place of `plugin.rs` where the program is built without the engine of plugins.

use std::iter::Empty;
use std::sync::Arc;
use tulle_model::resource;

/// There is none.
pub enum Plugin {}

impl Plugin {
    /// Refuses a plugin.
    ///
    /// # Errors
    /// Always.
    pub fn compile(told: &resource::Plugin) -> Result<Arc<Self>, String> {
        let name = &told.name;
        Err(format!(
            "plugin {name}: this program is built without plugins"
        ))
    }

    /// Services that it may ask.
    pub fn services(&self) -> Empty<&str> {
        match *self {}
    }
}
