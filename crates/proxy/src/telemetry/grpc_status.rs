//! The status of a gRPC call. HTTP's status does not show it: 200 stands for failures, too, and the
//! status of the call comes with the trailers.

use crate::telemetry::reason::Reason;

/// The last known status: UNAUTHENTICATED. Any other number counts as UNKNOWN, as for clients, so
/// that a server cannot create metrics of its own.
const LAST: u8 = 16;
const UNKNOWN: u8 = 2;

/// Status of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseStatus {
    /// HTTP's status; 0 for a TCP connection.
    pub status: u16,
    /// The status of a gRPC call.
    pub grpc: Option<u8>,
}

impl From<u16> for ResponseStatus {
    fn from(status: u16) -> Self {
        Self { status, grpc: None }
    }
}

impl ResponseStatus {
    /// The answer to a call: the status the server has `said`, if any; it may have been cut for a
    /// `reason`.
    pub fn to_call(status: u16, said: Option<u8>, reason: Reason) -> Self {
        let grpc = match said {
            Some(code) if code <= LAST => code,
            Some(_) => UNKNOWN,
            None if reason == Reason::Ok => of_http(status),
            None => reason.grpc_status(),
        };
        Self {
            status,
            grpc: Some(grpc),
        }
    }

    /// Returns HTTP's status for the same result. Endpoints are judged by it: a server's failures
    /// are 5xx.
    pub fn as_http(self) -> u16 {
        match self.grpc {
            Some(_) if self.status >= 500 => self.status,
            Some(2 | 13 | 15) => 500, // UNKNOWN, INTERNAL, DATA_LOSS
            Some(12) => 501,          // UNIMPLEMENTED
            Some(14) => 503,          // UNAVAILABLE
            Some(4) => 504,           // DEADLINE_EXCEEDED
            _ => self.status,
        }
    }
}

/// Returns the status that clients derive from a response without one (gRPC, "HTTP to gRPC Status
/// Code Mapping").
fn of_http(status: u16) -> u8 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502..=504 => 14,
        _ => UNKNOWN,
    }
}

/// Returns the status in the head of a response, which has it when there are no trailers.
pub fn of_head(head: &[u8]) -> Option<u8> {
    let mut fields = tulle_http1::headers(head);
    let (_, value) = fields.find(|(name, _)| name.eq_ignore_ascii_case(b"grpc-status"))?;
    // A value that is not a number is a status no client knows.
    let text = std::str::from_utf8(value).unwrap_or_default();
    Some(text.trim().parse().unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::grpc_status::is_failure;

    #[test]
    fn what_a_call_was_answered_with() {
        for (status, said, reason, grpc, http) in [
            (200, Some(0), Reason::Ok, 0, 200),
            (200, Some(5), Reason::Ok, 5, 200),
            (200, Some(13), Reason::Ok, 13, 500),
            (200, Some(14), Reason::Ok, 14, 503),
            (200, Some(4), Reason::Ok, 4, 504),
            (200, Some(200), Reason::Ok, 2, 500),
            // Without a status, counted as clients do.
            (200, None, Reason::Ok, 2, 500),
            (404, None, Reason::Ok, 12, 501),
            (503, None, Reason::Ok, 14, 503),
            (403, None, Reason::Denied, 7, 403),
            (499, None, Reason::ClientClosed, 1, 499),
            (504, None, Reason::RequestTimeout, 4, 504),
        ] {
            let answer = ResponseStatus::to_call(status, said, reason);
            assert_eq!((answer.grpc, answer.as_http()), (Some(grpc), http));
        }
        assert_eq!(ResponseStatus::from(503).as_http(), 503);
        // The count agrees with that of the metrics' readers.
        for code in 0..=LAST {
            let answer = ResponseStatus::to_call(200, Some(code), Reason::Ok);
            assert_eq!(answer.as_http() >= 500, is_failure(code.into()), "{code}");
        }
    }

    #[test]
    fn the_status_in_a_head() {
        let of = |field: &str| of_head(format!("HTTP/1.1 200 OK\r\n{field}\r\n").as_bytes());
        assert_eq!(of("Grpc-Status: 14\r\n"), Some(14));
        assert_eq!(of("grpc-status: nonsense\r\n"), Some(u8::MAX));
        assert_eq!(of("grpc-status-details: 1\r\n"), None);
    }
}
