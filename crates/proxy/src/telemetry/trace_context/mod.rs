//! The trace context of a request, as it came and as it is forwarded: W3C Trace Context (level 1
//! and the flag of level 2), or else B3 in one field or several. Strict: a value that breaks its
//! format counts as absent.
//!
//! Pure, without allocation, and independent of the rest of the proxy (the fuzz target takes this
//! file alone). `span` decides and makes spans.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

/// Format of a request's context. It is forwarded in the same format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `traceparent`
    W3c,
    /// `b3`
    B3,
    /// `x-b3-traceid` and others.
    B3Multi,
}

/// A trace, and the span that called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// Never 0.
    pub trace: u128,
    /// Never 0.
    pub span: u64,
    /// B3: the trace came as 64 bits, and servers behind may support no more.
    pub short: bool,
}

/// Whether a trace is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// No.
    Drop,
    /// Yes.
    Record,
    /// Yes, and B3's `debug` is passed on.
    Debug,
}

/// The trace context of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// Its format.
    pub form: Form,
    /// Trace and span; B3 may lack them.
    pub ids: Option<Ids>,
    /// The decision; B3 may leave it open.
    pub decision: Option<Decision>,
    /// W3C: the trace's id is random.
    pub random: bool,
}

/// Fields that are read; the first ones of a format are written anew.
const TRACEPARENT: &str = "traceparent";
const B3: &str = "b3";
const B3_FIELDS: [&str; 5] = [
    "x-b3-traceid",
    "x-b3-spanid",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-flags",
];

/// A field that must not be repeated.
#[derive(Clone, Copy)]
enum Once<'a> {
    Absent,
    Given(&'a [u8]),
    Repeated,
}

impl<'a> Once<'a> {
    fn see(&mut self, value: &'a [u8]) {
        *self = match self {
            Self::Absent => Self::Given(value),
            Self::Given(_) | Self::Repeated => Self::Repeated,
        };
    }

    fn given(self) -> Option<&'a [u8]> {
        match self {
            Self::Given(value) => Some(value),
            Self::Absent | Self::Repeated => None,
        }
    }
}

/// Reads the fields of a head. `None`: it has no trace context, or no valid one.
pub fn read<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Option<TraceContext> {
    let (mut w3c, mut single) = (Once::Absent, Once::Absent);
    let mut multi = [Once::Absent; B3_FIELDS.len()];
    for (name, value) in fields {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        // The length rules out most names.
        match name.len() {
            2 if is(B3) => single.see(value),
            10..=17 => {
                if is(TRACEPARENT) {
                    w3c.see(value);
                } else if let Some((_, field)) =
                    B3_FIELDS.iter().zip(&mut multi).find(|(f, _)| is(f))
                {
                    field.see(value);
                }
            }
            _ => {}
        }
    }
    let w3c = w3c.given().and_then(read_traceparent);
    w3c.or_else(|| single.given().and_then(read_single))
        .or_else(|| read_multi(multi))
}

/// `00-<32>-<16>-<2>`; a later version may have unknown fields behind.
fn read_traceparent(value: &[u8]) -> Option<TraceContext> {
    let (known, more) = value.split_at_checked(55)?;
    let version = hex(known.get(..2)?)?;
    let fits = match version {
        0 => more.is_empty(),
        0xff => false,
        _ => more.is_empty() || more.first() == Some(&b'-'),
    };
    if !fits || [2, 35, 52].iter().any(|&at| known.get(at) != Some(&b'-')) {
        return None;
    }
    let flags = hex(known.get(53..)?)?;
    Some(TraceContext {
        form: Form::W3c,
        ids: Some(ids(known.get(3..35)?, known.get(36..52)?)?),
        decision: Some(match flags & 1 {
            0 => Decision::Drop,
            _ => Decision::Record,
        }),
        random: flags & 2 != 0,
    })
}

/// `<trace>-<span>[-<decision>[-<parent>]]`, or the decision alone.
fn read_single(value: &[u8]) -> Option<TraceContext> {
    let context = |ids, decision| TraceContext {
        form: Form::B3,
        ids,
        decision,
        random: false,
    };
    let mut parts = value.split(|&byte| byte == b'-');
    let trace = parts.next()?;
    let Some(span) = parts.next() else {
        return Some(context(None, Some(read_decision(trace)?)));
    };
    let decision = match parts.next() {
        Some(decision) => Some(read_decision(decision)?),
        None => None,
    };
    if let Some(parent) = parts.next() {
        (parent.len() == 16).then(|| hex(parent))??;
    }
    parts
        .next()
        .is_none()
        .then_some(context(Some(ids(trace, span)?), decision))
}

fn read_decision(text: &[u8]) -> Option<Decision> {
    match text {
        b"0" => Some(Decision::Drop),
        b"1" => Some(Decision::Record),
        b"d" => Some(Decision::Debug),
        _ => None,
    }
}

fn read_multi(fields: [Once<'_>; B3_FIELDS.len()]) -> Option<TraceContext> {
    let [trace, span, _, sampled, flags] = fields.map(Once::given);
    let decision = match (flags, sampled) {
        (Some(b"1"), _) => Some(Decision::Debug),
        (_, Some(b"1" | b"true")) => Some(Decision::Record),
        (_, Some(b"0" | b"false")) => Some(Decision::Drop),
        _ => None,
    };
    let ids = match (trace, span) {
        (Some(trace), Some(span)) => ids(trace, span),
        _ => None,
    };
    (ids.is_some() || decision.is_some()).then_some(TraceContext {
        form: Form::B3Multi,
        ids,
        decision,
        random: false,
    })
}

fn ids(trace: &[u8], span: &[u8]) -> Option<Ids> {
    let short = trace.len() == 16;
    if !(short || trace.len() == 32) || span.len() != 16 {
        return None;
    }
    let (trace, span) = (hex(trace)?, u64::try_from(hex(span)?).ok()?);
    (trace != 0 && span != 0).then_some(Ids { trace, span, short })
}

/// Lower-case digits only; at most 32.
fn hex(text: &[u8]) -> Option<u128> {
    text.iter().try_fold(0, |number, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

/// The trace context of a forwarded request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Onward {
    /// Its format.
    pub form: Form,
    /// The trace, and the span that calls now.
    pub ids: Ids,
    /// The span that called ours; 0: none.
    pub parent: u64,
    /// The decision.
    pub decision: Decision,
    /// See [`TraceContext::random`].
    pub random: bool,
    /// Whether the trace begins here: the request's other trace fields belong to another.
    pub begins: bool,
}

/// Most fields of a context.
pub const FIELDS: usize = 4;

/// Header fields as text, without allocation.
pub struct Fields {
    text: [u8; 72],
    used: usize,
    names: [&'static str; FIELDS],
    ends: [usize; FIELDS],
    count: usize,
}

impl Onward {
    /// Fields of the request to drop: they are written anew, or belong to another trace.
    pub fn replaces(&self) -> &'static [&'static str] {
        match (self.form, self.begins) {
            // `tracestate` without its `traceparent` means nothing.
            (Form::W3c, true) => &[TRACEPARENT, "tracestate"],
            (Form::W3c, false) => &[TRACEPARENT],
            (Form::B3, _) => &[B3],
            (Form::B3Multi, _) => B3_FIELDS.split_at(4).0,
        }
    }

    /// Fields to add.
    pub fn fields(&self) -> Fields {
        let mut out = Fields {
            text: [0; 72],
            used: 0,
            names: [""; FIELDS],
            ends: [0; FIELDS],
            count: 0,
        };
        let Ids { trace, span, short } = self.ids;
        let digits = if short { 16 } else { 32 };
        let dropped = self.decision == Decision::Drop;
        match self.form {
            Form::W3c => {
                let flags = u128::from(!dropped) | u128::from(self.random) << 1;
                out.put(b"00-");
                out.hex(trace, 32);
                out.put(b"-");
                out.hex(span.into(), 16);
                out.put(b"-");
                out.hex(flags, 2);
                out.end(TRACEPARENT);
            }
            Form::B3 => {
                out.hex(trace, digits);
                out.put(b"-");
                out.hex(span.into(), 16);
                out.put(match self.decision {
                    Decision::Drop => b"-0",
                    Decision::Record => b"-1",
                    Decision::Debug => b"-d",
                });
                if self.parent != 0 {
                    out.put(b"-");
                    out.hex(self.parent.into(), 16);
                }
                out.end(B3);
            }
            Form::B3Multi => {
                let [trace_id, span_id, parent_id, sampled, _] = B3_FIELDS;
                out.hex(trace, digits);
                out.end(trace_id);
                out.hex(span.into(), 16);
                out.end(span_id);
                if self.parent != 0 {
                    out.hex(self.parent.into(), 16);
                    out.end(parent_id);
                }
                // For debug, `x-b3-flags: 1`, which stays, says it.
                if self.decision != Decision::Debug {
                    out.put(if dropped { b"0" } else { b"1" });
                    out.end(sampled);
                }
            }
        }
        out
    }
}

impl Fields {
    fn put(&mut self, text: &[u8]) {
        let end = self.used + text.len();
        if let Some(place) = self.text.get_mut(self.used..end) {
            place.copy_from_slice(text);
            self.used = end;
        }
    }

    fn hex(&mut self, number: u128, digits: u32) {
        for at in (0..digits).rev() {
            let digit = char::from_digit((number >> (4 * at)) as u32 & 15, 16);
            self.put(&[digit.map_or(b'0', |digit| digit as u8)]);
        }
    }

    fn end(&mut self, name: &'static str) {
        if let (Some(place), Some(end)) = (
            self.names.get_mut(self.count),
            self.ends.get_mut(self.count),
        ) {
            (*place, *end) = (name, self.used);
            self.count += 1;
        }
    }

    /// Names and values of the fields.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let starts = std::iter::once(0).chain(self.ends);
        let places = starts.zip(self.ends).take(self.count);
        let values = places.map(|(start, end)| self.text.get(start..end).unwrap_or_default());
        self.names.into_iter().zip(values)
    }
}

#[cfg(test)]
mod tests;
