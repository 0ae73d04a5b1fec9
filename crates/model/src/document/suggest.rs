//! "Did you mean": the known word closest to a mistyped one.

/// The closest of `known` to `word`, if close enough to be a slip.
pub(crate) fn did_you_mean<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    if word.len() > 64 {
        return None;
    }
    let word = plain(word);
    let limit = (word.len() / 3).min(2);
    known
        .into_iter()
        .map(|candidate| (distance(&word, &plain(candidate)), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `log_level`, `log-level` and `loglevel` are all slips of `logLevel`.
fn plain(word: &str) -> Vec<char> {
    let letters = word.chars().filter(|c| !matches!(c, '-' | '_'));
    letters.flat_map(char::to_lowercase).collect()
}

/// Edits (insert, delete, replace, swap of neighbours) between two words.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y))
                .min(last[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::did_you_mean;

    #[test]
    fn finds_slips_and_nothing_else() {
        let known = ["ports", "command", "logLevel"];
        for (word, expected) in [
            ("port", Some("ports")),
            ("comand", Some("command")),
            ("commnad", Some("command")),
            ("log_level", Some("logLevel")),
            ("PORTS", Some("ports")),
            ("volumes", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(did_you_mean(word, known), expected, "{word}");
        }
    }
}
