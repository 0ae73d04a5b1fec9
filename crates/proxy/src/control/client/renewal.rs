//! The age at which a certificate is renewed, and the next renewal: due, or under way.

use super::error::ControlError;
use crate::control::random::fraction;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Sleep;
use tulle_tls::enrol::Enrolled;

/// All proxies renew their certificates within this time when a root is replaced.
const SPREAD: Duration = Duration::from_secs(2);

/// A certificate that was signed for this proxy.
pub(super) struct Signed {
    pub(super) enrolled: Enrolled,
    /// The age at which it is to be renewed, where the controller named one.
    pub(super) renew_after: Option<Duration>,
}

/// A request for a certificate, under way.
pub(super) type Signing = Pin<Box<dyn Future<Output = Result<Signed, ControlError>> + Send>>;

/// The next renewal of the certificate. It runs beside the stream: an issuer that does not answer
/// must not keep configuration from this proxy.
pub(super) enum Renewal {
    Due(Pin<Box<Sleep>>),
    UnderWay(Signing),
}

impl Renewal {
    pub(super) fn after(wait: Duration) -> Self {
        Self::Due(Box::pin(tokio::time::sleep(wait)))
    }

    /// Returns `None` when it is time to ask, and later the answer. It may be dropped and called
    /// again.
    pub(super) async fn step(&mut self) -> Option<Result<Signed, ControlError>> {
        match self {
            Self::Due(sleep) => {
                sleep.as_mut().await;
                None
            }
            Self::UnderWay(signing) => Some(signing.as_mut().await),
        }
    }
}

/// Returns the age at which a certificate is renewed: the one that the controller named, or two thirds of its
/// lifetime, less up to a tenth of the lifetime (of the named age, if that is less) so that proxies spread.
/// `fraction` is a random number from 0 to 1.
pub(super) fn renewal_age(lifetime: Duration, named: Option<Duration>, fraction: f32) -> Duration {
    // The root may end before the certificate would: the named age can be longer than what is left.
    let latest = lifetime / 3 * 2;
    let age = named.map_or(latest, |named| named.min(latest));
    let spread = match named {
        Some(_) => age,
        None => lifetime,
    };
    age.saturating_sub(spread.mul_f64(f64::from(fraction) * 0.1))
}

/// Reads a number of seconds of the controller.
pub(super) fn seconds(number: i64) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or_default())
}

/// Reads the age at which certificates are renewed; 0: the controller names none.
pub(super) fn named_age(number: i64) -> Option<Duration> {
    Some(seconds(number)).filter(|age| !age.is_zero())
}

/// Returns a random time within which all proxies renew at once.
pub(super) fn soon() -> Duration {
    SPREAD.mul_f64(f64::from(fraction()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_renewed_in_time_and_not_all_at_once() {
        let hours = Duration::from_hours;
        for (named, fraction, expected) in [
            (None, 0.0, hours(60)),
            (None, 1.0, hours(51)),
            (Some(hours(10)), 0.0, hours(10)),
            (Some(hours(10)), 1.0, hours(9)),
            // A root that ends soon shortens the certificates it signs.
            (Some(hours(80)), 0.0, hours(60)),
        ] {
            assert_eq!(renewal_age(hours(90), named, fraction), expected);
        }
    }
}
