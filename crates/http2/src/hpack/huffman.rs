//! The Huffman code of RFC 7541, appendix B. It is canonical: codes of one length are consecutive,
//! in the order of their symbols, so the lengths alone define it.

/// Code lengths in bits by symbol; 256 is the end-of-string symbol.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13,23,28,28,28,28,28,28,28,24,30,28,28,30,28,28,28,28,28,28,28,28,30,28,28,28,28,28,28,28,28,28,
    6,10,10,12,13,6,8,11,10,10,8,11,8,6,6,6,5,5,5,6,6,6,6,6,6,6,7,8,15,6,12,10,
    13,6,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,8,7,8,13,19,13,14,6,
    15,5,6,5,6,5,6,6,6,5,7,7,6,6,6,5,6,7,6,5,5,6,7,7,7,7,7,15,11,14,13,28,
    20,22,20,20,22,22,22,23,22,23,23,23,23,23,24,23,24,24,22,23,24,23,23,23,23,21,22,23,22,23,23,24,
    22,21,20,22,22,23,23,21,23,22,22,24,21,22,23,23,21,21,22,21,23,22,23,23,20,22,22,22,23,22,22,23,
    26,26,20,19,22,23,22,25,26,26,26,27,27,26,24,25,19,21,26,27,27,26,27,24,21,21,26,26,28,27,27,27,
    20,24,20,21,22,21,21,23,22,22,25,25,24,24,26,23,26,27,26,26,27,27,27,27,27,28,27,27,27,27,27,26,
    30,
];
const EOS: u16 = 256;
const MAX_BITS: usize = 30;

struct Code {
    /// Symbols by length, then by value.
    symbols: [u16; 257],
    /// First code of each length, and the place of its symbol in `symbols`.
    first: [(u32, u16); MAX_BITS + 2],
    /// Symbol and length of a short code, by the value of the next eight bits; length 0: the code
    /// is longer.
    short: [(u8, u8); 256],
}

static CODE: Code = build();

#[expect(clippy::indexing_slicing, reason = "the compiler runs this")]
const fn build() -> Code {
    let mut code = Code {
        symbols: [0; 257],
        first: [(0, 0); MAX_BITS + 2],
        short: [(0, 0); 256],
    };
    let mut next = 0_u32;
    let mut place = 0_u16;
    let mut bits = 1;
    while bits <= MAX_BITS {
        next <<= 1;
        code.first[bits] = (next, place);
        let mut symbol = 0;
        while symbol <= EOS {
            if LENGTHS[symbol as usize] as usize == bits {
                code.symbols[place as usize] = symbol;
                if bits <= 8 {
                    let low = (next << (8 - bits)) as usize;
                    let mut tail = 0;
                    while tail < 1 << (8 - bits) {
                        code.short[low + tail] = (symbol as u8, bits as u8);
                        tail += 1;
                    }
                }
                place += 1;
                next += 1;
            }
            symbol += 1;
        }
        bits += 1;
    }
    code.first[MAX_BITS + 1] = (next << 1, place);
    code
}

/// Decodes `encoded` and appends up to `limit` bytes; the rest is only checked. `None`: it is not
/// valid (RFC 7541, section 5.2: padding of 8 bits or more, or of other bits than ones, or an
/// end-of-string symbol).
pub(super) fn decode(encoded: &[u8], limit: usize, out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    let mut put = |byte| {
        if out.len() - start < limit {
            out.push(byte);
        }
    };
    let mut window = 0_u64;
    let mut held = 0_u32;
    let mut rest = encoded.iter();
    loop {
        while held <= 56 {
            let Some(&byte) = rest.next() else { break };
            window |= u64::from(byte) << (56 - held);
            held += 8;
        }
        if held == 0 {
            return Some(());
        }
        let &(symbol, bits) = CODE.short.get((window >> 56) as usize)?;
        let bits = u32::from(bits);
        if bits > 0 && bits <= held {
            put(symbol);
            window <<= bits;
            held -= bits;
            continue;
        }
        // Fewer than eight ones at the end are padding.
        if held < 8 && window >> (64 - held) == (1 << held) - 1 {
            return Some(());
        }
        let (symbol, bits) = long(window, held)?;
        put(symbol);
        window <<= bits;
        held -= bits;
    }
}

/// Decodes a code of nine bits or more.
fn long(window: u64, held: u32) -> Option<(u8, u32)> {
    for bits in 9..=MAX_BITS as u32 {
        if bits > held {
            return None;
        }
        let code = (window >> (64 - bits)) as u32;
        let &[(first, place), (_, next)] = CODE.first.get(bits as usize..)?.first_chunk()?;
        let count = u32::from(next - place);
        if code >= first && code - first < count {
            let symbol = CODE
                .symbols
                .get(usize::from(place) + (code - first) as usize)?;
            return (*symbol != EOS).then_some((*symbol as u8, bits));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(text: &[u8]) -> Vec<u8> {
        let (mut out, mut window, mut held) = (Vec::new(), 0_u64, 0);
        for &byte in text {
            let bits = LENGTHS[usize::from(byte)] as usize;
            let (first, place) = CODE.first[bits];
            let symbols = &CODE.symbols[usize::from(place)..];
            let at = symbols.iter().position(|&s| s == u16::from(byte)).unwrap();
            window = window << bits | (u64::from(first) + at as u64);
            held += bits;
            while held >= 8 {
                held -= 8;
                out.push((window >> held) as u8);
            }
        }
        if held > 0 {
            out.push((window << (8 - held)) as u8 | ((1 << (8 - held)) - 1));
        }
        out
    }

    #[test]
    fn every_byte_comes_back() {
        let text: Vec<u8> = (0..=255).chain(b"some text ".iter().copied()).collect();
        let mut out = Vec::new();
        decode(&encode(&text), usize::MAX, &mut out).unwrap();
        assert_eq!(out, text);
    }

    #[test]
    fn the_codes_are_those_of_the_rfc() {
        // RFC 7541, C.4.1 and appendix B.
        let www = [
            0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        assert_eq!(encode(b"www.example.com"), www);
        assert_eq!(encode(&[249])[..4], [0xff, 0xff, 0xff, 0xef]); // |11111111|..|1110, 28 bits
        assert_eq!(encode(&[22])[..4], [0xff, 0xff, 0xff, 0xfb]); // 30 bits, 3ffffffe
    }

    #[test]
    fn bad_endings_are_refused() {
        let mut out = Vec::new();
        for bad in [
            &[0xff_u8][..],                  // eight bits of padding
            &[0xff, 0xff, 0xff, 0xff],       // end of string
            &[0b0001_1000],                  // 'a' (00011), then padding of zeros
            &[0xff, 0xff, 0xff, 0xff, 0xff], // more of the same
            &[0xff, 0xc0],                   // cut inside a code
        ] {
            assert_eq!(decode(bad, usize::MAX, &mut out), None, "{bad:x?}");
        }
        out.clear();
        assert_eq!(decode(&[0b0001_1111], usize::MAX, &mut out), Some(()));
        assert_eq!(out, b"a");
    }

    #[test]
    fn a_limit_stops_the_output_only() {
        let mut out = Vec::new();
        decode(&encode(&[b'a'; 100]), 10, &mut out).unwrap();
        assert_eq!(out, b"aaaaaaaaaa");
    }
}
