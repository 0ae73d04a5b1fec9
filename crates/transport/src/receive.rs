//! Reads the peer's bytes: takes frames out of any split, and checks each by its stream's state.
//!
//! Only a header or a control payload cut in two is buffered, at most 12 bytes.

use crate::connection::{MAX_CREDIT, Role, Workload};
use crate::flood::{CUT_STREAM, JUNK};
use crate::frame::{self, Header, SETTINGS_BYTES};
use crate::stream::Stream;
use crate::{
    Connection, ConnectionError, DEFAULT_MAX_STREAMS, DEFAULT_WINDOW, FRAME_HEADER, GoAwayCode,
    Handler, MAX_PAYLOAD, MAX_WORKLOAD, REVISION, ResetCode, StreamId, StreamKind,
};

/// Place of the next byte in the sequence of frames.
#[derive(Debug)]
pub(crate) struct Reader {
    state: State,
    /// A header or a control payload that has not arrived whole.
    partial: [u8; SETTINGS_BYTES],
    filled: usize,
    settings_seen: bool,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Header,
    /// Payload for a stream, `left` bytes of it; the stream may end while it arrives.
    Data {
        id: u32,
        left: usize,
        end: bool,
    },
    /// A control payload, of which revision 1 knows the first `wanted` bytes.
    Control {
        header: Header,
        wanted: usize,
    },
    /// The client's description of its workload.
    Workload {
        left: usize,
    },
    Skip {
        left: usize,
    },
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Header,
            partial: [0; SETTINGS_BYTES],
            filled: 0,
            settings_seen: false,
        }
    }

    /// Moves bytes from `bytes` to `partial`; true when `wanted` are there.
    fn fill(&mut self, bytes: &mut &[u8], wanted: usize) -> bool {
        let take = (wanted - self.filled).min(bytes.len());
        let (piece, rest) = bytes.split_at(take);
        if let Some(place) = self.partial.get_mut(self.filled..self.filled + take) {
            place.copy_from_slice(piece);
        }
        self.filled += take;
        *bytes = rest;
        if self.filled == wanted {
            self.filled = 0;
            return true;
        }
        false
    }

    /// `N` bytes of a control payload.
    fn bytes_at<const N: usize>(&self, at: usize) -> [u8; N] {
        let bytes = self.partial.get(at..).and_then(<[u8]>::first_chunk);
        bytes.copied().unwrap_or([0; N])
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes_at(at))
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes_at(at))
    }
}

impl Connection {
    /// Takes plaintext bytes from the peer, in any split, and calls `handler`. May append replies to
    /// `out`, at most 1.5 times the bytes given and one frame.
    ///
    /// # Errors
    /// The peer broke the protocol. GOAWAY with the reason is in `out`; write it, close the
    /// connection and call [`Self::close`]. Later calls give the same error.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result<(), ConnectionError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if !self.usable() {
            return Ok(());
        }
        let result = self.read_frames(bytes, handler, out);
        if let Err(error) = result {
            self.error = Some(error);
            self.draining = true;
            let last = match self.role {
                Role::Server => self.accepted_last.min(self.highest),
                Role::Client => 0,
            };
            frame::write_go_away(last, error.code(), out);
        }
        result
    }

    fn read_frames(
        &mut self,
        mut bytes: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result<(), ConnectionError> {
        while !bytes.is_empty() {
            match self.reader.state {
                State::Header => {
                    if self.reader.fill(&mut bytes, FRAME_HEADER) {
                        let header = Header::parse(self.reader.bytes_at(0));
                        self.reader.state = self.on_header(header, handler, out)?;
                    }
                }
                State::Data { id, left, end } => {
                    let (piece, rest) = bytes.split_at(left.min(bytes.len()));
                    bytes = rest;
                    self.on_payload(id, piece, handler);
                    let left = left - piece.len();
                    self.reader.state = if left > 0 {
                        State::Data { id, left, end }
                    } else {
                        if end {
                            self.on_peer_end(id, handler);
                        }
                        State::Header
                    };
                }
                State::Control { header, wanted } => {
                    if self.reader.fill(&mut bytes, wanted) {
                        self.on_control(header, handler, out)?;
                        self.reader.state = skip(usize::from(header.length) - wanted);
                    }
                }
                State::Workload { left } => {
                    let (piece, rest) = bytes.split_at(left.min(bytes.len()));
                    bytes = rest;
                    self.reader.state = self.on_workload(piece, left - piece.len(), handler);
                }
                State::Skip { left } => {
                    let (skipped, rest) = bytes.split_at(left.min(bytes.len()));
                    bytes = rest;
                    self.reader.state = skip(left - skipped.len());
                }
            }
        }
        Ok(())
    }

    fn on_header(
        &mut self,
        header: Header,
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result<State, ConnectionError> {
        let Header {
            length,
            frame,
            flags,
            id,
        } = header;
        if usize::from(length) > MAX_PAYLOAD {
            return Err(ConnectionError::FrameTooLong { length });
        }
        if !self.reader.settings_seen && frame != frame::SETTINGS {
            return Err(ConnectionError::SettingsMissing);
        }
        let (wanted, exact, on_stream) = match frame {
            frame::DATA => return self.on_data_header(header, handler, out),
            frame::RESET | frame::CREDIT => (4, true, true),
            frame::GO_AWAY | frame::PING | frame::PONG => (8, true, false),
            frame::SETTINGS => (SETTINGS_BYTES, false, false),
            _ if flags & frame::FLAG_IGNORABLE != 0 => {
                self.flood.charge(JUNK, "unknown frames")?;
                return Ok(self.on_ignorable(header));
            }
            _ => return Err(ConnectionError::FrameUnknown { frame }),
        };
        if flags != 0 {
            return Err(ConnectionError::FrameFlags { frame, flags });
        }
        if (id != 0) != on_stream {
            return Err(ConnectionError::FrameStream { frame, id });
        }
        let short = usize::from(length) < wanted;
        if short || (exact && usize::from(length) > wanted) {
            return Err(ConnectionError::FrameLength { frame, length });
        }
        Ok(State::Control { header, wanted })
    }

    /// Only a client's first description of its workload is read. Whatever else may be ignored is.
    fn on_ignorable(&mut self, header: Header) -> State {
        let left = usize::from(header.length);
        let is_workload = header.frame == frame::WORKLOAD
            && header.flags == frame::FLAG_IGNORABLE
            && header.id == 0
            && (1..=MAX_WORKLOAD).contains(&left);
        if !is_workload || self.role == Role::Client || !matches!(self.workload, Workload::Awaited)
        {
            return skip(left);
        }
        self.workload = Workload::Begun(Vec::new());
        State::Workload { left }
    }

    fn on_workload(&mut self, piece: &[u8], left: usize, handler: &mut impl Handler) -> State {
        if let Workload::Begun(description) = &mut self.workload {
            description.extend_from_slice(piece);
            if left == 0 {
                handler.on_workload(description);
                self.workload = Workload::Told;
            }
        }
        match left {
            0 => State::Header,
            left => State::Workload { left },
        }
    }

    fn on_data_header(
        &mut self,
        header: Header,
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result<State, ConnectionError> {
        let Header { flags, id, .. } = header;
        let frame = header.frame;
        let open = flags & frame::FLAG_OPEN != 0;
        let end = flags & frame::FLAG_END != 0;
        let length = u32::from(header.length);
        const KIND: u8 = frame::FLAG_TCP | frame::FLAG_HTTP2;
        let known = frame::FLAG_END | frame::FLAG_OPEN | KIND | frame::FLAG_EXHAUSTED;
        let kind = flags & KIND;
        if flags & !known != 0 || kind == KIND || (kind != 0 && !open) {
            return Err(ConnectionError::FrameFlags { frame, flags });
        }
        if id == 0 {
            return Err(ConnectionError::FrameStream { frame, id });
        }
        if open {
            self.on_open(header, handler, out)?;
        } else if id > self.highest {
            return Err(ConnectionError::StreamUnknown { id });
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return self.on_data_for_closed(id, length);
        };
        if !stream.receiving {
            return Err(ConnectionError::DataAfterEnd { id });
        }
        if length > stream.receive_credit {
            return Err(ConnectionError::CreditOverrun { id });
        }
        stream.receive_credit -= length;
        stream.exhausted |= flags & frame::FLAG_EXHAUSTED != 0;
        if self.role == Role::Client {
            self.answered = self.answered.max(id);
        }
        if length > 0 {
            let left = usize::from(header.length);
            return Ok(State::Data { id, left, end });
        }
        if end {
            self.on_peer_end(id, handler);
        } else if !open {
            self.flood.charge(JUNK, "empty frames")?;
        }
        Ok(State::Header)
    }

    /// Takes, refuses or ignores a new stream; in the latter cases it is not in the table
    /// afterwards.
    fn on_open(
        &mut self,
        header: Header,
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result<(), ConnectionError> {
        let id = header.id;
        if self.role == Role::Client || id <= self.highest || id == u32::MAX {
            return Err(ConnectionError::OpenInvalid { id });
        }
        if self.peer_go_away.is_some() {
            return Err(ConnectionError::OpenAfterGoAway { id });
        }
        self.highest = id;
        let passed_over = id > self.accepted_last;
        if !passed_over && !self.full(self.config.max_streams) {
            let kind = match header.flags & (frame::FLAG_TCP | frame::FLAG_HTTP2) {
                0 => StreamKind::Http,
                frame::FLAG_HTTP2 => StreamKind::Http2,
                _ => StreamKind::Tcp,
            };
            let stream_id = StreamId::new(id);
            let token = handler.on_open(stream_id, kind);
            let mut stream = Stream::new(kind, token, self.peer_window, self.config.window);
            stream.announced = true;
            self.insert(id, stream);
            return Ok(());
        }
        // Bytes the client may send before it learns that the stream was refused.
        let ended = header.flags & frame::FLAG_END != 0;
        let window = if ended {
            u32::from(header.length)
        } else {
            self.config.window
        };
        self.discardable = self.discardable.saturating_add(u64::from(window));
        if passed_over {
            // GOAWAY is on its way and refuses this stream.
            return self.flood.charge(JUNK, "streams after go-away");
        }
        frame::write_reset(StreamId::new(id), ResetCode::Refused, out);
        // If there is room among the open streams, our own unread bytes are in the way.
        let room = self.active < self.config.max_streams as usize;
        let price = if room { JUNK } else { CUT_STREAM };
        self.flood.charge(price, "streams over the limit")
    }

    /// Handles DATA for a stream that we reset, which the peer may not know yet. It can have sent
    /// no more than its credit then; anything else breaks the protocol.
    fn on_data_for_closed(&mut self, id: u32, length: u32) -> Result<State, ConnectionError> {
        if length == 0 {
            self.flood.charge(JUNK, "frames for closed streams")?;
            return Ok(State::Header);
        }
        match self.discardable.checked_sub(u64::from(length)) {
            Some(left) => {
                self.discardable = left;
                Ok(skip(length as usize))
            }
            None => Err(ConnectionError::DataAfterEnd { id }),
        }
    }

    fn on_payload(&mut self, id: u32, piece: &[u8], handler: &mut impl Handler) {
        // The stream is gone if the owner reset it in the middle of a frame.
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.unread += piece.len() as u32;
            self.unread += piece.len() as u64;
            handler.on_data(stream.token, StreamId::new(id), piece);
        }
    }

    fn on_peer_end(&mut self, id: u32, handler: &mut impl Handler) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let token = stream.token;
        self.ended(id, |stream| stream.receiving = false);
        handler.on_end(token, StreamId::new(id));
    }

    fn on_control(
        &mut self,
        header: Header,
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result<(), ConnectionError> {
        match header.frame {
            frame::RESET => self.on_reset(header.id, handler),
            frame::CREDIT => self.on_credit(header.id, handler),
            frame::GO_AWAY => self.on_go_away(handler),
            frame::SETTINGS => self.on_settings(handler),
            frame::PING => {
                self.flood.charge(JUNK, "pings")?;
                frame::write(frame::PONG, 0, 0, &self.reader.bytes_at::<8>(0), out);
                Ok(())
            }
            _ => {
                self.flood.charge(JUNK, "pongs")?;
                handler.on_pong(self.reader.bytes_at(0));
                Ok(())
            }
        }
    }

    fn on_reset(&mut self, id: u32, handler: &mut impl Handler) -> Result<(), ConnectionError> {
        if id > self.highest {
            return Err(ConnectionError::StreamUnknown { id });
        }
        let code = ResetCode::from_wire(self.reader.u32_at(0));
        match self.streams.get(&id) {
            Some(stream) if !stream.finished() => {}
            // It crossed with our own reset or with the end of the stream.
            _ => return self.flood.charge(JUNK, "resets of closed streams"),
        }
        let Some(stream) = self.remove(id) else {
            return Ok(());
        };
        handler.on_reset(stream.token, StreamId::new(id), code);
        match self.role {
            Role::Server if self.is_rapid(&stream) => self.flood.charge(CUT_STREAM, "resets"),
            // A client pays for each with an OPEN of its own, so a flood is impossible.
            _ => Ok(()),
        }
    }

    fn on_credit(&mut self, id: u32, handler: &mut impl Handler) -> Result<(), ConnectionError> {
        let increment = self.reader.u32_at(0);
        if id > self.highest {
            return Err(ConnectionError::StreamUnknown { id });
        }
        if increment == 0 {
            return Err(ConnectionError::CreditInvalid { id, increment });
        }
        // An honest peer gives credit for bytes we sent, and those earned more than this price.
        self.flood.charge(JUNK, "credit frames")?;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        match stream.send_credit.checked_add(increment) {
            Some(credit) if credit <= MAX_CREDIT => stream.send_credit = credit,
            _ => return Err(ConnectionError::CreditInvalid { id, increment }),
        }
        if stream.sending {
            handler.on_credit(stream.token, StreamId::new(id));
        }
        Ok(())
    }

    fn on_go_away(&mut self, handler: &mut impl Handler) -> Result<(), ConnectionError> {
        let last = self.reader.u32_at(0);
        let code = GoAwayCode::from_wire(self.reader.u32_at(4));
        self.flood.charge(JUNK, "go-aways")?;
        let before = self.peer_go_away.unwrap_or(u32::MAX);
        let possible = match self.role {
            Role::Server => last == 0,
            Role::Client => last >= self.answered && (last <= self.highest || last == u32::MAX),
        };
        if !possible || last > before {
            return Err(ConnectionError::GoAwayInvalid { last });
        }
        self.peer_go_away = Some(last);
        self.draining = true;
        if self.role == Role::Client {
            self.refuse_above(last, handler);
        }
        handler.on_go_away(last, code);
        Ok(())
    }

    /// Refuses the streams that the server did not take, and those it never heard of.
    fn refuse_above(&mut self, last: u32, handler: &mut impl Handler) {
        let mut streams = std::mem::take(&mut self.streams);
        streams.retain(|&id, stream| {
            let keep = id <= last && stream.announced;
            if !keep {
                self.forget(stream);
                handler.on_reset(stream.token, StreamId::new(id), ResetCode::Refused);
            }
            keep
        });
        self.streams = streams;
    }

    fn on_settings(&mut self, handler: &mut impl Handler) -> Result<(), ConnectionError> {
        if self.reader.settings_seen {
            return Err(ConnectionError::SettingsRepeated);
        }
        self.reader.settings_seen = true;
        let revision = u32::from(self.reader.u16_at(0));
        let max_payload = u32::from(self.reader.u16_at(2));
        let window = self.reader.u32_at(4);
        let max_streams = self.reader.u32_at(8);
        // SETTINGS may only raise the guaranteed values: the client did not wait for them.
        let ranges = [
            ("revision", revision, u32::from(REVISION), u32::MAX),
            ("longest payload", max_payload, MAX_PAYLOAD as u32, u32::MAX),
            ("initial credit", window, DEFAULT_WINDOW, MAX_CREDIT),
        ];
        for (field, value, low, high) in ranges {
            if value < low || value > high {
                return Err(ConnectionError::SettingsInvalid { field, value });
            }
        }
        if self.role == Role::Server {
            self.peer_window = window;
            return Ok(());
        }
        if max_streams < DEFAULT_MAX_STREAMS {
            let field = "most streams";
            let value = max_streams;
            return Err(ConnectionError::SettingsInvalid { field, value });
        }
        self.peer_max_streams = max_streams;
        // Streams opened before get the difference, as the server counted from its own value.
        let more = window - self.peer_window;
        self.peer_window = window;
        if more > 0 {
            for (&id, stream) in &mut self.streams {
                stream.send_credit += more;
                if stream.sending {
                    handler.on_credit(stream.token, StreamId::new(id));
                }
            }
        }
        Ok(())
    }
}

fn skip(left: usize) -> State {
    match left {
        0 => State::Header,
        left => State::Skip { left },
    }
}
