//! The eight bytes before each payload, and the frames that have a fixed form.

use crate::{Config, FRAME_HEADER, GoAwayCode, MAX_PAYLOAD, REVISION, ResetCode, StreamId};

pub(crate) const DATA: u8 = 0;
pub(crate) const RESET: u8 = 1;
pub(crate) const CREDIT: u8 = 2;
pub(crate) const GO_AWAY: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 5;
pub(crate) const PONG: u8 = 6;
/// Always with [`FLAG_IGNORABLE`]: peers of earlier releases skip it.
pub(crate) const WORKLOAD: u8 = 7;

/// DATA: the last of this direction.
pub(crate) const FLAG_END: u8 = 0x01;
/// DATA: the first of the stream.
pub(crate) const FLAG_OPEN: u8 = 0x02;
/// DATA with OPEN: the stream carries a TCP connection, not an HTTP exchange.
pub(crate) const FLAG_TCP: u8 = 0x04;
/// DATA: used the last of the sender's credit; a wider window would help.
pub(crate) const FLAG_EXHAUSTED: u8 = 0x08;
/// DATA with OPEN: the request came as HTTP/2. Not with TCP.
pub(crate) const FLAG_HTTP2: u8 = 0x10;
/// Any frame of unknown type: may be skipped by a peer that does not know it.
pub(crate) const FLAG_IGNORABLE: u8 = 0x80;

/// Bytes of SETTINGS that revision 1 defines; a later revision may append.
pub(crate) const SETTINGS_BYTES: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) length: u16,
    pub(crate) frame: u8,
    pub(crate) flags: u8,
    pub(crate) id: u32,
}

impl Header {
    pub(crate) fn parse(bytes: [u8; FRAME_HEADER]) -> Self {
        let [l0, l1, frame, flags, i0, i1, i2, i3] = bytes;
        Self {
            length: u16::from_be_bytes([l0, l1]),
            frame,
            flags,
            id: u32::from_be_bytes([i0, i1, i2, i3]),
        }
    }

    fn to_bytes(self) -> [u8; FRAME_HEADER] {
        let [l0, l1] = self.length.to_be_bytes();
        let [i0, i1, i2, i3] = self.id.to_be_bytes();
        [l0, l1, self.frame, self.flags, i0, i1, i2, i3]
    }
}

/// Appends one frame. `payload` is cut at [`MAX_PAYLOAD`]; callers never pass more.
#[inline]
pub(crate) fn write(frame: u8, flags: u8, id: u32, payload: &[u8], out: &mut Vec<u8>) {
    debug_assert!(payload.len() <= MAX_PAYLOAD);
    let payload = payload.get(..MAX_PAYLOAD).unwrap_or(payload);
    let length = payload.len() as u16;
    let header = Header {
        length,
        frame,
        flags,
        id,
    };
    out.reserve(FRAME_HEADER + payload.len());
    out.extend_from_slice(&header.to_bytes());
    out.extend_from_slice(payload);
}

pub(crate) fn write_settings(config: &Config, max_streams: u32, out: &mut Vec<u8>) {
    let mut payload = [0; SETTINGS_BYTES];
    payload[0..2].copy_from_slice(&REVISION.to_be_bytes());
    payload[2..4].copy_from_slice(&(MAX_PAYLOAD as u16).to_be_bytes());
    payload[4..8].copy_from_slice(&config.window.to_be_bytes());
    payload[8..12].copy_from_slice(&max_streams.to_be_bytes());
    write(SETTINGS, 0, 0, &payload, out);
}

pub(crate) fn write_reset(id: StreamId, code: ResetCode, out: &mut Vec<u8>) {
    write(RESET, 0, id.value(), &code.to_wire().to_be_bytes(), out);
}

pub(crate) fn write_credit(id: u32, increment: u32, out: &mut Vec<u8>) {
    write(CREDIT, 0, id, &increment.to_be_bytes(), out);
}

pub(crate) fn write_go_away(last: u32, code: GoAwayCode, out: &mut Vec<u8>) {
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(&last.to_be_bytes());
    payload[4..].copy_from_slice(&code.to_wire().to_be_bytes());
    write(GO_AWAY, 0, 0, &payload, out);
}

pub(crate) fn write_workload(description: &[u8], out: &mut Vec<u8>) {
    write(WORKLOAD, FLAG_IGNORABLE, 0, description, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_eight_big_endian_bytes() {
        let mut out = Vec::new();
        write(DATA, FLAG_OPEN | FLAG_END, 0x0102_0304, b"abc", &mut out);
        assert_eq!(out, [0, 3, 0, 3, 1, 2, 3, 4, b'a', b'b', b'c']);
        let mut header = [0; FRAME_HEADER];
        header.copy_from_slice(&out[..FRAME_HEADER]);
        let parsed = Header::parse(header);
        assert_eq!((parsed.length, parsed.frame, parsed.flags), (3, DATA, 3));
        assert_eq!(parsed.id, 0x0102_0304);
    }

    #[test]
    fn the_largest_frame_fits_a_tls_record() {
        let mut out = Vec::new();
        write(DATA, 0, 1, &[0; MAX_PAYLOAD], &mut out);
        assert_eq!(out.len(), 16_384);
    }
}
