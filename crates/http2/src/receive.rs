//! Checks the peer's frames by the rules of RFC 9113, sections 4 to 6, and passes them on.

use crate::connection::{Block, CONNECTION_WINDOW, MAX_WINDOW, Role};
use crate::flood::{CUT_STREAM, JUNK, LARGE_HEAD};
use crate::frame::{self, HEADER, Header, MAX_PAYLOAD};
use crate::head_in::Kind;
use crate::stream::{Sending, at, at_mut};
use crate::{Connection, ConnectionError, ErrorCode, Framing, Handler, PREFACE, websocket};

/// Frames of one header block. 64 KiB fit in four; more than this many is a flood
/// (CVE-2024-27316).
const BLOCK_FRAMES: u32 = 32;
/// Bytes of a block beyond those of the head: the overhead of names and values compared with
/// HTTP/1.1.
const BLOCK_EXTRA: usize = 16 * 1024;

type Result<T = ()> = std::result::Result<T, ConnectionError>;

fn protocol<T>(text: &'static str) -> Result<T> {
    Err(ConnectionError::protocol(text))
}

fn frame_size<T>(text: &'static str) -> Result<T> {
    Err(ConnectionError::new(ErrorCode::FrameSize, text))
}

fn flow_control<T>(text: &'static str) -> Result<T> {
    Err(ConnectionError::new(ErrorCode::FlowControl, text))
}

fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from_be_bytes(*b))
}

impl Connection {
    /// Takes the whole frames at the start of `bytes` and returns their length. The caller keeps
    /// the rest, which is shorter than one frame, and passes it again with the bytes that follow.
    /// Answers are appended to `out`, at most twice as many bytes as were taken.
    ///
    /// # Errors
    /// The peer broke the protocol. GOAWAY is in `out`; write it and close.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result<usize> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let result = self.receive_frames(bytes, handler, out);
        if let Err(error) = result {
            self.error = Some(error);
            frame::write_go_away(self.highest, error.code, out);
        }
        result
    }

    fn receive_frames(
        &mut self,
        bytes: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result<usize> {
        let mut at = self.receive_preface(bytes)?;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let Some(header) = Header::parse(rest) else {
                return Ok(at);
            };
            if header.length > MAX_PAYLOAD {
                return frame_size("a frame is longer than SETTINGS_MAX_FRAME_SIZE");
            }
            let Some(payload) = rest.get(HEADER..HEADER + header.length) else {
                return Ok(at);
            };
            self.frame(header, payload, handler, out)?;
            at += HEADER + header.length;
        }
    }

    fn receive_preface(&mut self, bytes: &[u8]) -> Result<usize> {
        if self.role == Role::Client || self.preface == PREFACE.len() {
            return Ok(0);
        }
        let wanted = PREFACE.get(self.preface..).unwrap_or_default();
        let count = bytes.len().min(wanted.len());
        if bytes.get(..count) != wanted.get(..count) {
            return protocol("the connection does not begin with the preface of HTTP/2");
        }
        self.preface += count;
        Ok(count)
    }

    fn frame(
        &mut self,
        header: Header,
        payload: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result {
        if !self.settings_seen && (header.frame != frame::SETTINGS || header.has(frame::ACK)) {
            return protocol("the first frame is not SETTINGS");
        }
        if self.block.is_some() && header.frame != frame::CONTINUATION {
            return protocol("a header block is interrupted by another frame");
        }
        match header.frame {
            frame::DATA => self.on_data(header, payload, handler, out),
            frame::HEADERS => self.on_headers(header, payload, handler, out),
            frame::CONTINUATION => self.on_continuation(header, payload, handler, out),
            frame::RST_STREAM => self.on_reset(header, payload, handler),
            frame::WINDOW_UPDATE => self.on_window_update(header, payload, handler, out),
            frame::SETTINGS => self.on_settings(header, payload, handler, out),
            frame::PING => self.on_ping(header, payload, out),
            frame::GO_AWAY => self.on_go_away(header, payload, handler),
            frame::PRIORITY => self.on_priority(header, payload, out),
            // Servers never accept it, and our SETTINGS forbid servers to send it.
            frame::PUSH_PROMISE => protocol("PUSH_PROMISE"),
            _ => self.flood.charge(JUNK, "too many unknown frames"),
        }
    }

    /// Checks that a frame with that id is allowed: the client has opened its stream.
    fn check_not_idle(&self, id: u32) -> Result {
        if id == 0 {
            return protocol("a frame of a stream has stream id 0");
        }
        if id > self.highest || id.is_multiple_of(2) {
            return protocol("a frame for a stream that was never opened");
        }
        Ok(())
    }

    fn on_data(
        &mut self,
        header: Header,
        payload: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result {
        let id = header.id;
        self.check_not_idle(id)?;
        let data = unpad(header, payload)?;
        let whole = payload.len() as u32;
        let Some(left) = self.receive_window.checked_sub(whole) else {
            return flow_control("DATA beyond the credit of the connection");
        };
        self.receive_window = left;
        if left < CONNECTION_WINDOW / 2 {
            frame::write_window_update(0, CONNECTION_WINDOW - left, out);
            self.receive_window = CONNECTION_WINDOW;
        }
        let end = header.has(frame::END_STREAM);
        if data.is_empty() && !end {
            self.flood.charge(JUNK, "too many empty DATA frames")?;
        }
        let Some(&key) = self.ids.get(&id) else {
            if self.cut.has(id) {
                // It was on its way when we cut the stream.
                return self.flood.charge(64, "DATA for closed streams");
            }
            return closed("DATA for a closed stream");
        };
        let stream = at_mut(&mut self.streams, key);
        if !stream.receiving {
            return closed("DATA after the end of its stream");
        }
        if !stream.head_seen {
            return protocol("DATA before HEADERS");
        }
        let Some(left) = stream.receive_window.checked_sub(whole) else {
            return flow_control("DATA beyond the credit of its stream");
        };
        stream.receive_window = left;
        // Padding is never buffered.
        let count = data.len() as u32;
        stream.pending += whole - count;
        stream.unread += count;
        if let Some(wanted) = stream.left {
            let Some(wanted) = wanted.checked_sub(u64::from(count)) else {
                return self.malformed(key, handler, out);
            };
            stream.left = Some(wanted);
        }
        if count > 0 {
            handler.on_data(key, data);
        }
        if end {
            self.on_end(key, handler, out)
        } else {
            Ok(())
        }
    }

    fn on_end(&mut self, key: usize, handler: &mut impl Handler, out: &mut Vec<u8>) -> Result {
        let stream = at_mut(&mut self.streams, key);
        if stream.left.is_some_and(|left| left > 0) {
            return self.malformed(key, handler, out);
        }
        stream.receiving = false;
        self.direction_ended(key);
        handler.on_end(key);
        Ok(())
    }

    /// Cuts the stream of a message that breaks the rules of section 8.
    fn malformed(&mut self, key: usize, handler: &mut impl Handler, out: &mut Vec<u8>) -> Result {
        self.cut_stream(key, ErrorCode::Protocol, handler, out)
    }

    /// Cuts a stream by the peer's fault, for which the peer pays.
    fn cut_stream(
        &mut self,
        key: usize,
        code: ErrorCode,
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result {
        let stream = at(&self.streams, key);
        if !stream.finished() {
            self.reset(key, code, out);
            handler.on_reset(key, code);
        }
        self.flood
            .charge(CUT_STREAM + 2 * JUNK, "too many streams had to be reset")
    }

    fn on_headers(
        &mut self,
        header: Header,
        payload: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result {
        let id = header.id;
        if id == 0 || id.is_multiple_of(2) {
            return protocol("HEADERS with stream id 0 or an even one");
        }
        let mut block = unpad(header, payload)?;
        if header.has(frame::PRIORITIZED) {
            let Some((dependency, rest)) = block.split_at_checked(5) else {
                return frame_size("HEADERS are shorter than their priority");
            };
            if number(dependency) & MAX_WINDOW == id {
                return protocol("a stream depends on itself");
            }
            block = rest;
        }
        let end = header.has(frame::END_STREAM);
        if header.has(frame::END_HEADERS) {
            return self.on_block(id, end, block, handler, out);
        }
        self.block = Some(Block {
            id,
            end,
            frames: 1,
            bytes: block.to_vec(),
        });
        Ok(())
    }

    fn on_continuation(
        &mut self,
        header: Header,
        payload: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result {
        let limit = self.config.head_bytes + BLOCK_EXTRA;
        let Some(block) = self.block.as_mut().filter(|b| b.id == header.id) else {
            return protocol("CONTINUATION without its HEADERS");
        };
        block.frames += 1;
        if block.frames > BLOCK_FRAMES || block.bytes.len() + payload.len() > limit {
            return Err(ConnectionError::new(
                ErrorCode::EnhanceYourCalm,
                "a header block is far larger than the limit for a head",
            ));
        }
        block.bytes.extend_from_slice(payload);
        if payload.is_empty() {
            self.flood
                .charge(JUNK, "too many empty CONTINUATION frames")?;
        }
        if header.has(frame::END_HEADERS)
            && let Some(block) = self.block.take()
        {
            return self.on_block(block.id, block.end, &block.bytes, handler, out);
        }
        Ok(())
    }

    /// Handles a whole header block: a request, a response or trailers.
    fn on_block(
        &mut self,
        id: u32,
        end: bool,
        block: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result {
        match self.ids.get(&id).copied() {
            Some(key) => self.on_known(key, end, block, handler, out),
            None if id > self.highest && self.role == Role::Server => {
                self.on_request(id, end, block, handler, out)
            }
            None if self.cut.has(id) => {
                // The block is decoded, because later blocks build on it.
                self.decode(Kind::Trailers, block)?;
                self.flood.charge(JUNK, "HEADERS for closed streams")
            }
            None if self.ended.has(id) => closed("HEADERS for a closed stream"),
            None => protocol("HEADERS for a stream that cannot be opened any more"),
        }
    }

    fn decode(&mut self, kind: Kind, block: &[u8]) -> Result {
        let (reader, limit) = (&mut self.reader, self.config.head_bytes);
        reader.begin(kind);
        self.decoder
            .decode(block, limit, |name, value| reader.field(name, value))
            .map_err(|_| {
                ConnectionError::new(ErrorCode::Compression, "a header block cannot be decoded")
            })
    }

    fn on_request(
        &mut self,
        id: u32,
        end: bool,
        block: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result {
        self.highest = id;
        self.decode(Kind::Request, block)?;
        if id > self.accepted_last {
            // GOAWAY is on its way and refuses this stream.
            self.cut.push(id);
            return self.flood.charge(JUNK, "streams after GOAWAY");
        }
        let nonce = &mut self.nonce;
        let head = self
            .reader
            .finish(end, || websocket::key(Self::next_nonce(nonce)));
        let refused = match head {
            Err(_) => ErrorCode::Protocol,
            Ok(_) if self.full(self.config.max_streams) => ErrorCode::RefusedStream,
            Ok(head) => {
                if head.too_large {
                    let what = "too many heads that are over the limits";
                    self.flood.charge(LARGE_HEAD, what)?;
                }
                let key = self.insert(id);
                let stream = at_mut(&mut self.streams, key);
                stream.head_seen = true;
                stream.framing = head.framing;
                stream.left = head.length;
                stream.method = head.method;
                stream.extended =
                    head.framing == Framing::Raw && !self.reader.out.starts_with(b"CONNECT");
                handler.on_open(key);
                handler.on_head(key, &self.reader.out, head.framing);
                return match end {
                    true => self.on_end(key, handler, out),
                    false => Ok(()),
                };
            }
        };
        frame::write_reset(id, refused, out);
        if end {
            self.ended.push(id);
        } else {
            self.cut.push(id);
        }
        self.flood
            .charge(CUT_STREAM, "too many streams had to be refused")
    }

    fn on_known(
        &mut self,
        key: usize,
        end: bool,
        block: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result {
        let stream = at(&self.streams, key);
        if !stream.receiving {
            return closed("HEADERS after the end of their stream");
        }
        let trailers = stream.head_seen;
        let kind = match trailers {
            true => Kind::Trailers,
            false => Kind::Response(stream.method, stream.extended),
        };
        self.decode(kind, block)?;
        let accept = &at(&self.streams, key).accept;
        let Ok(head) = self.reader.finish(end, || accept.clone()) else {
            return self.malformed(key, handler, out);
        };
        if trailers {
            if !end {
                return self.malformed(key, handler, out);
            }
            if !self.reader.out.is_empty() {
                handler.on_trailers(key, &self.reader.out);
            }
            return self.on_end(key, handler, out);
        }
        let stream = at_mut(&mut self.streams, key);
        stream.head_seen = !head.interim;
        if head.interim {
            // A few would be enough; the owner counts them.
            self.flood.charge(JUNK, "too many 1xx responses")?;
        } else {
            stream.framing = head.framing;
            stream.left = head.length;
        }
        handler.on_head(key, &self.reader.out, head.framing);
        if end {
            self.on_end(key, handler, out)
        } else {
            Ok(())
        }
    }

    fn on_reset(&mut self, header: Header, payload: &[u8], handler: &mut impl Handler) -> Result {
        self.check_not_idle(header.id)?;
        if payload.len() != 4 {
            return frame_size("RST_STREAM is not 4 bytes long");
        }
        let code = ErrorCode::from_wire(number(payload));
        let Some(key) = self.ids.remove(&header.id) else {
            return self.flood.charge(JUNK, "too many resets of closed streams");
        };
        self.ended.push(header.id);
        let stream = at_mut(&mut self.streams, key);
        if stream.finished() {
            return self.flood.charge(JUNK, "too many resets of closed streams");
        }
        let unanswered = matches!(stream.sending, Sending::Head);
        let rapid = unanswered && stream.born == self.ticks;
        stream.receiving = false;
        stream.sending = Sending::Ended;
        self.active -= 1;
        handler.on_reset(key, code);
        match self.role {
            Role::Server if rapid => self.flood.charge(CUT_STREAM, "too many resets"),
            // A client pays for each with a request of its own, so a flood is impossible.
            _ => Ok(()),
        }
    }

    fn on_window_update(
        &mut self,
        header: Header,
        payload: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result {
        if payload.len() != 4 {
            return frame_size("WINDOW_UPDATE is not 4 bytes long");
        }
        let increment = number(payload) & MAX_WINDOW;
        // An honest peer gives credit for bytes we sent, and those earned more than this price.
        self.flood.charge(JUNK, "too many WINDOW_UPDATE frames")?;
        if header.id == 0 {
            if increment == 0 {
                return protocol("WINDOW_UPDATE by 0");
            }
            let before = self.send_window;
            self.send_window += i64::from(increment);
            if self.send_window > i64::from(MAX_WINDOW) {
                return flow_control("the connection's window exceeds 2^31 - 1");
            }
            if before <= 0 {
                handler.on_connection_credit();
            }
            return Ok(());
        }
        self.check_not_idle(header.id)?;
        let Some(&key) = self.ids.get(&header.id) else {
            return Ok(());
        };
        let stream = at_mut(&mut self.streams, key);
        if increment == 0 {
            return self.cut_stream(key, ErrorCode::Protocol, handler, out);
        }
        stream.send_window += i64::from(increment);
        if stream.send_window > i64::from(MAX_WINDOW) {
            return self.cut_stream(key, ErrorCode::FlowControl, handler, out);
        }
        if stream.is_sending() {
            handler.on_credit(key);
        }
        Ok(())
    }

    fn on_settings(
        &mut self,
        header: Header,
        payload: &[u8],
        handler: &mut impl Handler,
        out: &mut Vec<u8>,
    ) -> Result {
        if header.id != 0 {
            return protocol("SETTINGS with a stream id");
        }
        if header.has(frame::ACK) {
            if !payload.is_empty() {
                return frame_size("an acknowledgement of SETTINGS with a payload");
            }
            return self.flood.charge(JUNK, "too many acknowledgements");
        }
        let (settings, rest) = payload.as_chunks();
        if !rest.is_empty() {
            return frame_size("SETTINGS are not a multiple of 6 bytes long");
        }
        if self.settings_seen {
            // More settings are more work.
            let price = JUNK + 64 * payload.len() as u32;
            self.flood.charge(price, "too many SETTINGS")?;
        }
        self.settings_seen = true;
        let before = self.peer_window;
        for &[n0, n1, v0, v1, v2, v3] in settings {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            self.on_setting(u16::from_be_bytes([n0, n1]), value)?;
        }
        if self.role == Role::Client && self.peer_tunnels.is_none() {
            self.peer_tunnels = Some(false);
        }
        if self.peer_window != before {
            let change = i64::from(self.peer_window) - i64::from(before);
            for stream in self.streams.iter_mut().filter(|s| s.used) {
                stream.send_window += change;
                if stream.send_window > i64::from(MAX_WINDOW) {
                    return flow_control(
                        "SETTINGS_INITIAL_WINDOW_SIZE overflows a stream's window",
                    );
                }
            }
        }
        handler.on_connection_credit();
        frame::write(frame::SETTINGS, frame::ACK, 0, &[], out);
        Ok(())
    }

    fn on_setting(&mut self, name: u16, value: u32) -> Result {
        match name {
            frame::ENABLE_PUSH if value > 1 => protocol("SETTINGS_ENABLE_PUSH is not 0 or 1"),
            frame::INITIAL_WINDOW_SIZE if value > MAX_WINDOW => {
                flow_control("SETTINGS_INITIAL_WINDOW_SIZE is above 2^31 - 1")
            }
            frame::INITIAL_WINDOW_SIZE => {
                self.peer_window = value;
                Ok(())
            }
            frame::MAX_FRAME_SIZE if !(16_384..1 << 24).contains(&value) => {
                protocol("SETTINGS_MAX_FRAME_SIZE is out of range")
            }
            frame::MAX_CONCURRENT_STREAMS => {
                self.peer_max_streams = value;
                Ok(())
            }
            frame::ENABLE_CONNECT_PROTOCOL if value > 1 => {
                protocol("SETTINGS_ENABLE_CONNECT_PROTOCOL is not 0 or 1")
            }
            frame::ENABLE_CONNECT_PROTOCOL => {
                self.peer_tunnels = Some(value == 1 || self.peer_tunnels == Some(true));
                Ok(())
            }
            // Our encoder uses no table and our frames have the smallest size a peer can ask for. A
            // receiver refuses larger lists itself.
            frame::HEADER_TABLE_SIZE | frame::MAX_FRAME_SIZE | frame::MAX_HEADER_LIST_SIZE => {
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on_ping(&mut self, header: Header, payload: &[u8], out: &mut Vec<u8>) -> Result {
        if header.id != 0 {
            return protocol("PING with a stream id");
        }
        if payload.len() != 8 {
            return frame_size("PING is not 8 bytes long");
        }
        self.flood.charge(JUNK, "too many PING frames")?;
        if !header.has(frame::ACK) {
            frame::write(frame::PING, frame::ACK, 0, payload, out);
        }
        Ok(())
    }

    fn on_go_away(&mut self, header: Header, payload: &[u8], handler: &mut impl Handler) -> Result {
        if header.id != 0 {
            return protocol("GOAWAY with a stream id");
        }
        if payload.len() < 8 {
            return frame_size("GOAWAY is shorter than 8 bytes");
        }
        self.flood.charge(JUNK, "too many GOAWAY frames")?;
        self.draining = true;
        if self.role == Role::Server {
            return Ok(());
        }
        // Streams above were not processed, nor were those that the server never heard of.
        let last = number(payload) & MAX_WINDOW;
        for (key, stream) in self.streams.iter_mut().enumerate() {
            if stream.used && !stream.finished() && (stream.id == 0 || stream.id > last) {
                stream.receiving = false;
                stream.sending = Sending::Ended;
                self.active -= 1;
                if self.ids.remove(&stream.id).is_some() {
                    self.ended.push(stream.id);
                }
                handler.on_reset(key, ErrorCode::RefusedStream);
            }
        }
        Ok(())
    }

    fn on_priority(&mut self, header: Header, payload: &[u8], out: &mut Vec<u8>) -> Result {
        if header.id == 0 {
            return protocol("PRIORITY with stream id 0");
        }
        if payload.len() != 5 {
            if header.id > self.highest {
                return frame_size("PRIORITY is not 5 bytes long");
            }
            frame::write_reset(header.id, ErrorCode::FrameSize, out);
            return self
                .flood
                .charge(CUT_STREAM, "too many bad PRIORITY frames");
        }
        if number(payload) & MAX_WINDOW == header.id {
            return protocol("a stream depends on itself");
        }
        self.flood.charge(JUNK, "too many PRIORITY frames")
    }
}

fn closed<T>(text: &'static str) -> Result<T> {
    Err(ConnectionError::new(ErrorCode::StreamClosed, text))
}

/// Returns the payload without padding.
fn unpad(header: Header, payload: &[u8]) -> Result<&[u8]> {
    if !header.has(frame::PADDED) {
        return Ok(payload);
    }
    let Some((&padding, rest)) = payload.split_first() else {
        return frame_size("a padded frame without the length of its padding");
    };
    match rest.len().checked_sub(usize::from(padding)) {
        Some(length) => Ok(rest.get(..length).unwrap_or_default()),
        None => protocol("padding is longer than its frame"),
    }
}
