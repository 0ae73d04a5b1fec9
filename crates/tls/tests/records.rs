//! Sessions: data, key updates, tickets, closing, and refusals. Plain rustls is the other end
//! wherever the wire format matters.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use rustls::{AlertDescription, Error as TlsError};
use tulle_tls::testing::TestCa;
use tulle_tls::{Alpn, MAX_PLAINTEXT_BYTES, MAX_RECORD_BYTES, OpenError, Opened, SealError};

/// Returns bytes that show when some are lost, repeated or out of order.
fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|n| (n % 251) as u8 ^ (n >> 11) as u8)
        .collect()
}

/// Our client with a plain server, and our server with a plain client, both connected.
fn with_plain_peers() -> [(End, Plain); 2] {
    let ca = TestCa::new("mesh");
    let mut client = End::client(&context(&ca, REVIEWS), &[RATINGS], &[]);
    let mut plain_server = plain_server(&ca.issue(RATINGS));
    assert_eq!(connect_plain(&mut client, &mut plain_server), None);
    let mut server = End::server(&context(&ca, RATINGS));
    let mut plain_client = plain_client(Some(&ca.issue(REVIEWS)), &[b"http/1.1"]);
    assert_eq!(connect_plain(&mut server, &mut plain_client), None);
    client.session();
    assert_eq!(server.session().alpn(), Alpn::Http11);
    [(client, plain_server), (server, plain_client)]
}

/// Data both ways between our end and a plain one.
fn exchange(own: &mut End, plain: &mut Plain, data: &[u8]) {
    plain.write(data);
    own.seal(data);
    assert_eq!(connect_plain(own, plain), None);
    assert!(plain.read() == data, "{} bytes to rustls", data.len());
    let (read, closed) = own.read().unwrap();
    assert!(read == data, "{} bytes from rustls", data.len());
    assert!(!closed);
}

#[test]
fn data_passes_to_and_from_plain_rustls() {
    for (mut own, mut plain) in with_plain_peers() {
        for len in [1, 2, 100, 16_383, 16_384, 16_385, 40_000] {
            exchange(&mut own, &mut plain, &pattern(len));
        }
    }
}

#[test]
fn big_data_passes_between_our_ends_in_any_split() {
    let ca = TestCa::new("mesh");
    let (mut client, mut server) = pair(&ca);
    let data = pattern(3_000_000);
    client.seal(&data);
    let records = data.len().div_ceil(MAX_PLAINTEXT_BYTES);
    assert_eq!(client.outgoing.len(), data.len() + records * 22);
    let mut received = Vec::new();
    let mut size = 1;
    while !client.outgoing.is_empty() {
        let n = size.min(client.outgoing.len());
        server.incoming.extend(client.outgoing.drain(..n));
        received.extend(server.read().unwrap().0);
        assert!(server.incoming.len() < MAX_RECORD_BYTES);
        size = size * 3 % 60_000 + 1;
    }
    assert!(received == data);
}

#[test]
fn parts_are_sealed_as_one() {
    let ca = TestCa::new("mesh");
    let (mut client, mut server) = pair(&ca);
    let parts = [pattern(300), Vec::new(), pattern(20_000), pattern(5)];
    let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    client
        .session
        .as_mut()
        .unwrap()
        .seal_vectored(&slices, &mut client.outgoing)
        .unwrap();
    assert_eq!(client.outgoing.len(), 20_305 + 2 * 22);
    deliver(&mut client, &mut server);
    assert!(server.read().unwrap().0 == parts.concat());
    // Without data there is no record.
    client.seal(b"");
    assert!(client.outgoing.is_empty());
}

#[test]
fn rustls_understands_our_key_updates() {
    for (mut own, mut plain) in with_plain_peers() {
        own.session().set_records_per_key(3);
        for len in [10, 50_000, 10, 60_000, 1] {
            exchange(&mut own, &mut plain, &pattern(len));
        }
        // This also asks rustls for new keys; it answers with its next data.
        let mut out = std::mem::take(&mut own.outgoing);
        own.session().refresh_keys(&mut out).unwrap();
        own.outgoing = out;
        for _ in 0..3 {
            exchange(&mut own, &mut plain, b"after");
        }
    }
}

#[test]
fn we_answer_the_key_updates_of_rustls() {
    for (mut own, mut plain) in with_plain_peers() {
        for _ in 0..5 {
            plain.connection.refresh_traffic_keys().unwrap();
            exchange(&mut own, &mut plain, &pattern(20_000));
        }
    }
}

#[test]
fn our_ends_change_keys_by_themselves() {
    let ca = TestCa::new("mesh");
    let (mut client, mut server) = pair(&ca);
    for end in [&mut client, &mut server] {
        end.session().set_records_per_key(5);
    }
    let data = pattern(500_000);
    for _ in 0..3 {
        client.seal(&data);
        server.seal(&data);
        deliver(&mut client, &mut server);
        deliver(&mut server, &mut client);
        assert!(server.read().unwrap().0 == data);
        assert!(client.read().unwrap().0 == data);
    }
}

#[test]
fn many_requests_for_new_keys_cost_one_answer() {
    let ca = TestCa::new("mesh");
    let (mut client, mut server) = pair(&ca);
    for _ in 0..10 {
        let mut out = std::mem::take(&mut client.outgoing);
        client.session().refresh_keys(&mut out).unwrap();
        client.outgoing = out;
    }
    deliver(&mut client, &mut server);
    server.read().unwrap();
    server.seal(b"x");
    // One key update (5 + 22 bytes) and one record of data (1 + 22).
    assert_eq!(server.outgoing.len(), 27 + 23);
    client.read().unwrap();
    deliver(&mut server, &mut client);
    assert_eq!(client.read().unwrap().0, b"x");
}

#[test]
fn a_flood_without_data_is_refused() {
    let ca = TestCa::new("mesh");
    let (mut client, mut server) = pair(&ca);
    for _ in 0..1000 {
        let mut out = std::mem::take(&mut client.outgoing);
        client.session().refresh_keys(&mut out).unwrap();
        client.outgoing = out;
    }
    deliver(&mut client, &mut server);
    assert_eq!(server.read(), Err(OpenError::TooManyWithoutData));
    assert_eq!(server.read(), Err(OpenError::AlreadyFailed));
}

#[test]
fn closing_is_clean_and_one_sided() {
    for (mut own, mut plain) in with_plain_peers() {
        own.seal(b"last words");
        let mut out = std::mem::take(&mut own.outgoing);
        own.session().close_notify(&mut out);
        assert_eq!(
            own.session().seal(b"more", &mut out),
            Err(SealError::Closed)
        );
        own.outgoing = out;
        // The other side may still send.
        plain.write(b"answer");
        plain.connection.send_close_notify();
        assert_eq!(connect_plain(&mut own, &mut plain), None);
        assert_eq!(plain.read(), b"last words");
        assert!(plain.is_closed());
        assert_eq!(own.read(), Ok((b"answer".to_vec(), true)));
        assert_eq!(own.read(), Ok((Vec::new(), true)));
    }
}

#[test]
fn rustls_hears_why_we_refuse() {
    for (mut own, mut plain) in with_plain_peers() {
        own.read().unwrap();
        plain.write(b"data");
        plain.connection.write_tls(&mut own.incoming).unwrap();
        let last = own.incoming.len() - 1;
        own.incoming[last] ^= 1;
        let error = own.read().unwrap_err();
        assert_eq!(error, OpenError::NotAuthentic);
        let mut out = std::mem::take(&mut own.outgoing);
        own.session().abort(&error, &mut out);
        own.outgoing = out;
        let told = connect_plain(&mut own, &mut plain);
        let expected = TlsError::AlertReceived(AlertDescription::BadRecordMac);
        assert_eq!(told, Some(expected));
    }
}

#[test]
fn a_fatal_alert_is_named() {
    let ca = TestCa::new("mesh");
    let (mut client, mut server) = pair(&ca);
    let mut out = Vec::new();
    client
        .session()
        .abort(&OpenError::TooManyWithoutData, &mut out);
    server.incoming.extend(out);
    let error = server.read().unwrap_err();
    let alert = AlertDescription::UnexpectedMessage;
    assert_eq!(error, OpenError::PeerAlert(alert));
    assert!(error.to_string().contains("UnexpectedMessage"));
}

#[test]
fn what_is_no_encrypted_record_is_refused() {
    let ca = TestCa::new("mesh");
    let cases: [(&[u8], OpenError); 8] = [
        (&[22, 3, 3, 0, 1, 0], OpenError::UnexpectedRecord(22)),
        (&[20, 3, 3, 0, 1, 1], OpenError::UnexpectedRecord(20)),
        (&[21, 3, 3, 0, 2, 1, 0], OpenError::UnexpectedRecord(21)),
        (b"GET /", OpenError::UnexpectedRecord(b'G')),
        (&[23, 3, 4, 0, 20], OpenError::UnexpectedRecord(23)),
        (&[23, 3, 3, 0, 0], OpenError::RecordTooShort(0)),
        (&[23, 3, 3, 0, 16], OpenError::RecordTooShort(16)),
        (&[23, 3, 3, 65, 1], OpenError::RecordTooLarge(16_641)),
    ];
    for (bytes, error) in cases {
        let (_, mut server) = pair(&ca);
        server.incoming.extend_from_slice(bytes);
        assert_eq!(server.read(), Err(error), "{bytes:?}");
    }
    // With less than a header there is no verdict.
    let (_, mut server) = pair(&ca);
    let opened = server.session().open(&mut [23, 3, 3, 0]).unwrap();
    assert_eq!(opened, Opened::NeedsMore);
}

#[test]
fn records_may_not_be_repeated_dropped_or_reordered() {
    let ca = TestCa::new("mesh");
    let two = |end: &mut End| {
        end.seal(b"one");
        let first = std::mem::take(&mut end.outgoing);
        end.seal(b"two");
        (first, std::mem::take(&mut end.outgoing))
    };
    for order in 0..3 {
        let (mut client, mut server) = pair(&ca);
        let (first, second) = two(&mut client);
        server.incoming = match order {
            0 => [first.clone(), first].concat(),
            1 => second,
            _ => [second, first].concat(),
        };
        assert_eq!(server.read(), Err(OpenError::NotAuthentic), "{order}");
    }
}

#[test]
fn any_changed_byte_is_noticed() {
    let ca = TestCa::new("mesh");
    for at in 0..5 + 4 + 17 {
        let (mut client, mut server) = pair(&ca);
        client.seal(b"data");
        client.outgoing[at] ^= 4;
        deliver(&mut client, &mut server);
        let read = server.read();
        // A longer length waits for bytes that never come; everything else is refused.
        assert!(read.is_err() || read == Ok((Vec::new(), false)), "{at}");
    }
}

#[test]
fn random_bytes_never_panic() {
    let ca = TestCa::new("mesh");
    let mut seed = 0x1234_5678_9abc_def1_u64;
    for _ in 0..200 {
        let (_, mut server) = pair(&ca);
        for _ in 0..40 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            server.incoming.extend_from_slice(&seed.to_le_bytes());
        }
        server.incoming.splice(..5, [23, 3, 3, 0, 100]);
        assert!(server.read().is_err());
    }
}
