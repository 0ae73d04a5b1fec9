//! The `Connection` field: its options for this connection, and the fields it may remove.

use crate::error::BadHead;
use crate::field::{Field, Lines, classify, list};

/// Fields that `Connection` may name in one head. Clients name two or three; each name is compared
/// with every header line when the head is written.
const MAX_NAMED: u8 = 32;
/// Members of all `Connection` lists of one head, of any kind. Empty ones count, too: RFC 9110,
/// section 5.6.1, wants a reasonable number accepted.
const MAX_MEMBERS: u8 = 64;

/// The options of all `Connection` lines of a head together.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) upgrade: bool,
    /// Number of other fields named, to be removed with the `Connection` field.
    pub(crate) named: u8,
    members: u8,
}

impl Options {
    /// Takes in the value of one `Connection` line.
    pub(crate) fn read(&mut self, value: &[u8]) -> Result<(), BadHead> {
        let most = usize::from(MAX_MEMBERS - self.members);
        let members = memchr::memchr_iter(b',', value).take(most).count() + 1;
        if members > most {
            return Err(BadHead::ConnectionOption);
        }
        self.members += members as u8;
        for option in list(value) {
            match member(option) {
                Member::Close => self.close = true,
                Member::KeepAlive => self.keep_alive = true,
                Member::Upgrade => self.upgrade = true,
                Member::Framing => return Err(BadHead::ConnectionOption),
                Member::Removed => {}
                Member::Named => self.named += 1,
            }
            if self.named > MAX_NAMED {
                return Err(BadHead::ConnectionOption);
            }
        }
        Ok(())
    }
}

/// Meaning of a member of a `Connection` list.
#[derive(PartialEq)]
enum Member {
    Close,
    KeepAlive,
    Upgrade,
    /// A field whose removal would change what the message is or where it ends.
    Framing,
    /// A field that is removed in any case.
    Removed,
    /// Another field.
    Named,
}

fn member(option: &[u8]) -> Member {
    if option.eq_ignore_ascii_case(b"close") {
        return Member::Close;
    }
    if option.eq_ignore_ascii_case(b"keep-alive") {
        return Member::KeepAlive;
    }
    if option.eq_ignore_ascii_case(b"upgrade") {
        return Member::Upgrade;
    }
    match classify(option) {
        Field::Host | Field::ContentLength | Field::TransferEncoding | Field::FramingLookalike => {
            Member::Framing
        }
        Field::Te | Field::Http2Settings => Member::Removed,
        _ => Member::Named,
    }
}

/// The fields that the `Connection` lines of a head name, collected once for all of its lines.
#[derive(Default)]
pub(crate) struct Named<'a> {
    names: [&'a [u8]; MAX_NAMED as usize],
    count: usize,
}

impl<'a> Named<'a> {
    /// Collects the names. `lines` are those of an accepted head, so there are no more names than
    /// fit.
    pub(crate) fn from_lines(lines: Lines<'a>) -> Self {
        let mut named = Self::default();
        let lines = lines.filter(|line| classify(line.name) == Field::Connection);
        let options = lines.flat_map(|line| list(line.value));
        let others = options.filter(|o| member(o) == Member::Named && !is_end_to_end(o));
        for (place, option) in named.names.iter_mut().zip(others) {
            *place = option;
            named.count += 1;
        }
        named
    }

    /// Whether a field of that name is to be removed.
    pub(crate) fn holds(&self, name: &[u8]) -> bool {
        let names = self.names.iter().take(self.count);
        names.into_iter().any(|n| n.eq_ignore_ascii_case(name))
    }
}

/// Whether a field is meant for the recipient of the message. A sender must not name it (RFC 9110,
/// section 7.6.1), because a server relies on it for access control, tracing or reading the
/// content. If one does, the name is ignored and the field kept.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[String]) -> Result<Options, BadHead> {
        let mut options = Options::default();
        values.iter().try_for_each(|v| options.read(v.as_bytes()))?;
        Ok(options)
    }

    #[test]
    fn lists_have_a_limit_whatever_is_in_them() {
        for member in ["close", "te", "", "x-a", "keep-alive"] {
            let members = |count| vec![member; count].join(",");
            assert!(read(&[members(8)]).is_ok(), "{member:?}");
            assert!(read(&[members(65)]).is_err(), "{member:?}");
            assert!(read(&[members(33), members(32)]).is_err(), "{member:?}");
            assert!(read(&[members(30_000)]).is_err(), "{member:?}");
        }
    }

    /// Names beyond those that are collected would not be removed.
    #[test]
    fn no_more_fields_are_named_than_are_removed() {
        let names = |count: u8| (0..count).map(|n| format!("x-{n}")).collect::<Vec<_>>();
        let most = names(MAX_NAMED).join(", ");
        let head = format!("Connection: {most}\r\n\r\n");
        let most = [most];
        assert!(read(&most).is_ok());
        let named = Named::from_lines(Lines::new(head.as_bytes()));
        assert!(names(MAX_NAMED).iter().all(|n| named.holds(n.as_bytes())));
        assert!(read(&[names(MAX_NAMED + 1).join(", ")]).is_err());
        let [most] = most;
        assert!(read(&[most, "x-more".to_owned()]).is_err());
    }

    #[test]
    fn what_is_named_is_removed_but_for_what_the_recipient_is_meant_to_see() {
        let head = b"Connection: close, X-A,, te\r\nb: c\r\nconnection: x-b, Via, upgrade\r\n\r\n";
        let named = Named::from_lines(Lines::new(head));
        assert!(named.holds(b"x-a") && named.holds(b"X-B"));
        for kept in ["via", "close", "upgrade", "te", "b", ""] {
            assert!(!named.holds(kept.as_bytes()), "{kept}");
        }
    }
}
