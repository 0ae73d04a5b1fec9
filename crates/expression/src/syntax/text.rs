//! Texts and bytes in quotes: `'a'`, `"a"`, `'''a'''`, raw with `r` before, bytes with `b`.

use super::Literal;

/// Reads a text or bytes at the begin of `text`, and their length; `None`: something else begins there. An error
/// has its place in `text`.
pub(super) fn quoted(text: &str) -> Result<Option<(Literal, usize)>, (usize, String)> {
    let prefix = text.split(['\'', '"']).next().unwrap_or(text);
    let (raw, bytes) = match prefix {
        "" => (false, false),
        "r" | "R" => (true, false),
        "b" | "B" => (false, true),
        "rb" | "rB" | "Rb" | "RB" | "br" | "bR" | "Br" | "BR" => (true, true),
        _ => return Ok(None),
    };
    let body = text.get(prefix.len()..).unwrap_or_default();
    let quote = match body {
        _ if body.starts_with("'''") => "'''",
        _ if body.starts_with("\"\"\"") => "\"\"\"",
        _ if body.starts_with('\'') => "'",
        _ if body.starts_with('"') => "\"",
        _ => return Ok(None),
    };
    let mut at = prefix.len() + quote.len();
    let mut out = Vec::new();
    loop {
        let left = text.get(at..).unwrap_or_default();
        if left.starts_with(quote) {
            break;
        }
        let Some(first) = left.chars().next() else {
            return Err((0, format!("the text has no {quote} at its end")));
        };
        if first == '\n' && quote.len() == 1 {
            return Err((at, format!("the text has no {quote} before the line ends")));
        }
        let length = match first {
            '\\' if !raw => {
                let (value, length) = escape(left, bytes).map_err(|what| (at, what))?;
                value.append_to(&mut out);
                length
            }
            '\\' => {
                // The next character stands for itself, a quote included.
                let next = left.chars().nth(1).map_or(0, char::len_utf8);
                out.extend_from_slice(left.get(..1 + next).unwrap_or_default().as_bytes());
                1 + next
            }
            other => {
                out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
                other.len_utf8()
            }
        };
        at += length;
    }
    let literal = match bytes {
        true => Literal::Bytes(out),
        false => Literal::String(
            String::from_utf8(out).map_err(|_| (0, "this is not UTF-8".to_owned()))?,
        ),
    };
    Ok(Some((literal, at + quote.len())))
}

enum Escaped {
    Char(char),
    Byte(u8),
}

impl Escaped {
    fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::Char(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            Self::Byte(b) => out.push(*b),
        }
    }
}

/// Reads what a backslash begins, and its length.
fn escape(text: &str, bytes: bool) -> Result<(Escaped, usize), String> {
    let unknown = || {
        let shown: String = text.chars().take(2).collect();
        format!("`{shown}` is no escape; a backslash is `\\\\`")
    };
    let kind = text.chars().nth(1).ok_or_else(unknown)?;
    let plain = match kind {
        'a' => Some('\x07'),
        'b' => Some('\x08'),
        'f' => Some('\x0c'),
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        'v' => Some('\x0b'),
        '\\' | '?' | '"' | '\'' | '`' => Some(kind),
        _ => None,
    };
    if let Some(plain) = plain {
        return Ok((Escaped::Char(plain), 2));
    }
    let (digits, base, skip) = match kind {
        'x' | 'X' => (2, 16, 2),
        'u' if !bytes => (4, 16, 2),
        'U' if !bytes => (8, 16, 2),
        '0'..='3' => (3, 8, 1),
        _ => return Err(unknown()),
    };
    let code = text.get(skip..skip + digits).ok_or_else(unknown)?;
    if !code.chars().all(|c| c.is_digit(base)) {
        return Err(unknown());
    }
    let code = u32::from_str_radix(code, base).map_err(|_| unknown())?;
    let escaped = match (bytes, u8::try_from(code), char::from_u32(code)) {
        (true, Ok(byte), _) => Escaped::Byte(byte),
        (false, _, Some(c)) => Escaped::Char(c),
        _ => return Err(unknown()),
    };
    Ok((escaped, skip + digits))
}
