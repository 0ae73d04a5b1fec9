//! The list of a host's authority: whatever the bytes, reading ends, and what is read is a list that is
//! written as the same list.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tulle_tls::host_authority::{HostConstraint, MAX_IDENTITIES};

fuzz_target!(|bytes: &[u8]| {
    let Ok(read) = HostConstraint::parse(bytes) else {
        return;
    };
    assert!((1..=MAX_IDENTITIES).contains(&read.identities.len()));
    assert!(read.host.node().is_some());
    let domain = read.host.trust_domain();
    for id in &read.identities {
        assert_eq!(id.as_str(), format!("spiffe://{domain}/svc/{}", id.name()));
    }
    let written = read.to_der().expect("a list that was read can be written");
    assert_eq!(HostConstraint::parse(&written), Ok(read));
});
