//! The ways in which servers read a path that is not plain (`plain_path`).
//!
//! A path is forwarded as it came, and routes judge it as it came. Some server may read it as
//! another path, which the filters of another route protect
//! (docs/design/0007-paths-and-filters.md). So a path passes only if the same rule applies to all
//! of its readings. `/projects/a%2Fb` may thus be used where it is harmless.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::plain_path::{is_plain, trimmed};
use crate::config::route::matching::escape;

/// Returns the decision about a path if it is the same for all readings. It allocates unless the
/// path is plain.
///
/// # Errors
/// The decisions differ, or the path can be read in too many ways; describes the fault for the
/// operator.
pub fn agreed<T: PartialEq>(
    path: &[u8],
    mut decide: impl FnMut(&[u8]) -> T,
) -> Result<T, &'static str> {
    let said = decide(path);
    if is_plain(path) {
        return Ok(said);
    }
    let once = decode(path)?;
    if has_dots(&once) {
        return Err("it has segments `.` or `..`, perhaps encoded or with parameters");
    }
    for slashes in [false, true] {
        for merged in [false, true] {
            for bare in [false, true] {
                let reading = read(&once, slashes, merged, bare);
                if decide(&reading) != said {
                    return Err(
                        "servers may read it as another path, for which another rule holds",
                    );
                }
            }
        }
    }
    Ok(said)
}

/// A decoded byte, and whether it was an escape.
type Decoded = (u8, bool);

fn decode(path: &[u8]) -> Result<Vec<Decoded>, &'static str> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'%' {
            out.push((byte, false));
            rest = after;
            continue;
        }
        let decoded = escape(after).ok_or("it has a `%` without two hexadecimal digits")?;
        rest = after.get(2..).unwrap_or_default();
        if decoded == b'%' && escape(rest).is_some() {
            return Err("it is encoded twice");
        }
        if decoded < b' ' || decoded == 0x7f {
            return Err("it has an encoded control character");
        }
        out.push((decoded, true));
    }
    Ok(out)
}

fn is_slash((byte, _): Decoded) -> bool {
    matches!(byte, b'/' | b'\\')
}

/// Whether any server would see `.` or `..` as a segment.
fn has_dots(path: &[Decoded]) -> bool {
    path.split(|&d| is_slash(d)).any(|segment| {
        let name = segment.split(|(byte, _)| *byte == b';').next();
        let name: Vec<u8> = name.unwrap_or_default().iter().map(|(b, _)| *b).collect();
        matches!(trimmed(&name), b"." | b"..")
    })
}

/// Reads a path in one way: `slashes` that are backslashes or encoded separate segments, several
/// are `merged`, segments are `bare` of parameters and of blanks around them.
fn read(path: &[Decoded], slashes: bool, merged: bool, bare: bool) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    let mut in_parameters = false;
    for &(byte, encoded) in path {
        let plain_slash = byte == b'/' && !encoded;
        if plain_slash || slashes && is_slash((byte, encoded)) {
            in_parameters = false;
            out.push(b'/');
            continue;
        }
        in_parameters |= bare && byte == b';';
        if in_parameters {
            continue;
        }
        match byte {
            // It stays encoded: a server that does not decode it here compares the escape.
            b'/' => out.extend_from_slice(b"%2F"),
            other => out.push(other),
        }
    }
    match (merged, bare) {
        (false, false) => out,
        _ => normalized(&out, merged, bare),
    }
}

/// Returns the path without blanks around its segments, or with slashes `merged`, or both.
fn normalized(path: &[u8], merged: bool, bare: bool) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    for (place, segment) in path.split(|b| *b == b'/').enumerate() {
        if place > 0 && !(merged && out.last() == Some(&b'/')) {
            out.push(b'/');
        }
        out.extend_from_slice(if bare { trimmed(segment) } else { segment });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first of two rules: `/admin`, and everything else.
    fn rule(path: &[u8]) -> bool {
        path == b"/admin" || path.starts_with(b"/admin/")
    }

    #[test]
    fn what_reads_the_same_everywhere_is_let_through() {
        for (path, admin) in [
            ("/.well-known/x", false),
            ("/a%20b", false),
            ("/a%C2%A0", false),
            ("/a;v=1/b", false),
            ("/group%2Fproject", false),
            ("/admin/a%2Fb", true),
            ("/admin/x;y", true),
            ("/a//b", false),
            ("/a...b/...", false),
            ("/100%25", false),
        ] {
            assert_eq!(agreed(path.as_bytes(), rule), Ok(admin), "{path}");
        }
    }

    #[test]
    fn what_may_be_another_path_is_refused() {
        for path in [
            "/x/../admin",
            "/x/%2e%2e/admin",
            "/x/.%2E/admin",
            "/x/..%2fadmin",
            "/x/..;/admin",
            "/x/..;a=b/admin",
            "/x\\..\\admin",
            "/x/%2e%2e%5cadmin",
            "/./admin",
            "/admin/..",
            "/admin/.",
            "//admin",
            "/%61dmin",
            "/admin;x",
            "/admin%2f",
            "/admin%2fx",
            "/admin%5cx",
            "/admin\\x",
            "/;x/admin",
            "/%2561dmin",
            "/%252e%252e/admin",
            "/admin%00",
            "/admin%20",
            "/%20admin",
            "/admin%20/x",
            "/admin%20;x",
            "/%20/admin",
            "/admin%C2%A0",
            "/admin\u{a0}/x",
            "/%E3%80%80admin",
            "/admin%85",
            "/x/..%C2%A0/admin",
            "/x/..%20/admin",
            "/admin%",
            "/admin%zz",
            "/%2fadmin",
        ] {
            let said = agreed(path.as_bytes(), rule);
            assert!(said.is_err(), "{path}: {said:?}");
        }
    }
}
