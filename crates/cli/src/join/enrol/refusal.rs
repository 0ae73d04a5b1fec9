//! Reasons why a host gets no certificate, in words for its operator.

use crate::client::{failure, is_away};
use crate::failure::Failure;
use crate::join::kept::Kept;
use std::net::SocketAddr;
use tonic::{Code, Status};
use tulle_model::identity::SpiffeId;

/// Why there is no certificate.
pub(super) enum Refused {
    /// The controller says so, or is not there.
    Rpc(Status),
    /// Something else.
    Here(Failure),
}

impl Refused {
    /// The controller refuses the token or the identity.
    pub(super) fn is_denied(&self) -> bool {
        matches!(self, Self::Rpc(status) if status.code() == Code::PermissionDenied)
    }

    /// No controller has answered.
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::Rpc(status) if is_away(status))
    }

    pub(super) fn failure(self) -> Failure {
        match self {
            Self::Rpc(status) => failure("the controller gives no certificate", &status),
            Self::Here(failure) => failure,
        }
    }
}

/// Why this host's certificate is renewed no more.
pub(crate) struct Over {
    /// Why this host is no longer of the mesh.
    pub(crate) failure: Failure,
    /// Whether the controller says so. Where only the certificate has ended what this host knows is kept: the clock may be
    /// wrong.
    pub(crate) is_dismissed: bool,
}

/// Why this host is no longer of the mesh. Only a new token helps.
pub(super) fn over(identity: &SpiffeId, refused: Refused, out: bool) -> Over {
    let why = match refused {
        Refused::Rpc(status) if out => status.message().to_owned(),
        _ => "its certificate expired before the controller was there to renew it".to_owned(),
    };
    Over {
        failure: Failure::new(format!("{identity} is no longer a host of the mesh"))
            .because(why)
            .fix(new_token(identity)),
        is_dismissed: out,
    }
}

/// Why a host that has never joined needs a token.
pub(crate) fn never_joined(kept: &Kept) -> Failure {
    Failure::usage("this host has no identity yet, and no token to get one")
        .because(format!("{} does not exist", kept.file().display()))
        .fix("set TULLE_TOKEN or --token-file; `tulle token create node/NAME` on the controller's host makes a token")
}

pub(super) fn new_token(identity: &SpiffeId) -> String {
    format!(
        "`tulle token create node/{}` on the controller's host, and join again with its token",
        identity.name()
    )
}

/// Adds advice to a failure to obtain a certificate.
pub(super) fn advise(failure: Failure, address: SocketAddr) -> Failure {
    if failure.to_string().contains("UnknownIssuer") {
        return Failure::new(format!(
            "the controller at {address} belongs to another mesh"
        ))
        .because("the certificate authority of its mesh has not the fingerprint given")
        .fix("compare --controller and --ca-fingerprint with what `tulle token create` printed");
    }
    failure.fix("`tulle token create node/NAME` on the controller's host prints the command with a new token")
}
