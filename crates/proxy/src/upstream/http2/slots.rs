//! Buffers the bytes that have arrived for each stream and were not read yet.

use std::task::{Context, Waker};
use tulle_http2::{ErrorCode, Framing, Handler};
use tulle_net::Buf;

/// Per-stream state, found by the codec's key.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// New streams that no handler has, in order.
    pub(super) opened: Vec<usize>,
}

pub(super) struct Slot {
    head: Buf,
    body: Buf,
    trailers: Vec<u8>,
    framing: Framing,
    /// The end of a chunked body was passed on.
    closed: bool,
    pub(super) ended: bool,
    pub(super) reset: Option<ErrorCode>,
    reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    /// Whether it is in `waiting`; it stays so if the slot is reused meanwhile.
    pub(super) queued: bool,
}

impl Slots {
    pub(super) fn at(&mut self, key: usize) -> &mut Slot {
        while self.slots.len() <= key {
            self.slots.push(Slot {
                head: Buf::new(),
                body: Buf::new(),
                trailers: Vec::new(),
                framing: Framing::None,
                closed: false,
                ended: false,
                reset: None,
                reader: None,
                writer: None,
                queued: false,
            });
        }
        &mut self.slots[key]
    }

    pub(super) fn begin(&mut self, key: usize) {
        let slot = self.at(key);
        slot.framing = Framing::None;
        slot.closed = false;
        slot.ended = false;
        slot.reset = None;
    }

    pub(super) fn end(&mut self, key: usize) {
        let slot = self.at(key);
        slot.head.release();
        slot.body.release();
        slot.trailers = Vec::new();
        slot.reader = None;
        slot.writer = None;
    }

    /// Whether some stream has bytes to send and waits for the peer's credit.
    pub(super) fn any_waits_for_credit(&self) -> bool {
        self.slots.iter().any(|s| s.writer.is_some() && !s.queued)
    }

    pub(super) fn wake_all(&mut self) {
        for slot in &mut self.slots {
            slot.wake();
        }
    }
}

impl Slot {
    fn wake(&mut self) {
        self.wake_reader();
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }

    fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    pub(super) fn read_later(&mut self, cx: &Context<'_>) {
        match &self.reader {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => self.reader = Some(cx.waker().clone()),
        }
    }

    /// Moves the arrived bytes to `buf`, in HTTP/1.1 form. Returns true if some were the body's.
    pub(super) fn take(&mut self, buf: &mut Buf) -> bool {
        append(&mut self.head, buf);
        let body = !self.body.is_empty();
        if self.framing != Framing::Chunked {
            append(&mut self.body, buf);
            return body;
        }
        if body {
            // All bytes at hand make one chunk, so framing costs the same however small the frames
            // were.
            let mut size = [0; 20];
            let size = chunk_size(self.body.len(), &mut size);
            buf.make_room(size.len() + self.body.len() + 16);
            buf.extend_from_slice(size);
            buf.extend_from_slice(self.body.as_slice());
            buf.extend_from_slice(b"\r\n");
            self.body.release();
        }
        if self.ended && !std::mem::replace(&mut self.closed, true) {
            buf.extend_from_slice(b"0\r\n");
            buf.extend_from_slice(&std::mem::take(&mut self.trailers));
            buf.extend_from_slice(b"\r\n");
        }
        body
    }
}

fn append(from: &mut Buf, buf: &mut Buf) {
    if from.is_empty() {
        return;
    }
    if buf.is_empty() {
        std::mem::swap(from, buf);
    } else {
        buf.extend_from_slice(from.as_slice());
    }
    from.release();
}

/// `size` in hexadecimal, with the line's end.
fn chunk_size(size: usize, text: &mut [u8; 20]) -> &[u8] {
    let mut at = 18;
    text[18..].copy_from_slice(b"\r\n");
    let mut rest = size;
    loop {
        at -= 1;
        text[at] = b"0123456789abcdef"[rest & 15];
        rest >>= 4;
        if rest == 0 {
            return &text[at..];
        }
    }
}

impl Handler for Slots {
    fn on_open(&mut self, key: usize) {
        self.begin(key);
        self.opened.push(key);
    }

    fn on_head(&mut self, key: usize, head: &[u8], framing: Framing) {
        let slot = self.at(key);
        slot.framing = framing;
        slot.head.extend_from_slice(head);
        slot.wake_reader();
    }

    fn on_data(&mut self, key: usize, data: &[u8]) {
        let slot = self.at(key);
        slot.body.extend_from_slice(data);
        slot.wake_reader();
    }

    fn on_trailers(&mut self, key: usize, lines: &[u8]) {
        let slot = self.at(key);
        // Without chunks there is no place for trailers (RFC 9110, section 6.5: they may be
        // dropped).
        if slot.framing == Framing::Chunked {
            slot.trailers.extend_from_slice(lines);
        }
    }

    fn on_end(&mut self, key: usize) {
        let slot = self.at(key);
        slot.ended = true;
        slot.wake_reader();
    }

    fn on_reset(&mut self, key: usize, code: ErrorCode) {
        let slot = self.at(key);
        slot.reset = Some(code);
        slot.wake();
    }

    fn on_credit(&mut self, key: usize) {
        if let Some(waker) = self.at(key).writer.take() {
            waker.wake();
        }
    }

    fn on_connection_credit(&mut self) {
        for slot in &mut self.slots {
            if let Some(waker) = slot.writer.take() {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_in_hexadecimal() {
        for size in [0, 1, 15, 16, 0xabc, 65_536, usize::MAX] {
            let expected = format!("{size:x}\r\n");
            assert_eq!(chunk_size(size, &mut [0; 20]), expected.as_bytes());
        }
    }

    #[test]
    fn pieces_become_one_chunk_and_the_end_comes_once() {
        let mut slots = Slots::default();
        slots.on_open(2);
        slots.on_head(2, b"head ", Framing::Chunked);
        slots.on_data(2, b"abc");
        slots.on_data(2, b"def");
        let mut buf = Buf::new();
        assert!(slots.at(2).take(&mut buf));
        assert_eq!(buf.as_slice(), b"head 6\r\nabcdef\r\n");
        buf.release();
        slots.on_trailers(2, b"a: b\r\n");
        slots.on_end(2);
        assert!(!slots.at(2).take(&mut buf));
        assert_eq!(buf.as_slice(), b"0\r\na: b\r\n\r\n");
        buf.release();
        assert!(!slots.at(2).take(&mut buf) && buf.is_empty());
    }
}
