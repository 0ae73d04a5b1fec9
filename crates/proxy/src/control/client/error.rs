//! Errors of the client: why the controller could not be used.

use std::fmt;
use std::time::Duration;

/// Longest wait that a controller may ask for.
const LONGEST_SPREAD: Duration = Duration::from_secs(10);

/// Why the controller could not be used. The proxy keeps working with the configuration it has.
#[derive(Debug)]
pub(super) enum ControlError {
    /// The controller's address has no listener.
    Away(String),
    Connect(String),
    Token(String),
    Refused(Box<tonic::Status>),
    Certificate(String),
    Ended,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(why) | Self::Connect(why) => write!(f, "cannot reach the controller: {why}"),
            Self::Token(why) => write!(
                f,
                "no certificate and no token to ask for one: {why}; `tulle token create` makes one \
                 for a proxy outside a cluster"
            ),
            Self::Refused(status) => {
                write!(
                    f,
                    "the controller refused: {}: {}",
                    status.code(),
                    status.message()
                )
            }
            Self::Certificate(why) => write!(f, "the certificate is not usable: {why}"),
            Self::Ended => f.write_str("the controller ended the stream"),
        }
    }
}

impl ControlError {
    /// Whether the controller has decided against this proxy. Then nobody else may decide for it.
    pub(super) fn is_verdict(&self) -> bool {
        use tonic::Code::{FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated};
        let Self::Refused(status) = self else {
            return false;
        };
        matches!(
            status.code(),
            FailedPrecondition | InvalidArgument | PermissionDenied | Unauthenticated
        )
    }

    /// The time within which a controller that ends wants its proxies back.
    pub(super) fn spread(&self) -> Option<Duration> {
        let Self::Refused(status) = self else {
            return None;
        };
        let told = status.metadata().get(tulle_api::RECONNECT_WITHIN)?;
        let millis = told.to_str().ok()?.parse().ok()?;
        Some(Duration::from_millis(millis).min(LONGEST_SPREAD))
    }
}

impl From<tonic::Status> for ControlError {
    fn from(status: tonic::Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

/// Returns an error with its causes, because tonic's own text is just "transport error".
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
