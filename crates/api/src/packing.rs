//! Packs a few new bytes as copies of bytes that both ends have, with what is new between them. A workload more differs from
//! its neighbours by its name, and costs that.
//!
//! Pure, in time linear in what is packed, and bounded in what comes out. It is no general compression: it looks only into
//! the dictionary that it is given.

use std::collections::HashMap;

/// Shortest copy: its numbers take up to four bytes.
const SHORTEST: usize = 6;
/// Places of the same beginning that are tried.
const TRIED: usize = 8;

/// Packs bytes: literal bytes with their number before them, then a copy by its length and place, and so on.
pub(crate) fn pack(dictionary: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut places: HashMap<&[u8], Vec<usize>> = HashMap::new();
    for (place, begin) in dictionary.windows(SHORTEST).enumerate() {
        let known = places.entry(begin).or_default();
        if known.len() < TRIED {
            known.push(place);
        }
    }
    let mut out = Vec::new();
    let (mut rest, mut literal) = (bytes, Vec::new());
    while let Some((first, others)) = rest.split_first() {
        let begin = rest.get(..SHORTEST);
        let candidates = begin
            .and_then(|begin| places.get(begin))
            .into_iter()
            .flatten();
        let length = |place: &usize| {
            let there = dictionary.get(*place..).unwrap_or_default();
            there.iter().zip(rest).take_while(|(a, b)| a == b).count()
        };
        match candidates.map(|place| (length(place), *place)).max() {
            Some((length, place)) => {
                write(&mut out, literal.len());
                out.append(&mut literal);
                write(&mut out, length);
                write(&mut out, place);
                rest = rest.get(length..).unwrap_or_default();
            }
            None => {
                literal.push(*first);
                rest = others;
            }
        }
    }
    if !literal.is_empty() {
        write(&mut out, literal.len());
        out.append(&mut literal);
    }
    out
}

/// Unpacks; `None`: it was packed with another dictionary, or there is more than `most`.
pub(crate) fn unpack(dictionary: &[u8], mut packed: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    while !packed.is_empty() {
        let literal = read(&mut packed)?;
        let (bytes, rest) = packed.split_at_checked(literal)?;
        out.extend_from_slice(bytes);
        packed = rest;
        if !packed.is_empty() {
            let length = read(&mut packed)?;
            let place = read(&mut packed)?;
            out.extend_from_slice(dictionary.get(place..)?.get(..length)?);
        }
        if out.len() > most {
            return None;
        }
    }
    Some(out)
}

/// LEB128: seven bits a byte, the lowest first.
fn write(out: &mut Vec<u8>, mut number: usize) {
    while number > 0x7f {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn read(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in (0..28).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= usize::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_neighbour_costs_its_name() {
        let known = br#"{"workload":{"name":"ratings-1","kind":"Workload","app":"ratings","canonicalService":"ratings"}}"#;
        let new = br#",{"workload":{"name":"ratings-2","kind":"Workload","app":"ratings","canonicalService":"ratings"}}"#;
        let packed = pack(known, new);
        assert!(packed.len() <= 12, "{} bytes", packed.len());
        assert_eq!(unpack(known, &packed, 1000).unwrap(), new);
        assert_eq!(unpack(known, &packed, 50), None);
        assert_eq!(unpack(b"another", &packed, 1000), None);
    }

    proptest! {
        #[test]
        fn what_was_packed_is_unpacked(dictionary in "[ab]{0,60}", bytes in "[abc]{0,60}") {
            let packed = pack(dictionary.as_bytes(), bytes.as_bytes());
            prop_assert_eq!(unpack(dictionary.as_bytes(), &packed, 100), Some(bytes.into_bytes()));
        }

        #[test]
        fn any_bytes_are_read(dictionary in "[ab]{0,60}", packed in proptest::collection::vec(any::<u8>(), 0..40)) {
            let unpacked = unpack(dictionary.as_bytes(), &packed, 200);
            prop_assert!(unpacked.is_none_or(|bytes| bytes.len() <= 200));
        }
    }
}
