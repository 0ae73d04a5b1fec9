//! Times of certificates as the system counts them.

use std::time::{Duration, SystemTime};
use x509_parser::time::ASN1Time;

/// Times before 1970 count as 1970: no such certificate is valid today either way.
pub(crate) fn system_time(time: ASN1Time) -> SystemTime {
    let seconds = u64::try_from(time.timestamp()).unwrap_or(0);
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_secs(seconds))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}
