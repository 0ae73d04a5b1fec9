//! DNS messages: queries of applications and answers of resolvers, neither to be trusted.
#![no_main]

use libfuzzer_sys::fuzz_target;

// All are pure; depending on their crate would put all of the proxy under the sanitizer.
#[allow(dead_code)]
#[path = "../../crates/proxy/src/codec/host.rs"]
mod host;
#[allow(dead_code)]
#[path = "../../crates/proxy/src/codec/dns_message/mod.rs"]
mod message;

use message::{Code, Query, age, lifetime, pointed, refusal};
use std::net::{IpAddr, Ipv4Addr};

fuzz_target!(|data: &[u8]| {
    if let Ok(query) = Query::read(data) {
        assert!((512..=message::UDP_LIMIT).contains(&query.udp_limit));
        let sent = query.forwarded(data, 0x1234);
        assert_eq!(sent.len(), data.len());
        let again = Query::read(&sent).unwrap();
        assert_eq!(again.name, query.name);
        assert_eq!(again.key(&sent), query.key(data));
        // Our own answers match it, are read to their end, and match no other query.
        let id = u16::from_be_bytes([data[0], data[1]]);
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        for answer in [
            query.addresses(data, &[address], 5),
            query.pointer(data, "a.b", 5),
            query.refusal(data, Code::Failed),
            query.truncated(data),
        ] {
            assert!(query.is_answered_by(data, id, &answer));
            assert!(!query.is_answered_by(data, !id, &answer));
            if let Some(held) = lifetime(&answer) {
                assert_eq!(held.seconds, 5);
            }
        }
        if let Some(name) = &query.name {
            assert!(name.len() <= 255);
            let _ = pointed(name);
        }
        // The message is taken as the answer to another query.
        let mut adopted = data.to_vec();
        query.adopt(&sent, &mut adopted);
        assert_eq!(adopted.len(), data.len());
    }
    let _ = refusal(data, Code::Malformed);
    if let Some(held) = lifetime(data) {
        let mut older = data.to_vec();
        age(&mut older, &held.places, held.seconds - 1);
        assert_eq!(lifetime(&older).unwrap().seconds, 1);
        age(&mut older, &held.places, held.seconds);
        assert_eq!(lifetime(&older), None);
    }
});
