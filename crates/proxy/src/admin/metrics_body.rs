//! An answer of metrics, sent piece by piece: whole it may take many megabytes.

use crate::telemetry::metrics::TrafficText;
use hyper::body::{Body, Bytes, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Traffic first, then everything else.
pub struct MetricsBody {
    pub(super) text: TrafficText,
    pub(super) rest: Option<String>,
}

impl Body for MetricsBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.text.next().or_else(|| self.rest.take());
        // An empty frame would end a chunked answer for some readers.
        let piece = piece.filter(|piece| !piece.is_empty());
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece.into()))))
    }
}
