//! Serial numbers that say by which host a certificate came: so that a certificate that a host asked
//! for, its own or one of a sidecar there, is worth nothing once the host has been removed, though
//! another host may have the same identities, or come to have its name.

use super::{AuthorityError, crypto};
use aws_lc_rs::{digest, rand};
use rcgen::SerialNumber;
use tulle_model::resource::{MEMBERSHIP, MEMBERSHIP_MARK, Serial, WITH_MEMBERSHIP};

const ID_BYTES: usize = MEMBERSHIP - 1;

/// One membership of a host, from its joining to its removal. When it joins again after that, it has
/// another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Membership([u8; ID_BYTES]);

impl Membership {
    /// A new one.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn new() -> Result<Self, AuthorityError> {
        let mut id = [0; ID_BYTES];
        random(&mut id)?;
        Ok(Self(id))
    }

    /// Returns the membership of a host which joined before there were any. It is the same in every copy of a store of that time.
    pub(crate) fn before_memberships(host: &str) -> Self {
        let hash = digest::digest(&digest::SHA256, host.as_bytes());
        let mut id = [0; ID_BYTES];
        id.iter_mut()
            .zip(hash.as_ref())
            .for_each(|(to, from)| *to = *from);
        Self(id)
    }

    /// Reads what [`Self::as_bytes`] gave.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads the membership that a serial number of this authority names, if it names one.
    pub(crate) fn of_serial(serial: &[u8]) -> Option<Self> {
        match serial {
            [MEMBERSHIP_MARK, rest @ ..] if serial.len() == WITH_MEMBERSHIP => {
                Self::from_bytes(rest.get(..ID_BYTES)?)
            }
            _ => None,
        }
    }
}

impl From<Membership> for Serial {
    /// The beginning of all serial numbers that name it.
    fn from(Membership(id): Membership) -> Self {
        let mut bytes = [MEMBERSHIP_MARK; MEMBERSHIP];
        bytes[1..].copy_from_slice(&id);
        Self::from_bytes(&bytes)
    }
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Membership({})", tulle_model::hex(&self.0))
    }
}

/// A serial number: 126 random bits, or a membership and 64 of them. RFC 5280 4.1.2.2 wants it positive, and of 20 bytes at most.
pub(super) fn serial(membership: Option<Membership>) -> Result<SerialNumber, AuthorityError> {
    let mut bytes = [0; WITH_MEMBERSHIP];
    random(&mut bytes)?;
    match membership {
        None => bytes[0] = (bytes[0] & 0x7f) | 0x40,
        Some(Membership(id)) => {
            bytes[0] = MEMBERSHIP_MARK;
            bytes[1..=ID_BYTES].copy_from_slice(&id);
        }
    }
    Ok(SerialNumber::from_slice(&bytes))
}

fn random(bytes: &mut [u8]) -> Result<(), AuthorityError> {
    rand::fill(bytes).map_err(|_| crypto("no random numbers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_number_names_the_membership_or_none() {
        let (one, other) = (Membership::new().unwrap(), Membership::new().unwrap());
        assert_ne!(one, other);
        for of in [Some(one), Some(other), None] {
            let (serial, again) = (serial(of).unwrap(), serial(of).unwrap());
            assert_eq!(Membership::of_serial(serial.as_ref()), of);
            assert_ne!(serial, again);
            let number = Serial::from_bytes(serial.as_ref());
            assert_eq!(number.membership(), of.map(Serial::from));
            // One octet more and the number would be another issuer's.
            let longer = [serial.as_ref(), &[0]].concat();
            assert_eq!(Membership::of_serial(&longer), None);
        }
        assert_eq!(Membership::of_serial(&[]), None);
        assert_eq!(Membership::from_bytes(one.as_bytes()), Some(one));
        assert_eq!(Membership::from_bytes(&[]), None);
    }
}
