//! A random number, so that the proxies of a mesh do not all do something at once.

/// A random number from 0 to 1.
pub(crate) fn fraction() -> f32 {
    use std::hash::{BuildHasher, RandomState};
    let bits = RandomState::new().hash_one(0) >> 48;
    f32::from(u16::try_from(bits).unwrap_or_default()) / f32::from(u16::MAX)
}
