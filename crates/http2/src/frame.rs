//! The nine bytes before each payload, and the frames that have a fixed form (RFC 9113, sections 4
//! and 6).

use crate::ErrorCode;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GO_AWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 0x01;
pub(crate) const ACK: u8 = 0x01;
pub(crate) const END_HEADERS: u8 = 0x04;
pub(crate) const PADDED: u8 = 0x08;
pub(crate) const PRIORITIZED: u8 = 0x20;

pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
pub(crate) const ENABLE_PUSH: u16 = 2;
pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(crate) const MAX_FRAME_SIZE: u16 = 5;
pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
pub(crate) const ENABLE_CONNECT_PROTOCOL: u16 = 8;

/// Bytes of a frame's header.
pub(crate) const HEADER: usize = 9;
/// Most payload bytes in a frame, either way: the protocol's default, which fits a TLS record.
pub(crate) const MAX_PAYLOAD: usize = 16_384;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) length: usize,
    pub(crate) frame: u8,
    pub(crate) flags: u8,
    pub(crate) id: u32,
}

impl Header {
    /// The header at the start of `bytes`, if it is complete.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let &[l0, l1, l2, frame, flags, i0, i1, i2, i3] = bytes.first_chunk()?;
        Some(Self {
            length: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            frame,
            flags,
            // The first bit is reserved and ignored.
            id: u32::from_be_bytes([i0, i1, i2, i3]) & 0x7fff_ffff,
        })
    }

    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

pub(crate) fn header(length: usize, frame: u8, flags: u8, id: u32) -> [u8; HEADER] {
    let [_, l0, l1, l2] = (length as u32).to_be_bytes();
    let [i0, i1, i2, i3] = id.to_be_bytes();
    [l0, l1, l2, frame, flags, i0, i1, i2, i3]
}

/// Appends one frame. No payload is longer than [`MAX_PAYLOAD`].
pub(crate) fn write(frame: u8, flags: u8, id: u32, payload: &[u8], out: &mut Vec<u8>) {
    debug_assert!(payload.len() <= MAX_PAYLOAD);
    out.reserve(HEADER + payload.len());
    out.extend_from_slice(&header(payload.len(), frame, flags, id));
    out.extend_from_slice(payload);
}

/// Appends a header block in as many frames as it takes. Returns the place of the flags of the
/// first one, so that the end of the stream can still be marked.
pub(crate) fn write_block(end: bool, id: u32, block: &[u8], out: &mut Vec<u8>) -> usize {
    let place = out.len() + 4;
    let mut rest = block;
    let mut kind = HEADERS;
    let mut flags = if end { END_STREAM } else { 0 };
    loop {
        let (piece, tail) = rest.split_at(rest.len().min(MAX_PAYLOAD));
        if tail.is_empty() {
            flags |= END_HEADERS;
        }
        write(kind, flags, id, piece, out);
        if tail.is_empty() {
            return place;
        }
        (rest, kind, flags) = (tail, CONTINUATION, 0);
    }
}

pub(crate) fn write_settings(settings: &[(u16, u32)], out: &mut Vec<u8>) {
    out.extend_from_slice(&header(settings.len() * 6, SETTINGS, 0, 0));
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub(crate) fn write_reset(id: u32, code: ErrorCode, out: &mut Vec<u8>) {
    write(RST_STREAM, 0, id, &code.to_wire().to_be_bytes(), out);
}

pub(crate) fn write_window_update(id: u32, increment: u32, out: &mut Vec<u8>) {
    write(WINDOW_UPDATE, 0, id, &increment.to_be_bytes(), out);
}

pub(crate) fn write_go_away(last: u32, code: ErrorCode, out: &mut Vec<u8>) {
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(&last.to_be_bytes());
    payload[4..].copy_from_slice(&code.to_wire().to_be_bytes());
    write(GO_AWAY, 0, 0, &payload, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_block_is_continued() {
        let mut out = Vec::new();
        let place = write_block(true, 5, &[7; MAX_PAYLOAD + 3], &mut out);
        assert_eq!(out[place], END_STREAM);
        let second = Header::parse(&out[HEADER + MAX_PAYLOAD..]).unwrap();
        assert_eq!((second.frame, second.length), (CONTINUATION, 3));
        assert!(second.has(END_HEADERS) && second.id == 5);
        assert_eq!(out.len(), 2 * HEADER + MAX_PAYLOAD + 3);
    }

    #[test]
    fn a_header_that_is_cut_is_none_and_the_reserved_bit_is_ignored() {
        assert_eq!(Header::parse(&[0; 8]), None);
        let parsed = Header::parse(&[0, 1, 2, 3, 4, 0x80, 0, 0, 9]).unwrap();
        assert_eq!((parsed.length, parsed.id), (258, 9));
    }
}
