//! No parser takes more than linear time, or very long for a byte, whatever is repeated in its
//! input. Time is the thread's CPU time, in units of a plain loop's time per byte.
//! `crates/proxy/tests/complexity` tries known attacks in each `make test`.
//!
//! The first byte of the input chooses the parser. The next two give the lengths of prefix and
//! suffix, and the rest is prefix, suffix and the repeated unit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use parsers::{PARSERS, Parser};
use std::hint::black_box;
use std::sync::LazyLock;

#[path = "../../crates/proxy/tests/complexity/cost.rs"]
mod cost;
#[path = "../../crates/proxy/tests/complexity/parsers.rs"]
mod parsers;

// All are pure; depending on their crates would put all of the proxy under the sanitizer.
#[allow(dead_code)]
#[path = "../../crates/proxy/src/codec/detect/mod.rs"]
mod detect;
#[path = "../../crates/proxy/src/codec/exposition.rs"]
mod exposition;
#[allow(dead_code)]
#[path = "../../crates/proxy/src/codec/host.rs"]
mod host;
#[path = "../../crates/tls/src/hello.rs"]
mod hello;
#[path = "../../crates/proxy/src/filter/jwt/keys.rs"]
mod keys;
#[allow(dead_code)]
#[path = "../../crates/proxy/src/codec/dns_message/mod.rs"]
mod message;
#[allow(dead_code)]
#[path = "../../crates/proxy/src/codec/plain_path.rs"]
mod plain_path;
#[path = "../../crates/proxy/src/codec/proxy_protocol.rs"]
mod proxy_protocol;
#[path = "../../crates/proxy/src/codec/sni.rs"]
mod sni;
#[allow(dead_code)]
#[path = "../../crates/proxy/src/filter/jwt/token.rs"]
mod token;
#[allow(dead_code)]
#[path = "../../crates/proxy/src/telemetry/trace_context/mod.rs"]
mod trace_context;

/// The proxy's parsers for `parsers`.
mod modules {
    pub(crate) use super::{
        detect, exposition, hello, keys, message, plain_path, proxy_protocol, sni, token,
        trace_context,
    };
}

/// Time of a plain loop per byte, in nanoseconds.
static BYTE: LazyLock<f64> = LazyLock::new(|| {
    let bytes = vec![b'x'; 64 * 1024];
    cost::measure(sum, &bytes) / bytes.len() as f64
});

fn sum(bytes: &[u8]) {
    let sum = bytes.iter().fold(0_u32, |sum, byte| {
        black_box(sum.rotate_left(5) ^ u32::from(*byte))
    });
    black_box(sum);
}

/// Most units that a byte may cost: HPACK's references, which stand for whole fields, take 120.
const MOST: f64 = 1000.0;
/// Costs that are not examined further, since that takes long. All known linear work is below.
const LITTLE: f64 = 150.0;
/// Most growth of the cost of a byte for an input four times as long; quadratic work has 4.
const GROWTH: f64 = 2.0;

struct Input<'a> {
    parser: &'static Parser,
    prefix: &'a [u8],
    unit: &'a [u8],
    suffix: &'a [u8],
}

impl<'a> Input<'a> {
    fn read(data: &'a [u8]) -> Option<Self> {
        let (&[which, before, behind], rest) = data.split_first_chunk()?;
        let parser = PARSERS.get(usize::from(which) % PARSERS.len())?;
        let (prefix, rest) = rest.split_at_checked(before.into())?;
        let (suffix, unit) = rest.split_at_checked(behind.into())?;
        (!unit.is_empty()).then_some(Self {
            parser,
            prefix,
            unit,
            suffix,
        })
    }

    /// Returns how many units fit in the longest input, or a part of it.
    fn units(&self, part: usize) -> usize {
        let fixed = self.prefix.len() + self.suffix.len();
        (self.parser.longest / part).saturating_sub(fixed) / self.unit.len()
    }

    fn bytes(&self, units: usize) -> Vec<u8> {
        cost::repeated(self.prefix, self.unit, self.suffix, units)
    }

    /// Returns the cost of a byte. The meaning of an input may depend on its length, so neighbours
    /// are measured, too.
    fn costs(&self, part: usize) -> impl Iterator<Item = f64> {
        let most = self.units(part);
        ((most * 3 / 4).max(most.saturating_sub(3))..=most).map(|units| {
            let bytes = self.bytes(units);
            cost::measure(self.parser.run, &bytes) / bytes.len() as f64 / *BYTE
        })
    }
}

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::read(data) else {
        return;
    };
    let bytes = input.bytes(input.units(1));
    let once = cost::once(input.parser.run, &bytes) / bytes.len() as f64 / *BYTE;
    if input.units(16) < 2 || once < LITTLE {
        return;
    }
    let most = |part| input.costs(part).fold(0.0, f64::max);
    let (large, small, smallest) = (input.costs(1).fold(once, f64::min), most(4), most(16));
    let name = input.parser.name;
    assert!(
        large < MOST,
        "{name}: a byte costs {large:.0}, {small:.0}, {smallest:.0} with longer inputs first"
    );
    // Growth must show twice, since a limit or a branch for long inputs makes work grow once.
    assert!(
        large < LITTLE || large < GROWTH * small || small < GROWTH * smallest,
        "{name}: a byte costs {large:.0}, {small:.0}, {smallest:.0} with longer inputs first"
    );
});
