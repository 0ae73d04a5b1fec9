//! Converts revocations between the messages of the contract and the model.

use crate::v1::Revocation;
use tulle_model::manifest::RevocationSpec;
use tulle_model::resource::Revoked;

impl Revocation {
    /// The answer about this, which revokes that.
    #[must_use]
    pub fn from_spec(what: &RevocationSpec, revoked: &Revoked) -> Self {
        let list = revoked.issued.iter().next();
        let (issuer, listed) = list.map_or_else(Default::default, |(issuer, serials)| {
            (issuer.clone(), serials.len())
        });
        Self {
            identity: what.identity.clone(),
            serial: what.serial.clone(),
            reason: what.reason.clone(),
            issuer,
            listed: u32::try_from(listed).unwrap_or(u32::MAX),
            ..Self::default()
        }
    }

    /// Returns the revocation that is asked for.
    #[must_use]
    pub fn asked(self) -> RevocationSpec {
        RevocationSpec {
            identity: self.identity,
            serial: self.serial,
            crl: self.crl,
            reason: self.reason,
        }
    }
}
