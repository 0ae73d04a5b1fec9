//! Differences between two versions of a resource. One endpoint that comes or goes changes a few dozen bytes of a body
//! that may have thousands: over a slow line only these are sent.
//!
//! A patch names no version that it is for. Whoever applies it looks whether the result is the right one.

use crate::Encoded;
use crate::packing::{pack, unpack};
use crate::v1::{Patch, ResourcePatch};
use aws_lc_rs::digest;
use bytes::Bytes;

/// Bytes before and after the place of a change that may be copied.
const AROUND: usize = 2048;
/// Bytes of the begin of a body.
const BEGIN: usize = 48;
/// Most bytes that a patch may put in.
const MOST: usize = 4 << 20;
/// The form of what most patches put in.
const FORM: &[u8] = br#"{"workloads":{"known":[{"workload":{"name":","kind":"Workload","app":","canonicalService":"},"endpoints":[{"address":","mutualTls":false,"#;

/// Returns the version of a resource: the first 64 bits of SHA-256 of its parts, and never 0.
pub fn version(body: &[u8], labels: &[u8]) -> u64 {
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(body);
    hash.update(labels);
    let hash = hash.finish();
    let first = hash.as_ref().first_chunk().copied().unwrap_or_default();
    u64::from_be_bytes(first).max(1)
}

/// Returns what makes the new version of the old one; `None`: sending the whole costs hardly more.
pub fn patch(old: &Encoded, new: &Encoded, version: u64) -> Option<ResourcePatch> {
    let patch = ResourcePatch {
        body: between(&old.body, &new.body, &[]),
        labels: between(&old.labels, &new.labels, begin(&new.body)),
        check: check(version),
    };
    let bytes = |patch: &Option<Patch>| patch.as_ref().map_or(0, |p| p.packed.len() + 10);
    let whole = new.body.len() + new.labels.len();
    (bytes(&patch.body) + bytes(&patch.labels) < whole / 4 * 3).then_some(patch)
}

/// Applies a patch, and returns the result with its version; `None`: it is not one of this version.
pub fn apply_patch(old: &Encoded, patch: &ResourcePatch) -> Option<(Encoded, u64)> {
    let body = applied(&old.body, patch.body.as_ref(), &[])?;
    let labels = applied(&old.labels, patch.labels.as_ref(), begin(&body))?;
    let version = version(&body, &labels);
    (check(version) == patch.check).then_some((Encoded { body, labels }, version))
}

/// The last bits of a version. An accident passes for the right one once in four billion times.
fn check(version: u64) -> u32 {
    (version & u64::from(u32::MAX)) as u32
}

/// The begin of a body, which has the name that labels repeat.
fn begin(body: &[u8]) -> &[u8] {
    body.get(..body.len().min(BEGIN)).unwrap_or_default()
}

fn between(old: &[u8], new: &[u8], more: &[u8]) -> Option<Patch> {
    if old == new {
        return None;
    }
    let same = |(a, b): &(&u8, &u8)| a == b;
    let head = old.iter().zip(new).take_while(same).count();
    let rest = |all: &[u8]| all.len() - head;
    let most = rest(old).min(rest(new));
    let ends = old.iter().rev().zip(new.iter().rev());
    let tail = ends.take(most).take_while(same).count();
    let middle = new.get(head..new.len() - tail).unwrap_or_default();
    Some(Patch {
        head: u32::try_from(head).ok()?,
        tail: u32::try_from(tail).ok()?,
        packed: pack(&dictionary(old, head, more), middle),
    })
}

/// Returns what both ends know around a place of the old bytes.
fn dictionary(old: &[u8], place: usize, more: &[u8]) -> Vec<u8> {
    let begin = place.saturating_sub(AROUND);
    let end = place.saturating_add(AROUND).min(old.len());
    [more, FORM, old.get(begin..end).unwrap_or_default()].concat()
}

fn applied(old: &Bytes, patch: Option<&Patch>, more: &[u8]) -> Option<Bytes> {
    let Some(patch) = patch else {
        return Some(old.clone());
    };
    let (head, tail) = (patch.head as usize, patch.tail as usize);
    let begin = old.get(..head)?;
    let end = old.get(head..)?;
    let end = end.get(end.len().checked_sub(tail)?..)?;
    let middle = unpack(&dictionary(old, head, more), &patch.packed, MOST)?;
    Some([begin, &middle, end].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(body: &str, labels: &str) -> Encoded {
        Encoded {
            body: Bytes::copy_from_slice(body.as_bytes()),
            labels: Bytes::copy_from_slice(labels.as_bytes()),
        }
    }

    #[test]
    fn an_endpoint_more_costs_its_own_bytes() {
        let endpoint = |n: u16| format!(r#"{{"address":"10.0.0.{n}:15001"}}"#);
        let body = |numbers: &[u16]| {
            numbers
                .iter()
                .map(|n| endpoint(*n))
                .collect::<Vec<_>>()
                .join(",")
        };
        let old = encoded(&body(&[1, 2, 4, 5, 6]), "{}");
        let new = encoded(&body(&[1, 2, 3, 4, 5, 6]), "{}");
        let difference = patch(&old, &new, version(&new.body, &new.labels)).unwrap();
        assert_eq!(difference.labels, None);
        let packed = difference.body.as_ref().unwrap().packed.len();
        assert!(packed < endpoint(3).len() / 2, "{packed} bytes");
        let (applied, _) = apply_patch(&old, &difference).unwrap();
        assert_eq!(applied, new);
        let other = encoded(&body(&[1, 2, 4, 5, 7]), "{}");
        assert_eq!(
            apply_patch(&other, &difference),
            None,
            "it is not for this one"
        );
    }

    #[test]
    fn a_patch_beyond_what_is_there_is_refused() {
        for (head, tail) in [(9, 0), (0, 9), (2, 2), (u32::MAX, u32::MAX)] {
            let patch = Patch {
                head,
                tail,
                packed: Vec::new(),
            };
            let patch = ResourcePatch {
                body: Some(patch),
                labels: None,
                check: 0,
            };
            assert_eq!(apply_patch(&encoded("abc", ""), &patch), None);
        }
    }

    proptest! {
        #[test]
        fn what_was_taken_apart_is_put_together(old in "[ab]{0,40}", new in "[ab]{0,40}", labels in "[ab]{0,9}") {
            let (old, new) = (encoded(&old, ""), encoded(&new, &labels));
            let right = version(&new.body, &new.labels);
            let patch = ResourcePatch {
                body: between(&old.body, &new.body, &[]),
                labels: between(&old.labels, &new.labels, begin(&new.body)),
                check: check(right),
            };
            prop_assert_eq!(apply_patch(&old, &patch), Some((new, right)));
        }
    }
}
