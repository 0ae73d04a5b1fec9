//! Texts that match a regular expression: requests to try are made of them.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

/// Most texts of one expression.
const MOST: usize = 48;
/// Longest text.
const LONGEST: usize = 512;

/// Some texts that match the whole expression, in its order; none if it cannot be read. Whoever uses
/// one asks the compiled expression whether it really matches.
pub(super) fn matching(pattern: &str) -> Vec<String> {
    let parser = ParserBuilder::new().unicode(false).utf8(false).build();
    let parsed = { parser }.parse(pattern);
    let texts = parsed.map(|hir| texts(&hir)).unwrap_or_default();
    let texts = texts.into_iter().filter(|text| text.len() <= LONGEST);
    texts
        .filter_map(|text| String::from_utf8(text).ok())
        .collect()
}

fn texts(hir: &Hir) -> Vec<Vec<u8>> {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => vec![Vec::new()],
        HirKind::Literal(literal) => vec![literal.0.to_vec()],
        HirKind::Class(class) => members(class),
        HirKind::Capture(capture) => texts(&capture.sub),
        HirKind::Repetition(repetition) => {
            let fewest = usize::try_from(repetition.min).unwrap_or(LONGEST);
            let most = repetition.max.and_then(|max| usize::try_from(max).ok());
            let more = (fewest + 1).min(most.unwrap_or(usize::MAX));
            let once = texts(&repetition.sub);
            let mut all = Vec::new();
            for times in [fewest, more] {
                all.extend(once.iter().map(|text| text.repeat(times.min(LONGEST))));
            }
            bounded(all)
        }
        HirKind::Concat(parts) => {
            let mut all = vec![Vec::new()];
            for part in parts {
                let ends = texts(part);
                let longer = all.iter().flat_map(|start: &Vec<u8>| {
                    ends.iter().map(|end| [start.as_slice(), end].concat())
                });
                all = bounded(longer.take(MOST).collect());
            }
            all
        }
        HirKind::Alternation(choices) => bounded(choices.iter().flat_map(texts).collect()),
    }
}

/// Plain letters and digits first: a path of these is read by every server in the same way.
fn members(class: &Class) -> Vec<Vec<u8>> {
    let ranges: Vec<(u32, u32)> = match class {
        Class::Bytes(class) => class
            .iter()
            .map(|range| (range.start().into(), range.end().into()))
            .collect(),
        Class::Unicode(class) => class
            .iter()
            .map(|range| (range.start().into(), range.end().into()))
            .collect(),
    };
    let has = |member: u8| {
        ranges
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&member.into()))
    };
    let plain = [b'x', b'0', b'A', b'-']
        .into_iter()
        .filter(|member| has(*member));
    let mut all: Vec<Vec<u8>> = plain.map(|member| vec![member]).collect();
    let first = ranges
        .iter()
        .find_map(|(first, _)| u8::try_from(*first).ok());
    all.extend(first.map(|first| vec![first]));
    all.truncate(3);
    all
}

fn bounded(mut all: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    all.retain(|text| text.len() <= LONGEST);
    all.dedup();
    all.truncate(MOST);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::pattern::compile;

    #[test]
    fn texts_match_their_expression() {
        for pattern in [
            "/ratings/[0-9a-f-]+",
            "/(a|b)/c?",
            "/v[12]/.*",
            "/x{3}/[^/]+",
            "/users/\\d+/(posts|likes)",
            "",
            "(?i)/admin",
            "/[[:upper:]]+",
        ] {
            let found = matching(pattern);
            assert!(!found.is_empty(), "{pattern}");
            let compiled = compile(pattern).unwrap();
            for text in found {
                assert!(compiled.is_match(text.as_bytes()), "{pattern}: {text:?}");
            }
        }
    }

    #[test]
    fn large_expressions_give_few_short_texts() {
        for pattern in [
            "([a-z]|[0-9]){40}",
            "(a{20}){20}(b{30}){30}",
            "((a|b)(c|d)(e|f)(g|h)(i|j)(k|l)(m|n))*",
        ] {
            let found = matching(pattern);
            assert!(found.len() <= MOST, "{pattern}");
            assert!(found.iter().all(|text| text.len() <= LONGEST), "{pattern}");
        }
    }
}
