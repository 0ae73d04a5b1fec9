//! Edits a head that has been parsed and written already: the rare case, by copying its lines.

use crate::field::{Lines, is_token_byte, is_value_byte};
use crate::head::{add_lines, copy_lines};

/// Returns method, target and version of the request line of a head that [`RequestHead::write`] has
/// written; empty where there is none.
///
/// [`RequestHead::write`]: crate::RequestHead::write
pub fn request_line(head: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let line = first_line(head);
    let line = line.strip_suffix(b"\r\n").unwrap_or(line);
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let mut next = || parts.next().unwrap_or_default();
    (next(), next(), next())
}

/// Appends `head` to `out` with another first line without CRLF (`None`: its own), only the header
/// lines whose names `keep` accepts, and further ones.
pub fn edit_head(
    head: &[u8],
    first: Option<&[u8]>,
    keep: impl FnMut(&[u8]) -> bool,
    add: &[(&str, &[u8])],
    out: &mut Vec<u8>,
) {
    let own = first_line(head);
    match first {
        None => out.extend_from_slice(own),
        Some(first) => {
            out.extend_from_slice(first);
            out.extend_from_slice(b"\r\n");
        }
    }
    copy_lines(head.get(own.len()..).unwrap_or_default(), keep, out);
    add_lines(add, out);
    out.extend_from_slice(b"\r\n");
}

/// Appends one header line. Bytes that would end the line become spaces.
pub fn write_line(name: &str, value: &[u8], out: &mut Vec<u8>) {
    add_lines(&[(name, value)], out);
}

/// Whether `name` may be the name of a header field.
pub fn is_field_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().copied().all(is_token_byte)
}

/// Whether `value` may be the value of a header field.
pub fn is_field_value(value: &[u8]) -> bool {
    value.iter().copied().all(is_value_byte)
}

/// Bytes of the head at the start of `message`, the empty line included; all of them if it has
/// no end.
pub fn head_len(message: &[u8]) -> usize {
    let mut at = first_line(message).len();
    for line in Lines::new(message.get(at..).unwrap_or_default()) {
        at += line.bytes.len();
    }
    (at + 2).min(message.len())
}

fn first_line(head: &[u8]) -> &[u8] {
    let end = memchr::memchr(b'\n', head).map_or(head.len(), |at| at + 1);
    head.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"GET /a?b HTTP/1.1\r\nhost: x\r\na: 1\r\nA: 2\r\nb: 3\r\n\r\n";

    #[test]
    fn lines_are_dropped_and_added() {
        let mut out = Vec::new();
        let keep = |name: &[u8]| !name.eq_ignore_ascii_case(b"a");
        edit_head(HEAD, None, keep, &[("c", b"4\r\nevil: 5")], &mut out);
        let wanted = "GET /a?b HTTP/1.1\r\nhost: x\r\nb: 3\r\nc: 4  evil: 5\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }

    #[test]
    fn parts_of_a_head() {
        let (method, target, version) = request_line(HEAD);
        assert_eq!((method, target), (&b"GET"[..], &b"/a?b"[..]));
        assert_eq!(version, b"HTTP/1.1");
        let message = [HEAD, b"body: no line\r\n\r\n"].concat();
        assert_eq!(head_len(&message), HEAD.len());
        assert_eq!(head_len(b"HTTP/1.1 204 No Content\r\n\r\nx"), 27);
        assert_eq!(head_len(b""), 0);
    }
}
