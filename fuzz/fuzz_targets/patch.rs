//! Patches of resources: whatever the bytes of one, applying it ends, within bounds and without a panic; and what was
//! made of two versions makes the one of the other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tulle_api::{Encoded, apply_patch, patch, version};
use tulle_api::v1::{Patch, ResourcePatch};

/// As many bytes as the next one says, of what is left.
fn some<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let Some((length, rest)) = bytes.split_first() else {
        return &[];
    };
    let (taken, rest) = rest.split_at(rest.len().min((*length).into()));
    *bytes = rest;
    taken
}

fn encoded(bytes: &mut &[u8]) -> Encoded {
    Encoded {
        body: some(bytes).to_vec().into(),
        labels: some(bytes).to_vec().into(),
    }
}

fn told(bytes: &mut &[u8]) -> Patch {
    let places = some(bytes);
    let place = |at: usize| {
        let four = places.get(at..).and_then(|b| b.first_chunk());
        four.map_or(u32::from(places.get(at).copied().unwrap_or_default()), |b| {
            u32::from_le_bytes(*b)
        })
    };
    Patch {
        head: place(0),
        tail: place(4),
        packed: some(bytes).to_vec(),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes;
    let (old, new) = (encoded(&mut bytes), encoded(&mut bytes));
    let right = version(&new.body, &new.labels);
    if let Some(difference) = patch(&old, &new, right) {
        assert_eq!(apply_patch(&old, &difference), Some((new, right)));
    }
    let hostile = ResourcePatch {
        body: Some(told(&mut bytes)),
        labels: Some(told(&mut bytes)),
        check: 0,
    };
    if let Some((made, version)) = apply_patch(&old, &hostile) {
        assert_eq!(version & u64::from(u32::MAX), 0);
        assert!(made.body.len() <= old.body.len() + (4 << 20));
    }
});
