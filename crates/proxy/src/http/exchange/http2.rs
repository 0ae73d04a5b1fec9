//! Handles clients that speak HTTP/2, and the particulars of their requests.

use super::Conversation;
use crate::decision::ConnectionContext;
use crate::http::stream_handlers;
use crate::telemetry::reason::Failure;
use crate::upstream::HttpVersion;
use crate::upstream::http2;
use crate::upstream::link::Link;
use std::rc::Rc;
use std::time::Duration;
use tulle_http1::BadRequest;
use tulle_transport::StreamKind;

/// Particulars of a request that came as HTTP/2.
#[derive(Clone, Copy)]
pub(super) struct CameAs {
    /// Protocol for the next hop; the destination's `appProtocol` comes before it.
    pub(super) kind: StreamKind,
    /// Whether a refusal needs a gRPC status.
    pub(super) grpc: bool,
    /// The client's own timeout in milliseconds; 0: none.
    pub(super) timeout_ms: u32,
}

impl CameAs {
    pub(super) const HTTP1: Self = Self {
        kind: StreamKind::Http,
        grpc: false,
        timeout_ms: 0,
    };

    /// Returns the shorter of the client's and the configured timeout, in milliseconds; 0: none.
    pub(super) fn timeout_ms(self, configured: u32) -> u32 {
        shorter(self.timeout_ms, configured)
    }

    /// Whether the client's own timeout has passed after this time, rounded up as the timeout is.
    pub(super) fn is_overdue(self, elapsed: Duration) -> bool {
        let elapsed = elapsed.as_nanos().div_ceil(1_000_000);
        self.timeout_ms > 0 && elapsed >= self.timeout_ms.into()
    }
}

/// Returns the shorter of two times, where 0 stands for none.
pub(super) fn shorter(a: u32, b: u32) -> u32 {
    match (a, b) {
        (0, other) | (other, 0) => other,
        (a, b) => a.min(b),
    }
}

impl Conversation<'_> {
    /// Whether unreadable bytes are to be served as HTTP/2. They are if they begin with its
    /// preface, or if the application is known to speak HTTP/2: then GOAWAY refuses a client that
    /// speaks neither version.
    #[cold]
    pub(super) fn speaks_http2(&self, failure: &Failure) -> bool {
        if self.single || self.served {
            return false;
        }
        let no_request = failure.detail.starts_with(BadRequest::RequestLine.reason());
        http2::is_preface(self.received.as_slice())
            || (no_request && self.scope.http_version(self.worker) == HttpVersion::Http2)
    }

    /// Serves each stream as if it were a connection of its own.
    pub(super) async fn serve_http2(&mut self) {
        let link = std::mem::replace(&mut self.down, Link::Closed);
        let received = std::mem::take(&mut self.received);
        self.deadline.disarm();
        let (worker, scope) = (self.worker, Rc::new(self.scope.clone()));
        let outdated = || scope.is_outdated(&worker.config());
        let accept = |stream| stream_handlers::handle(worker, Link::Http2(stream), scope.clone());
        let began = |client: &_| worker.remember(client);
        http2::serve(worker, link, received, accept, outdated, began).await;
    }

    /// Reads the particulars of a request that came as HTTP/2.
    #[cold]
    pub(super) fn came_as_http2(&self, head: &[u8]) -> CameAs {
        let field = |wanted: &str| {
            let mut fields = tulle_http1::headers(head);
            fields
                .find(|(name, _)| name.eq_ignore_ascii_case(wanted.as_bytes()))
                .map(|(_, value)| value)
        };
        let grpc = field("content-type").is_some_and(|t| t.starts_with(b"application/grpc"));
        // Browsers and other proxies use HTTP/2 wherever it is offered, so it tells nothing about
        // the application; only gRPC needs it.
        let from_outside = match self.scope {
            ConnectionContext::Gateway(_) => true,
            ConnectionContext::Inbound(scope) => {
                scope.is_mutual() && matches!(self.down, Link::Http2(_))
            }
            ConnectionContext::Outbound(_) | ConnectionContext::Egress(_) => false,
        };
        CameAs {
            kind: match from_outside && !grpc {
                true => StreamKind::Http,
                false => StreamKind::Http2,
            },
            grpc,
            timeout_ms: match grpc {
                true => field("grpc-timeout").and_then(grpc_timeout).unwrap_or(0),
                false => 0,
            },
        }
    }
}

/// `grpc-timeout`: at most eight digits and a unit. Rounded up to milliseconds, at least one.
fn grpc_timeout(value: &[u8]) -> Option<u32> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let nanos = |per: u64| Duration::from_nanos(number.saturating_mul(per));
    let timeout = match unit {
        b'H' => Duration::from_secs(number.saturating_mul(3600)),
        b'M' => Duration::from_secs(number.saturating_mul(60)),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => nanos(1000),
        b'n' => nanos(1),
        _ => return None,
    };
    let millis = timeout.as_nanos().div_ceil(1_000_000).max(1);
    Some(u32::try_from(millis).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_waits_as_long_as_it_said() {
        let waits = |timeout_ms| CameAs {
            timeout_ms,
            ..CameAs::HTTP1
        };
        let micros = Duration::from_micros;
        assert!(!waits(2).is_overdue(micros(999)));
        // A timeout of 1,001 us is 2 ms here, and over after 1,001 us.
        assert!(waits(2).is_overdue(micros(1001)));
        assert!(waits(2).is_overdue(micros(2500)));
        assert!(!waits(0).is_overdue(micros(2500)));
    }

    #[test]
    fn timeouts_in_all_units() {
        for (text, millis) in [
            ("1H", Some(3_600_000)),
            ("2M", Some(120_000)),
            ("3S", Some(3000)),
            ("4m", Some(4)),
            ("5u", Some(1)),
            ("1500u", Some(2)),
            ("0n", Some(1)),
            ("99999999H", Some(u32::MAX)),
            ("999999999S", None),
            ("S", None),
            ("1", None),
            ("1s", None),
            ("-1S", None),
            ("", None),
        ] {
            assert_eq!(grpc_timeout(text.as_bytes()), millis, "{text}");
        }
    }
}
