//! Tests with whole messages: what is asked, our own answers, and how long others are kept.

use super::*;

fn name(text: &str) -> Vec<u8> {
    let labels = text.split('.').filter(|l| !l.is_empty());
    let mut out: Vec<u8> = labels
        .flat_map(|l| [&[u8::try_from(l.len()).unwrap()][..], l.as_bytes()].concat())
        .collect();
    out.push(0);
    out
}

fn query(text: &str, kind: u16) -> Vec<u8> {
    let mut out = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    out.extend(name(text));
    out.extend(kind.to_be_bytes());
    out.extend(IN.to_be_bytes());
    out
}

fn with_edns(mut query: Vec<u8>, size: u16) -> Vec<u8> {
    query[11] = 1;
    query.push(0);
    query.extend(OPT.to_be_bytes());
    query.extend(size.to_be_bytes());
    query.extend([0, 0, 0x80, 0, 0, 0]);
    query
}

fn push_record(out: &mut Vec<u8>, kind: u16, ttl: u32, data: &[u8]) {
    out.extend(SAME_NAME);
    out.extend(kind.to_be_bytes());
    out.extend(IN.to_be_bytes());
    out.extend(ttl.to_be_bytes());
    out.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
    out.extend(data);
}

#[test]
fn what_is_asked() {
    let read = |bytes: &[u8]| Query::read(bytes).unwrap();
    let plain = read(&query("Ratings.Default", A));
    assert_eq!(plain.name.as_deref(), Some("ratings.default"));
    assert_eq!((plain.kind, plain.udp_limit), (QuestionType::V4, 512));
    assert_eq!(read(&query("a", AAAA)).kind, QuestionType::V6);
    assert_eq!(read(&query("a", 16)).kind, QuestionType::Other);
    assert_eq!(read(&query("a b", A)).name, None);
    assert_eq!(read(&query("", 2)).name.as_deref(), Some(""));
    assert_eq!(read(&with_edns(query("a", A), 1232)).udp_limit, 1232);
    assert_eq!(read(&with_edns(query("a", A), 60_000)).udp_limit, UDP_LIMIT);
    assert_eq!(read(&with_edns(query("a", A), 1)).udp_limit, 512);
    // The question is the same in another case, but not with other flags.
    let key = |bytes: &[u8]| read(bytes).key(bytes);
    assert_eq!(key(&query("A.b", A)), key(&query("a.B", A)));
    assert_ne!(key(&query("a.b", A)), key(&query("a.b", AAAA)));
    assert_ne!(
        key(&query("a.b", A)),
        key(&with_edns(query("a.b", A), 1232))
    );
}

#[test]
fn what_is_no_query() {
    let mut bytes = query("a", A);
    for end in 0..HEADER {
        assert_eq!(Query::read(&bytes[..end]), Err(Unreadable::Ignored));
    }
    for end in HEADER..bytes.len() {
        let malformed = Err(Unreadable::Answered(Code::Malformed));
        assert_eq!(Query::read(&bytes[..end]), malformed, "{end}");
    }
    bytes[2] = 0x81;
    assert_eq!(Query::read(&bytes), Err(Unreadable::Ignored));
    bytes[2] = 0x28;
    let unknown = Err(Unreadable::Answered(Code::NotImplemented));
    assert_eq!(Query::read(&bytes), unknown);
    let mut two = query("a", A);
    two[5] = 2;
    assert!(Query::read(&two).is_err());
    // A name that points to itself.
    let mut pointer = query("a", A);
    pointer[HEADER] = 0xc0;
    pointer[HEADER + 1] = 12;
    assert!(Query::read(&pointer).is_err());
    let long = query(&"a.".repeat(128), A);
    assert!(Query::read(&long).is_err());
}

#[test]
fn answers_of_ours() {
    let bytes = with_edns(query("RaTings", A), 1232);
    let query = Query::read(&bytes).unwrap();
    let both: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
    let answer = query.addresses(&bytes, &both, 5);
    assert_eq!(answer[..2], [0xab, 0xcd]);
    assert_eq!(answer[2..4], [0x81, 0x80]);
    assert_eq!(counts(&answer), Some([1, 1, 0, 1]));
    assert_eq!(
        answer[HEADER..query.question],
        bytes[HEADER..query.question]
    );
    let record = record(&answer, query.question).unwrap();
    assert_eq!(record.kind, A);
    assert_eq!(answer[record.data..record.end], [10, 0, 0, 1]);
    assert_eq!(lifetime(&answer).unwrap().seconds, 5);
    assert!(query.is_answered_by(&bytes, 0xabcd, &answer));
    assert!(!query.is_answered_by(&bytes, 0xabce, &answer));
    let mut other = answer.clone();
    other[HEADER + 1] = b'x';
    assert!(!query.is_answered_by(&bytes, 0xabcd, &other));
    assert!(is_truncated(&query.truncated(&bytes)));
    assert_eq!(query.refusal(&bytes, Code::Failed)[3] & 15, 2);
    assert_eq!(lifetime(&query.refusal(&bytes, Code::Ok)), None);
    assert_eq!(refusal(&bytes, Code::Malformed).len(), HEADER);
}

#[test]
fn how_long_answers_hold() {
    let mut answer = query("a.test", A);
    answer[2] = 0x81;
    answer[7] = 2;
    push_record(&mut answer, 5, 300, &SAME_NAME);
    push_record(&mut answer, A, 60, &[192, 0, 2, 1]);
    let held = lifetime(&answer).unwrap();
    assert_eq!((held.seconds, held.places.len()), (60, 2));
    let mut older = answer.clone();
    age(&mut older, &held.places, 50);
    assert_eq!(lifetime(&older).unwrap().seconds, 10);
    age(&mut older, &held.places, 60);
    assert_eq!(lifetime(&older), None, "no longer true");
    answer.truncate(answer.len() - 1);
    assert_eq!(lifetime(&answer), None, "cut off");

    // A name that does not exist is kept as long as its zone says.
    let mut nothing = query("a.test", A);
    nothing[2] = 0x81;
    nothing[3] = 3;
    assert_eq!(lifetime(&nothing), None, "nothing says for how long");
    nothing[9] = 1;
    let mut soa = vec![0, 0];
    soa.extend([0; 16]);
    soa.extend(30u32.to_be_bytes());
    push_record(&mut nothing, SOA, 900, &soa);
    let held = lifetime(&nothing).unwrap();
    assert_eq!(held.seconds, 30);
    let mut older = nothing.clone();
    age(&mut older, &held.places, 20);
    assert_eq!(lifetime(&older).unwrap().seconds, 10, "not 30 again");
    nothing[3] = 2;
    assert_eq!(lifetime(&nothing), None, "a failure is of the moment");
}

#[test]
fn a_kept_answer_becomes_the_answer_to_another_query() {
    let first = query("a.test", A);
    let answer = Query::read(&first).unwrap().addresses(&first, &[], 5);
    let mut second = query("A.TEST", A);
    second[..2].copy_from_slice(&[1, 2]);
    let (asked, mut adopted) = (Query::read(&second).unwrap(), answer);
    asked.adopt(&second, &mut adopted);
    assert!(asked.is_answered_by(&second, 0x0102, &adopted));
    assert_eq!(adopted[HEADER..], second[HEADER..]);
}

#[test]
fn addresses_in_names() {
    assert_eq!(pointed("4.3.2.1.in-addr.arpa"), "1.2.3.4".parse().ok());
    let text = "1.".to_owned() + &"0.".repeat(31) + "ip6.arpa";
    assert_eq!(pointed(&text), "::1".parse().ok());
    for wrong in [
        "3.2.1.in-addr.arpa",
        "5.4.3.2.1.in-addr.arpa",
        "x.ip6.arpa",
        "1.ip6.arpa",
        "a",
    ] {
        assert_eq!(pointed(wrong), None, "{wrong}");
    }
}
