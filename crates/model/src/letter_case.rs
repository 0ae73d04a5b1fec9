//! Paths compared without regard to letter case.

/// Folds the case of a path, so that two paths that some server takes for the same give one text. Wider
/// than Unicode's case folding: `ı`, `İ` and `ſ` are `i` and `s`, as for servers that compare character by
/// character (Java's `equalsIgnoreCase`). For rules that restrict only.
///
/// ```
/// use tulle_model::letter_case::folded;
/// assert_eq!(folded(b"/Admin"), folded("/ADMİN".as_bytes()));
/// ```
pub fn folded(path: &[u8]) -> Vec<u8> {
    if path.is_ascii() {
        return path.to_ascii_lowercase();
    }
    let text = String::from_utf8_lossy(path);
    text.chars().map(fold).collect::<String>().into_bytes()
}

fn fold(c: char) -> char {
    let upper = c.to_uppercase().next().unwrap_or(c);
    upper.to_lowercase().next().unwrap_or(upper)
}

#[cfg(test)]
mod tests {
    use super::folded;

    #[test]
    fn all_cases_of_a_letter_are_one() {
        let one = |texts: &[&str]| {
            let first = texts.first().map(|t| folded(t.as_bytes()));
            for text in texts {
                assert_eq!(Some(folded(text.as_bytes())), first, "{text}");
            }
        };
        one(&["/admin", "/ADMIN", "/admın", "/ADMİN"]);
        one(&["/status", "/ſtatus", "/STATUS"]);
        one(&["/ok", "/o\u{212a}"]);
        one(&["/über", "/ÜBER"]);
        assert_ne!(folded(b"/a"), folded(b"/b"));
        assert_ne!(folded(b"/a"), folded(b"/\xff"));
    }
}
