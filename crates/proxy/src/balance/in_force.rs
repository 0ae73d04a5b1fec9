//! The ports of the configuration in force, for what outlives one.

use super::Port;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// The ports of the configuration in force, for what outlives one.
#[derive(Default)]
pub struct InForce(RefCell<HashMap<Name, Weak<Port>>>);

/// A service and the number of its port.
type Name = (Arc<str>, u16);

impl InForce {
    /// Forgets all: another configuration comes.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// Only ports with checks are looked for.
    pub(super) fn add(&self, port: &Rc<Port>) {
        if port.shared.as_ref().is_some_and(|s| s.checks.is_some()) {
            let key = (port.service.clone(), port.number);
            self.0.borrow_mut().insert(key, Rc::downgrade(port));
        }
    }

    pub(super) fn find(&self, service: &Arc<str>, number: u16) -> Option<Rc<Port>> {
        let known = self.0.borrow();
        known.get(&(service.clone(), number))?.upgrade()
    }
}
