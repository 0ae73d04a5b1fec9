//! Buffers the bytes that have arrived for each stream and were not read yet.

use std::task::Waker;
use tulle_net::Buf;
use tulle_transport::{GoAwayCode, Handler, ResetCode, StreamId, StreamKind};

/// Per-stream state, found by the transport's token.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) slots: Vec<Slot>,
    free: Vec<usize>,
    pub(super) opened: Vec<(StreamId, StreamKind, usize)>,
    /// How the client describes its workload, until somebody takes it.
    pub(super) description: Option<Box<[u8]>>,
}

#[derive(Default)]
pub(super) struct Slot {
    pub(super) received: Buf,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    pub(super) ended: bool,
    pub(super) reset: Option<ResetCode>,
    /// Whether it is in `waiting`; it stays so if the slot is reused meanwhile.
    pub(super) queued: bool,
}

impl Slots {
    pub(super) fn take(&mut self) -> usize {
        let key = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[key];
        slot.ended = false;
        slot.reset = None;
        key
    }

    pub(super) fn give_back(&mut self, key: usize) {
        let slot = &mut self.slots[key];
        slot.received.release();
        slot.reader = None;
        slot.writer = None;
        self.free.push(key);
    }
}

impl Slot {
    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }
}

impl Handler for Slots {
    fn on_open(&mut self, id: StreamId, kind: StreamKind) -> usize {
        let key = self.take();
        self.opened.push((id, kind, key));
        key
    }

    fn on_data(&mut self, token: usize, _: StreamId, data: &[u8]) {
        let slot = &mut self.slots[token];
        slot.received.extend_from_slice(data);
        if let Some(waker) = slot.reader.take() {
            waker.wake();
        }
    }

    fn on_end(&mut self, token: usize, _: StreamId) {
        let slot = &mut self.slots[token];
        slot.ended = true;
        if let Some(waker) = slot.reader.take() {
            waker.wake();
        }
    }

    fn on_reset(&mut self, token: usize, _: StreamId, code: ResetCode) {
        let slot = &mut self.slots[token];
        slot.reset = Some(code);
        slot.wake();
    }

    fn on_credit(&mut self, token: usize, _: StreamId) {
        if let Some(waker) = self.slots[token].writer.take() {
            waker.wake();
        }
    }

    fn on_go_away(&mut self, _: u32, _: GoAwayCode) {}

    fn on_pong(&mut self, _: [u8; 8]) {}

    fn on_workload(&mut self, description: &[u8]) {
        self.description = Some(description.into());
    }
}
