//! In place of `first_judged.rs` where the program is built without the engine of plugins.

use crate::decision::inbound::InboundContext;
use crate::filter::plugin::Configured;
use crate::tcp::forward::Opaque;
use crate::telemetry::reason::Failure;
use crate::upstream::link::Link;
use crate::worker::Worker;
use std::future::{Ready, ready};
use std::rc::Rc;
use std::sync::Arc;

/// Refuses a connection that a plugin would have to judge, unless it may pass without.
pub fn judge(
    _: &Rc<Worker>,
    _: &mut Link,
    _: &mut Opaque,
    _: &InboundContext,
    plugins: &[Arc<Configured>],
) -> Ready<Result<bool, Failure>> {
    let closed = plugins.iter().find_map(|plugin| plugin.runs().err());
    ready(closed.map_or(Ok(true), Err))
}
