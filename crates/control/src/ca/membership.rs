//! Serial numbers that say by which host a certificate came: so that a certificate that a host asked
//! for, its own or one of a sidecar there, is worth nothing once the host has been removed, though
//! another host may have the same identities, or come to have its name.

use super::{AuthorityError, crypto};
use aws_lc_rs::rand;
use rcgen::SerialNumber;

/// Bytes of a serial number (RFC 5280 4.1.2.2 allows 20).
const SERIAL_BYTES: usize = 16;
/// The first byte of one that names a membership. All others that this authority gives begin with 0x40 to
/// 0x7f: positive, too.
const MARK: u8 = 0x20;
const ID_BYTES: usize = 7;

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
            [MARK, rest @ ..] if serial.len() == SERIAL_BYTES => {
                Self::from_bytes(rest.get(..ID_BYTES)?)
            }
            _ => None,
        }
    }
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Membership({})", tulle_model::hex(&self.0))
    }
}

/// A serial number: 126 random bits, or a membership and 64 of them.
pub(super) fn serial(membership: Option<Membership>) -> Result<SerialNumber, AuthorityError> {
    let mut bytes = [0; SERIAL_BYTES];
    random(&mut bytes)?;
    match membership {
        None => bytes[0] = (bytes[0] & 0x7f) | 0x40,
        Some(Membership(id)) => {
            bytes[0] = MARK;
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
            // One octet more and the number would be another issuer's.
            let longer = [serial.as_ref(), &[0]].concat();
            assert_eq!(Membership::of_serial(&longer), None);
        }
        assert_eq!(Membership::of_serial(&[]), None);
        assert_eq!(Membership::from_bytes(one.as_bytes()), Some(one));
        assert_eq!(Membership::from_bytes(&[]), None);
    }
}
