//! Which sidecars a round has.

/// The workloads that have a sidecar.
pub(super) const SIDECARS: [&str; 2] = ["gateway", "ratings"];

/// Which sidecars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plane {
    /// `tulle-proxy`.
    Tulle,
    /// Envoy.
    Envoy,
    /// None.
    None,
}

impl Plane {
    /// The peer's name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tulle => crate::results::stats::SUBJECT,
            Self::Envoy => "envoy",
            Self::None => "none",
        }
    }
}
