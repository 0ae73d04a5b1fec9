//! Holds a response until its body is whole, for plugins that look at it.

use super::{End, Relay, Response, Side};
use crate::telemetry::reason::Reason;
use tulle_net::Buf;

/// A response that is held.
pub(super) struct Held {
    /// Its edited head, to which the body is appended.
    pub(super) message: Buf,
    /// The state of its body, and how it ends.
    pub(super) response: Response,
    /// Status of the edited head.
    pub(super) status: u16,
    /// Bytes of its body that have come. They stay where they came.
    pub(super) taken: usize,
    /// Bytes from which on it is not held.
    pub(super) limit: usize,
}

impl Relay {
    /// Follows the body of a held response as far as it has come; true: the response goes on.
    pub(super) fn collect(&mut self, mut held: Box<Held>) -> Result<bool, End> {
        let new = self.from_up.as_slice().get(held.taken..);
        let advanced = held.response.body.advance(new.unwrap_or_default());
        held.taken += advanced.map_err(|bad| {
            let text = format!("{}: {bad}", bad.reason());
            End::Failed(Side::Up, Reason::BadResponse, text)
        })?;
        let whole = held.response.body.is_done();
        if !whole && held.taken <= held.limit {
            self.unparsed = false;
            self.held = Some(held);
            return Ok(false);
        }
        let head = held.message.len();
        let body = self.from_up.as_slice().get(..held.taken);
        held.message.extend_from_slice(body.unwrap_or_default());
        self.from_up.consume(held.taken);
        if let Some(edits) = &self.edits {
            let shown = edits.show_body(&mut held.message, head, whole);
            // The upstream has done its part.
            shown.map_err(|failure| End::Failed(Side::Down, failure.reason, failure.detail))?;
        }
        self.to_down = held.message;
        self.start(held.response, held.status);
        Ok(true)
    }
}
