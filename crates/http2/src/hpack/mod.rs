//! Header compression (RFC 7541).
//!
//! The decoder has the dynamic table that the standard gives every peer; the caller bounds its
//! output, not the input. The encoder uses the static table only: it keeps no state, and on a
//! loopback connection more compression costs more than it saves.

mod huffman;
mod table;

use table::{Dynamic, STATIC};

/// Bytes of the peer's dynamic table: the protocol's default, which we do not change.
const TABLE_BYTES: usize = 4096;

/// A block that cannot be decoded. The connection's compression state is lost with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadBlock;

/// Decodes the header blocks of one connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    dynamic: Dynamic,
    /// Buffers for Huffman-coded texts while they are read.
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self {
            dynamic: Dynamic::new(TABLE_BYTES),
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Calls `each` with every field of a block, in order. `each` must not fail on unwanted fields:
    /// the whole block has to be decoded to keep the table in step. No text is longer than `limit`
    /// plus one byte, so that the caller sees that it was too long.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        limit: usize,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), BadBlock> {
        // A text that is cut here must not fit the table either.
        let limit = limit.max(TABLE_BYTES) + 1;
        let mut rest = block;
        let mut resizes_allowed = 2;
        while let Some(&first) = rest.first() {
            if first & 0x80 != 0 {
                let index = integer(&mut rest, 7)?;
                let (name, value) = self.entry(index).ok_or(BadBlock)?;
                each(name, value);
            } else if first & 0xe0 == 0x20 {
                // Section 4.2: only at the beginning of a block, and two are enough.
                if resizes_allowed == 0 {
                    return Err(BadBlock);
                }
                resizes_allowed -= 1;
                let size = integer(&mut rest, 5)?;
                if size > TABLE_BYTES {
                    return Err(BadBlock);
                }
                self.dynamic.resize(size);
                continue;
            } else {
                let keep = first & 0x40 != 0;
                let index = integer(&mut rest, if keep { 6 } else { 4 })?;
                self.literal(&mut rest, index, keep, limit, &mut each)?;
            }
            resizes_allowed = 0;
        }
        Ok(())
    }

    fn literal(
        &mut self,
        rest: &mut &[u8],
        index: usize,
        keep: bool,
        limit: usize,
        each: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(), BadBlock> {
        let mut storage = (
            std::mem::take(&mut self.name),
            std::mem::take(&mut self.value),
        );
        let done = self.literal_in(rest, index, keep, limit, &mut storage, each);
        (self.name, self.value) = storage;
        done
    }

    fn literal_in(
        &mut self,
        rest: &mut &[u8],
        index: usize,
        keep: bool,
        limit: usize,
        (name_storage, value_storage): &mut (Vec<u8>, Vec<u8>),
        each: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(), BadBlock> {
        let name = if index > 0 {
            // The name is copied, since the table may evict this entry when it takes the new one.
            let (name, _) = self.entry(index).ok_or(BadBlock)?;
            name_storage.clear();
            name_storage.extend_from_slice(name);
            name_storage.as_slice()
        } else {
            Text::take(rest)?.read(limit, name_storage)?
        };
        let value = Text::take(rest)?.read(limit, value_storage)?;
        each(name, value);
        if keep {
            self.dynamic.insert(name, value);
        }
        Ok(())
    }

    fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        match index.checked_sub(1)? {
            fixed if fixed < STATIC.len() => STATIC.get(fixed).copied(),
            dynamic => self.dynamic.get(dynamic - STATIC.len()),
        }
    }
}

/// A string (section 5.2), as encoded in the block.
struct Text<'a> {
    bytes: &'a [u8],
    huffman: bool,
}

impl<'a> Text<'a> {
    fn take(rest: &mut &'a [u8]) -> Result<Self, BadBlock> {
        let huffman = rest.first().ok_or(BadBlock)? & 0x80 != 0;
        let length = integer(rest, 7)?;
        let (bytes, after) = rest.split_at_checked(length).ok_or(BadBlock)?;
        *rest = after;
        Ok(Self { bytes, huffman })
    }

    /// Returns the text, decoded into `storage` if need be.
    fn read<'b>(self, limit: usize, storage: &'b mut Vec<u8>) -> Result<&'b [u8], BadBlock>
    where
        'a: 'b,
    {
        if !self.huffman {
            return Ok(self.bytes);
        }
        storage.clear();
        huffman::decode(self.bytes, limit, storage).ok_or(BadBlock)?;
        Ok(storage)
    }
}

/// Reads an integer with a prefix of `bits` bits in the first byte (section 5.1). No valid one here
/// is above 2^28: an index, a size or a length in memory.
fn integer(rest: &mut &[u8], bits: u32) -> Result<usize, BadBlock> {
    let (&first, mut tail) = rest.split_first().ok_or(BadBlock)?;
    let mask = (1_usize << bits) - 1;
    let mut value = usize::from(first) & mask;
    if value == mask {
        let mut shift = 0;
        loop {
            let (&byte, after) = tail.split_first().ok_or(BadBlock)?;
            tail = after;
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
            if shift > 21 {
                return Err(BadBlock);
            }
        }
    }
    *rest = tail;
    Ok(value)
}

/// Announces, at the start of the first block, that our encoder's dynamic table is empty and stays
/// so. This satisfies any limit that the peer sets later (section 4.2).
pub(crate) const NO_TABLE: u8 = 0x20;

/// Appends a field of a block. A name must be in lower case.
pub(crate) fn encode(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let index = name_index(name);
    if index > 0 {
        let same = |place: &usize| matches!(STATIC.get(place - 1), Some((n, v)) if *n == name && *v == value);
        // Names with several values are adjacent.
        if let Some(place) = (index..index + 7)
            .take_while(|p| *p <= STATIC.len())
            .find(same)
        {
            out.push(0x80 | place as u8);
            return;
        }
    }
    // Secrets must not enter any table on the way either (section 7.1.3).
    let secret = matches!(
        name,
        b"authorization" | b"proxy-authorization" | b"cookie" | b"set-cookie"
    );
    write_integer(index, 4, if secret { 0x10 } else { 0 }, out);
    if index == 0 {
        write_text(name, out);
    }
    write_text(value, out);
}

fn write_text(text: &[u8], out: &mut Vec<u8>) {
    write_integer(text.len(), 7, 0, out);
    out.extend_from_slice(text);
}

fn write_integer(value: usize, bits: u32, flags: u8, out: &mut Vec<u8>) {
    let mask = (1_usize << bits) - 1;
    if value < mask {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Returns the first static entry with that name; 0: none.
fn name_index(name: &[u8]) -> usize {
    match name {
        b":authority" => 1,
        b":method" => 2,
        b":path" => 4,
        b":scheme" => 6,
        b":status" => 8,
        b"accept" => 19,
        b"accept-encoding" => 16,
        b"accept-language" => 17,
        b"accept-ranges" => 18,
        b"access-control-allow-origin" => 20,
        b"age" => 21,
        b"authorization" => 23,
        b"cache-control" => 24,
        b"content-encoding" => 26,
        b"content-length" => 28,
        b"content-type" => 31,
        b"cookie" => 32,
        b"date" => 33,
        b"etag" => 34,
        b"expires" => 36,
        b"last-modified" => 44,
        b"location" => 46,
        b"referer" => 51,
        b"server" => 54,
        b"set-cookie" => 55,
        b"user-agent" => 58,
        b"vary" => 59,
        b"via" => 60,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
