//! The part of a DNS message that a proxy needs (RFC 1035, 2308, 6891): the question, whether an
//! answer belongs to it, how long the answer is valid, and answers of our own.
//!
//! Messages of others are passed on as bytes. Nothing is decoded and encoded again, so their
//! records stay as they were. Pure, and bounded by the message's length: a compressed name is
//! skipped, never followed.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use super::host::Host;
use std::net::IpAddr;

/// Longest message over UDP that is asked for or answered.
pub const UDP_LIMIT: u16 = 4096;
/// Longest answer over UDP that every client accepts.
const SMALL: u16 = 512;

const HEADER: usize = 12;
const LONGEST_NAME: usize = 255;
const IN: u16 = 1;
const A: u16 = 1;
const SOA: u16 = 6;
const PTR: u16 = 12;
const AAAA: u16 = 28;
const OPT: u16 = 41;
/// The records' owner is the question's name, which stands right after the header.
const SAME_NAME: [u8; 2] = [0xc0, HEADER as u8];

/// The response code of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Success, perhaps without records.
    Ok = 0,
    /// The query is malformed.
    Malformed = 1,
    /// The resolvers failed.
    Failed = 2,
    /// The message is not a query.
    NotImplemented = 4,
}

/// The type of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionType {
    /// IPv4 addresses.
    V4,
    /// IPv6 addresses.
    V6,
    /// The name of an address.
    Pointer,
    /// Anything else.
    Other,
}

/// A query with one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The name in lower case without the last dot; `None`: not made of letters, digits, `-`, `_`.
    pub name: Option<String>,
    /// The type of the question.
    pub kind: QuestionType,
    /// Longest answer the client takes over UDP.
    pub udp_limit: u16,
    /// Where the question ends.
    question: usize,
    /// Where the client's EDNS record has its size.
    edns: Option<usize>,
    /// Whether DNSSEC records are wanted.
    dnssec: bool,
}

/// Why a message is not asked of a resolver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// It gets no answer.
    Ignored,
    /// It is answered with this code.
    Answered(Code),
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*two))
}

/// The end of a name, which may be compressed.
fn end_of_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    let start = at;
    loop {
        let length = *bytes.get(at)?;
        match length {
            0 => return Some(at + 1),
            1..=63 => at += 1 + usize::from(length),
            // A pointer is a name's last part.
            0xc0.. => return (at + 2 <= bytes.len()).then_some(at + 2),
            _ => return None,
        }
        if at - start > LONGEST_NAME {
            return None;
        }
    }
}

/// A record as it is skipped.
struct Record {
    kind: u16,
    /// Where its class is; its time to live and the length of its data follow.
    class: usize,
    data: usize,
    end: usize,
}

fn record(bytes: &[u8], at: usize) -> Option<Record> {
    let name = end_of_name(bytes, at)?;
    let length = number(bytes, name + 8)?;
    let data = name + 10;
    let end = data + usize::from(length);
    (end <= bytes.len()).then_some(())?;
    Some(Record {
        kind: number(bytes, name)?,
        class: name + 2,
        data,
        end,
    })
}

/// Numbers of questions, answers, authorities and additional records.
fn counts(bytes: &[u8]) -> Option<[u16; 4]> {
    Some([
        number(bytes, 4)?,
        number(bytes, 6)?,
        number(bytes, 8)?,
        number(bytes, 10)?,
    ])
}

impl Query {
    /// Reads a query.
    ///
    /// # Errors
    /// It is not a query, or has not exactly one question.
    pub fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let flags = number(bytes, 2).ok_or(Unreadable::Ignored)?;
        let malformed = Unreadable::Answered(Code::Malformed);
        let [questions, answers, authorities, extras] = counts(bytes).ok_or(Unreadable::Ignored)?;
        // An answer to an answer would go round for ever.
        if flags & 0x8000 != 0 {
            return Err(Unreadable::Ignored);
        }
        if flags & 0x7800 != 0 {
            return Err(Unreadable::Answered(Code::NotImplemented));
        }
        if (questions, answers, authorities) != (1, 0, 0) || extras > 8 {
            return Err(malformed);
        }
        let end = end_of_name(bytes, HEADER).ok_or(malformed)?;
        let name = bytes.get(HEADER..end).unwrap_or_default();
        // No earlier name exists that the first name could point to.
        let text = text(name).ok_or(malformed)?;
        let (kind, class) = (number(bytes, end), number(bytes, end + 2));
        let (kind, class) = kind.zip(class).ok_or(malformed)?;
        let mut query = Self {
            name: text,
            kind: match (class, kind) {
                (IN, A) => QuestionType::V4,
                (IN, AAAA) => QuestionType::V6,
                (IN, PTR) => QuestionType::Pointer,
                _ => QuestionType::Other,
            },
            udp_limit: SMALL,
            question: end + 4,
            edns: None,
            dnssec: false,
        };
        let mut at = query.question;
        for _ in 0..extras {
            let record = record(bytes, at).ok_or(malformed)?;
            if record.kind == OPT {
                if query.edns.replace(record.class).is_some() {
                    return Err(malformed);
                }
                let size = number(bytes, record.class).unwrap_or_default();
                query.udp_limit = size.clamp(SMALL, UDP_LIMIT);
                query.dnssec = number(bytes, record.class + 4).unwrap_or_default() & 0x8000 != 0;
            }
            at = record.end;
        }
        Ok(query)
    }

    /// Key under which queries share an answer: the question in lower case, and the options the
    /// client set for its answer.
    pub fn key(&self, bytes: &[u8]) -> Vec<u8> {
        let question = bytes.get(HEADER..self.question).unwrap_or_default();
        let mut key = question.to_ascii_lowercase();
        let flags = number(bytes, 2).unwrap_or_default();
        // Recursion desired, authentic data, checking disabled.
        key.extend((flags & 0x0130).to_be_bytes());
        key.push(u8::from(self.edns.is_some()) + 2 * u8::from(self.dnssec));
        key
    }

    /// Returns the query to send on, with another id; answers must fit in `UDP_LIMIT`.
    pub fn forwarded(&self, bytes: &[u8], id: u16) -> Vec<u8> {
        let mut out = bytes.to_vec();
        put(&mut out, 0, id);
        if let Some(at) = self.edns {
            put(&mut out, at, self.udp_limit);
        }
        out
    }

    /// Whether a message answers the query, which was sent with this id.
    pub fn is_answered_by(&self, query: &[u8], id: u16, message: &[u8]) -> bool {
        let Some([questions, ..]) = counts(message) else {
            return false;
        };
        let flags = number(message, 2).unwrap_or_default();
        if number(message, 0) != Some(id) || flags & 0xf800 != 0x8000 {
            return false;
        }
        // A server that does not understand the query need not repeat it.
        if questions == 0 {
            return flags & 0x000f != 0;
        }
        let (ours, theirs) = (
            query.get(HEADER..self.question),
            message.get(HEADER..self.question),
        );
        questions == 1
            && ours
                .zip(theirs)
                .is_some_and(|(a, b)| a.eq_ignore_ascii_case(b))
    }

    /// Builds our own answer with the addresses of the wanted kind.
    pub fn addresses(&self, query: &[u8], addresses: &[IpAddr], ttl: u32) -> Vec<u8> {
        let wanted = addresses.iter().filter_map(|ip| match (self.kind, ip) {
            (QuestionType::V4, IpAddr::V4(ip)) => Some((A, ip.octets().to_vec())),
            (QuestionType::V6, IpAddr::V6(ip)) => Some((AAAA, ip.octets().to_vec())),
            _ => None,
        });
        self.answer(query, wanted.collect(), ttl)
    }

    /// Builds our own answer with the name of an address.
    pub fn pointer(&self, query: &[u8], name: &str, ttl: u32) -> Vec<u8> {
        let mut data = Vec::new();
        for label in name.split('.') {
            // A name of the mesh has labels of at most 63 letters.
            data.push(u8::try_from(label.len()).unwrap_or_default());
            data.extend(label.as_bytes());
        }
        data.push(0);
        self.answer(query, vec![(PTR, data)], ttl)
    }

    fn answer(&self, query: &[u8], records: Vec<(u16, Vec<u8>)>, ttl: u32) -> Vec<u8> {
        let mut out = self.head(query, Code::Ok);
        put(
            &mut out,
            6,
            u16::try_from(records.len()).unwrap_or_default(),
        );
        for (kind, data) in records {
            out.extend(SAME_NAME);
            out.extend(kind.to_be_bytes());
            out.extend(IN.to_be_bytes());
            out.extend(ttl.to_be_bytes());
            out.extend(u16::try_from(data.len()).unwrap_or_default().to_be_bytes());
            out.extend(data);
        }
        self.end(out)
    }

    /// Builds our own answer without records.
    pub fn refusal(&self, query: &[u8], code: Code) -> Vec<u8> {
        let out = self.head(query, code);
        self.end(out)
    }

    /// Builds an answer that is too long for UDP: the client is to ask again over TCP.
    pub fn truncated(&self, query: &[u8]) -> Vec<u8> {
        let mut out = self.refusal(query, Code::Ok);
        if let Some(flags) = out.get_mut(2) {
            *flags |= 0x02;
        }
        out
    }

    fn head(&self, query: &[u8], code: Code) -> Vec<u8> {
        let question = query.get(..self.question).unwrap_or_default();
        let mut out = question.to_vec();
        head(&mut out, code);
        put(&mut out, 4, 1);
        put(&mut out, 10, u16::from(self.edns.is_some()));
        out
    }

    fn end(&self, mut out: Vec<u8>) -> Vec<u8> {
        if self.edns.is_some() {
            out.push(0);
            out.extend(OPT.to_be_bytes());
            out.extend(UDP_LIMIT.to_be_bytes());
            out.extend([0; 6]);
        }
        out
    }

    /// Adapts an answer to the same question to this query: its id and the case of its name.
    pub fn adopt(&self, query: &[u8], answer: &mut [u8]) {
        let same = number(answer, 4) == Some(1);
        for range in [0..2, HEADER..self.question] {
            let wanted = range.start == 0 || same;
            if let (true, Some(to), Some(from)) =
                (wanted, answer.get_mut(range.clone()), query.get(range))
            {
                to.copy_from_slice(from);
            }
        }
    }
}

/// Answers a message that is not even a question.
pub fn refusal(query: &[u8], code: Code) -> Vec<u8> {
    let mut out = query.get(..HEADER).unwrap_or_default().to_vec();
    head(&mut out, code);
    out
}

fn head(out: &mut [u8], code: Code) {
    // An answer with recursion available; the recursion desired flag is repeated.
    let desired = number(out, 2).unwrap_or_default() & 0x7900;
    put(out, 2, 0x8080 | desired | code as u16);
    for at in [4, 6, 8, 10] {
        put(out, at, 0);
    }
}

fn put(out: &mut [u8], at: usize, value: u16) {
    if let Some(to) = out.get_mut(at..at + 2) {
        to.copy_from_slice(&value.to_be_bytes());
    }
}

/// Returns the name as text. Outer `None`: the name is compressed or malformed.
fn text(name: &[u8]) -> Option<Option<String>> {
    let mut out = Vec::new();
    let mut plain = true;
    let mut rest = name;
    while let [length, more @ ..] = rest {
        if *length == 0 {
            break;
        }
        let (label, after) = more.split_at_checked((*length).into())?;
        plain &= label
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        if !out.is_empty() {
            out.push(b'.');
        }
        out.extend_from_slice(label);
        rest = after;
    }
    Some(plain.then(|| Host::named(&out).to_text()))
}

/// Returns the address that a name below `in-addr.arpa` or `ip6.arpa` stands for.
pub fn pointed(name: &str) -> Option<IpAddr> {
    if let Some(digits) = name.strip_suffix(".in-addr.arpa") {
        let mut octets = [0; 4];
        let mut parts = digits.rsplit('.');
        for octet in &mut octets {
            *octet = parts.next()?.parse().ok()?;
        }
        return parts.next().is_none().then(|| octets.into());
    }
    let digits = name.strip_suffix(".ip6.arpa")?;
    let mut address = 0u128;
    let mut count = 0;
    for digit in digits.rsplit('.') {
        let digit = u8::from_str_radix(digit, 16).ok().filter(|d| *d < 16)?;
        address = address.checked_shl(4)? | u128::from(digit);
        count += 1;
    }
    (count == 32).then(|| std::net::Ipv6Addr::from(address).into())
}

/// Whether the answer is truncated.
pub fn is_truncated(answer: &[u8]) -> bool {
    answer.get(2).is_some_and(|flags| flags & 0x02 != 0)
}

/// How long an answer may be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifetime {
    /// Seconds until the first of its records expires.
    pub seconds: u32,
    /// Places of the records' times to live, and the longest each may be kept.
    pub places: Vec<(u16, u32)>,
}

/// Returns how long a whole answer may be kept; `None`: not at all.
pub fn lifetime(answer: &[u8]) -> Option<Lifetime> {
    let flags = number(answer, 2)?;
    let [questions, answers, authorities, extras] = counts(answer)?;
    let code = flags & 0x000f;
    // Only success (0) and a name that does not exist (3) are kept; other answers are momentary.
    if is_truncated(answer) || questions != 1 || !matches!(code, 0 | 3) {
        return None;
    }
    let mut at = end_of_name(answer, HEADER)? + 4;
    let mut lifetime = Lifetime {
        seconds: u32::MAX,
        places: Vec::new(),
    };
    let mut says_so = code == 0 && answers > 0;
    let total = u32::from(answers) + u32::from(authorities) + u32::from(extras);
    for index in 0..total {
        let record = record(answer, at)?;
        at = record.end;
        if record.kind == OPT {
            continue;
        }
        let place = record.class + 2;
        let seconds = |at: usize| Some(u32::from_be_bytes(*answer.get(at..)?.first_chunk()?));
        let mut ttl = seconds(place)?;
        // A negative answer is valid as long as its zone says (RFC 2308 5).
        let authority =
            (u32::from(answers)..u32::from(answers) + u32::from(authorities)).contains(&index);
        if !says_so && record.kind == SOA && authority {
            let minimum = record.end.checked_sub(4).filter(|at| *at >= record.data)?;
            ttl = ttl.min(seconds(minimum)?);
            says_so = true;
        }
        lifetime.places.push((u16::try_from(place).ok()?, ttl));
        lifetime.seconds = lifetime.seconds.min(ttl);
    }
    // A time to live with the highest bit set counts as zero (RFC 2181 8).
    (says_so && (1..0x8000_0000).contains(&lifetime.seconds)).then_some(lifetime)
}

/// Subtracts the age of an answer from its records' times to live. A client must not keep a
/// negative answer for longer than the zone says, counted from when we received it.
pub fn age(answer: &mut [u8], places: &[(u16, u32)], seconds: u32) {
    for (place, ttl) in places {
        let place = usize::from(*place);
        if let Some(left) = answer.get_mut(place..place + 4) {
            left.copy_from_slice(&ttl.saturating_sub(seconds).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
