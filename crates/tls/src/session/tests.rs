//! Tests of messages that plain rustls never sends: cut and joined in odd ways, or forbidden.

use super::*;
use crate::testing::TestCa;
use crate::{Context, Handshake, Progress};
use std::sync::Arc;

const REVIEWS: &str = "spiffe://tulle.local/svc/reviews";
const RATINGS: &str = "spiffe://tulle.local/svc/ratings";

struct Mesh {
    client: Context,
    server: Context,
}

impl Mesh {
    fn new() -> Self {
        let ca = TestCa::new("mesh");
        let context = |id| Context::new(&ca.identity(id), &ca.bundle()).unwrap();
        Self {
            client: context(REVIEWS),
            server: context(RATINGS),
        }
    }

    /// Returns client and server, and the server's bytes right after the handshake: its tickets.
    fn connect(&self) -> (Session, Session, Vec<u8>) {
        let expected: Arc<[_]> = [SpiffeId::parse(RATINGS).unwrap()].into();
        let mut client = Handshake::client(&self.client, expected, &[Alpn::Tulle1]).unwrap();
        let mut server = Handshake::server(&self.server).unwrap();
        let (mut up, mut down) = (Vec::new(), Vec::new());
        let (mut a, mut b) = (None, None);
        while a.is_none() || b.is_none() {
            if a.is_none()
                && let Progress::Done(session) = client.advance(&mut down, &mut up).unwrap()
            {
                a = Some(session);
            }
            if b.is_none()
                && let Progress::Done(session) = server.advance(&mut up, &mut down).unwrap()
            {
                b = Some(session);
            }
        }
        (*a.unwrap(), *b.unwrap(), down)
    }
}

fn seal(session: &mut Session, content_type: u8, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let fill = |out: &mut Vec<u8>| out.extend_from_slice(text);
    session.sending.seal(content_type, &mut out, fill).unwrap();
    out
}

fn open_all(session: &mut Session, records: &mut [u8]) -> Result<(), OpenError> {
    let mut at = 0;
    while at < records.len() {
        match session.open(&mut records[at..])? {
            Opened::Nothing { consumed } => at += consumed,
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

/// Returns the server's ticket as a message, twice, taken off the wire behind the client's back.
fn tickets(client: &mut Session, mut records: Vec<u8>) -> Vec<u8> {
    let mut messages = Vec::new();
    while let Some(length) = record_length(&records).unwrap() {
        let inner = client.receiving.open(&mut records[..length]).unwrap();
        assert_eq!(inner.content_type, content::HANDSHAKE);
        messages.extend_from_slice(&records[HEADER_BYTES..][..inner.length]);
        records.drain(..length);
    }
    messages.repeat(2)
}

#[test]
fn tickets_may_share_a_record_or_span_several() {
    for size in [usize::MAX, 1000, 100, 61] {
        let mesh = Mesh::new();
        let (mut client, mut server, sent) = mesh.connect();
        let messages = tickets(&mut client, sent);
        for part in messages.chunks(size.min(messages.len())) {
            let mut record = seal(&mut server, content::HANDSHAKE, part);
            open_all(&mut client, &mut record).unwrap();
        }
        assert_eq!(client.tickets, 2, "{size}");
        assert_eq!(client.partial.capacity(), 0);
        assert!(mesh.connect().0.resumed(), "{size}");
    }
}

#[test]
fn tickets_beyond_the_limit_are_dropped() {
    let (mut client, mut server, sent) = Mesh::new().connect();
    let messages = tickets(&mut client, sent);
    for _ in 0..MAX_TICKETS {
        let mut record = seal(&mut server, content::HANDSHAKE, &messages);
        open_all(&mut client, &mut record).unwrap();
    }
    assert_eq!(client.tickets, 2 * MAX_TICKETS);
}

#[test]
fn messages_out_of_place_are_refused() {
    let ticket_header = [NEW_SESSION_TICKET, 0, 0, 0];
    let finished = [20, 0, 0, 0];
    let huge = [NEW_SESSION_TICKET, 0, 0x80, 1];
    let update = [KEY_UPDATE, 0, 0, 1, 0];
    let update_and_more = [KEY_UPDATE, 0, 0, 1, 0, KEY_UPDATE];
    let cases: [(u8, &[u8], &str); 11] = [
        (content::HANDSHAKE, &ticket_header, "ticket"),
        (content::HANDSHAKE, &finished, "unexpected_message"),
        (content::HANDSHAKE, &huge, "message_too_large"),
        (content::HANDSHAKE, &update_and_more, "malformed"),
        (content::HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2], "malformed"),
        (content::HANDSHAKE, &[KEY_UPDATE, 0, 0, 0], "malformed"),
        (content::HANDSHAKE, &[], "malformed"),
        (content::ALERT, &[2], "malformed"),
        (content::ALERT, &[2, 40], "peer_alert"),
        (content::CHANGE_CIPHER_SPEC, &[1], "unexpected_record"),
        (0, &[0; 30], "malformed"),
    ];
    for (content_type, text, code) in cases {
        let (mut client, mut server, sent) = Mesh::new().connect();
        tickets(&mut client, sent);
        let mut record = seal(&mut server, content_type, text);
        let error = open_all(&mut client, &mut record).unwrap_err();
        assert_eq!(error.code(), code, "{content_type} {text:?}");
        // Later updates are refused, too.
        let mut record = seal(&mut server, content::HANDSHAKE, &update);
        assert!(client.open(&mut record).is_err());
    }
    // Tickets are for clients.
    let (mut client, mut server, _) = Mesh::new().connect();
    let mut record = seal(&mut client, content::HANDSHAKE, &ticket_header);
    let error = open_all(&mut server, &mut record).unwrap_err();
    assert_eq!(error, OpenError::UnexpectedMessage(NEW_SESSION_TICKET));
}

#[test]
fn data_inside_a_message_is_refused() {
    let (mut client, mut server, _) = Mesh::new().connect();
    let mut record = seal(&mut client, content::HANDSHAKE, &[KEY_UPDATE, 0]);
    open_all(&mut server, &mut record).unwrap();
    let mut record = seal(&mut client, content::APPLICATION_DATA, b"data");
    assert_eq!(server.open(&mut record).unwrap_err().code(), "malformed");
}

#[test]
fn padding_is_removed_and_empty_data_tolerated_within_limits() {
    let (mut client, mut server, _) = Mesh::new().connect();
    // It is sealed as type 0, so the type and the padding are part of the text.
    let mut padded = b"data".to_vec();
    padded.push(content::APPLICATION_DATA);
    padded.resize(1000, 0);
    let mut record = seal(&mut client, 0, &padded);
    let Opened::Data {
        consumed,
        plaintext,
    } = server.open(&mut record).unwrap()
    else {
        panic!("no data");
    };
    assert_eq!(consumed, record.len());
    assert_eq!(&record[plaintext], b"data");
    for _ in 0..2 {
        for _ in 0..MAX_WITHOUT_DATA {
            let mut record = seal(&mut client, content::APPLICATION_DATA, b"");
            open_all(&mut server, &mut record).unwrap();
        }
        // Data restarts the count.
        let mut record = seal(&mut client, content::APPLICATION_DATA, b"data");
        assert!(matches!(server.open(&mut record), Ok(Opened::Data { .. })));
    }
    for _ in 0..MAX_WITHOUT_DATA {
        let mut record = seal(&mut client, content::APPLICATION_DATA, b"");
        open_all(&mut server, &mut record).unwrap();
    }
    let mut record = seal(&mut client, content::APPLICATION_DATA, b"");
    let error = server.open(&mut record).unwrap_err();
    assert_eq!(error, OpenError::TooManyWithoutData);
}

#[test]
fn used_up_record_numbers_end_the_session() {
    let (mut client, _, _) = Mesh::new().connect();
    client.set_records_per_key(u64::MAX);
    client.sending.set_sequence(u64::MAX - 1);
    let mut out = Vec::new();
    client.seal(b"last", &mut out).unwrap();
    let length = out.len();
    assert_eq!(client.seal(b"more", &mut out), Err(SealError::Exhausted));
    assert_eq!(out.len(), length, "no plaintext is left behind");
    assert_eq!(client.seal(b"more", &mut out), Err(SealError::Closed));
}
