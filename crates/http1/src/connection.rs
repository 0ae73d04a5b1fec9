//! The `Connection` field: what it says about this connection, and which fields it may remove.

use crate::error::BadHead;
use crate::field::{Field, Lines, classify, list};

/// Fields that `Connection` may name in one head. Clients name two or three; each name is compared
/// with every header line when the head is written.
const MAX_NAMED: u8 = 32;

/// What the `Connection` lines of a head say, taken together.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) upgrade: bool,
    /// Number of other fields named, to be removed with the `Connection` field.
    pub(crate) named: u8,
}

impl Options {
    /// Takes in the value of one `Connection` line.
    pub(crate) fn read(&mut self, value: &[u8]) -> Result<(), BadHead> {
        for option in list(value) {
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else {
                match classify(option) {
                    // Removing one of these changes what the message is or where it ends.
                    Field::Host
                    | Field::ContentLength
                    | Field::TransferEncoding
                    | Field::FramingLookalike => return Err(BadHead::ConnectionOption),
                    Field::Te | Field::Http2Settings => {} // removed in any case
                    _ => self.named += 1,
                }
                if self.named > MAX_NAMED {
                    return Err(BadHead::ConnectionOption);
                }
            }
        }
        Ok(())
    }
}

/// Whether a `Connection` line among `lines` names `name`, and the field may be removed for that.
pub(crate) fn names(lines: Lines<'_>, name: &[u8]) -> bool {
    lines
        .filter(|line| classify(line.name) == Field::Connection)
        .flat_map(|line| list(line.value))
        .any(|option| option.eq_ignore_ascii_case(name))
        && !is_end_to_end(name)
}

/// Fields meant for the recipient of the message. A sender must not name them (RFC 9110, section
/// 7.6.1); one that does wants a proxy to strip what a server relies on for access control, tracing
/// or reading the content, so the name is ignored and the field kept.
fn is_end_to_end(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 21] = [
        b"accept",
        b"authorization",
        b"cache-control",
        b"cookie",
        b"date",
        b"expect",
        b"forwarded",
        b"from",
        b"grpc-timeout",
        b"max-forwards",
        b"origin",
        b"proxy-authorization",
        b"range",
        b"set-cookie",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"vary",
        b"via",
        b"x-real-ip",
        b"x-request-id",
    ];
    const PREFIXES: [&[u8]; 7] = [
        b"accept-",
        b"access-control-",
        b"content-",
        b"grpc-",
        b"if-",
        b"x-b3-",
        b"x-forwarded-",
    ];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
        || PREFIXES.iter().any(|prefix| {
            name.get(..prefix.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
        })
}
