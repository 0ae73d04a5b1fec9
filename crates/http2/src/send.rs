//! Turns the bytes of an HTTP/1.1 message into frames.

use crate::chunks::{Chunks, Next};
use crate::connection::Role;
use crate::stream::{Sending, at, at_mut};
use crate::{Connection, WriteError, flood, frame, head_out, websocket};
use tulle_http1::{BodyLength, Limits, Method, Parsed};

/// The owner has applied the operator's limits when it received the message that it writes here.
const LIMITS: Limits = Limits {
    head_bytes: 32 * 1024 * 1024,
    headers: usize::MAX,
};

/// Number of the owner's bytes that were taken, and the place in `out` of the last frame's flags.
struct Written {
    taken: usize,
    flags: Option<usize>,
}

impl Connection {
    /// Appends frames to `out` with as much of a message as credit allows, and returns how many
    /// bytes were taken. 0: wait for [`Handler::on_credit`](crate::Handler::on_credit) or
    /// `on_connection_credit`. A message that tells its length ends the stream by itself; others
    /// need [`Self::shutdown`].
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn write(
        &mut self,
        key: usize,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<usize, WriteError> {
        if !self.usable() || !self.streams.get(key).is_some_and(|s| s.used) {
            return Err(WriteError::Gone);
        }
        let mut written = Written {
            taken: 0,
            flags: None,
        };
        loop {
            let rest = data.get(written.taken..).unwrap_or_default();
            let done = match &at(&self.streams, key).sending {
                Sending::Ended if rest.is_empty() => break,
                Sending::Ended => return Err(WriteError::Gone),
                Sending::Head if rest.is_empty() => break,
                Sending::Head => self.write_head(key, rest, &mut written, out)?,
                Sending::Chunked(_) => self.write_chunks(key, rest, &mut written, out)?,
                Sending::Length(left) => {
                    let data = at_most(*left, rest);
                    let count = self.write_data(key, data, out);
                    written.note(count, out);
                    let Sending::Length(left) = &mut at_mut(&mut self.streams, key).sending else {
                        return Err(WriteError::Gone);
                    };
                    *left -= count as u64;
                    if *left == 0 {
                        self.end(key, &written, out);
                        break;
                    }
                    count == 0
                }
                Sending::Raw => {
                    let count = self.write_data(key, rest, out);
                    written.note(count, out);
                    count == 0
                }
            };
            if done {
                break;
            }
        }
        Ok(written.taken)
    }

    /// Ends our side of the stream, and cuts an incomplete message. Does nothing if it has ended
    /// already.
    pub fn shutdown(&mut self, key: usize, out: &mut Vec<u8>) {
        if !self.usable() {
            return;
        }
        match self.streams.get(key).filter(|s| s.used).map(|s| &s.sending) {
            Some(Sending::Raw) => {
                let nothing = Written {
                    taken: 0,
                    flags: None,
                };
                self.end(key, &nothing, out);
            }
            None | Some(Sending::Ended) => {}
            Some(_) => self.reset(key, crate::ErrorCode::Internal, out),
        }
    }

    /// Writes one DATA frame, if there is credit. Returns its length.
    fn write_data(&mut self, key: usize, data: &[u8], out: &mut Vec<u8>) -> usize {
        let stream = at_mut(&mut self.streams, key);
        let credit = stream.send_window.min(self.send_window).max(0);
        let count = data
            .len()
            .min(frame::MAX_PAYLOAD)
            .min(usize::try_from(credit).unwrap_or(usize::MAX));
        if count > 0 {
            stream.send_window -= count as i64;
            self.send_window -= count as i64;
            self.data_sent += count as u64;
            // The peer's answers to this frame are not a flood, unless the frame is small because
            // of the peer's window.
            let own_choice = count == data.len() || count >= flood::JUNK as usize;
            let answers = if own_choice { 2 * flood::JUNK } else { 0 };
            self.flood.earn(count as u32 + answers);
            let (data, _) = data.split_at(count);
            frame::write(frame::DATA, 0, stream.id, data, out);
        }
        count
    }

    /// Ends our side, with the frame just written if there is one.
    fn end(&mut self, key: usize, written: &Written, out: &mut Vec<u8>) {
        let stream = at_mut(&mut self.streams, key);
        match written.flags.and_then(|place| out.get_mut(place)) {
            Some(flags) => *flags |= frame::END_STREAM,
            None => frame::write(frame::DATA, frame::END_STREAM, stream.id, &[], out),
        }
        stream.sending = Sending::Ended;
        self.direction_ended(key);
    }

    /// Writes a part of a chunked body. True: no more can be done now.
    fn write_chunks(
        &mut self,
        key: usize,
        rest: &[u8],
        written: &mut Written,
        out: &mut Vec<u8>,
    ) -> Result<bool, WriteError> {
        let Sending::Chunked(chunks) = &mut at_mut(&mut self.streams, key).sending else {
            return Err(WriteError::Gone);
        };
        let (skipped, next) = chunks.skip(rest).ok_or(WriteError::NotAMessage)?;
        written.taken += skipped;
        match next {
            Next::More => Ok(true),
            Next::Data(left) => {
                let data = rest.get(skipped..).unwrap_or_default();
                let count = self.write_data(key, at_most(left, data), out);
                if let Sending::Chunked(chunks) = &mut at_mut(&mut self.streams, key).sending {
                    chunks.took(count as u64);
                }
                written.note(count, out);
                Ok(count == 0)
            }
            Next::Done => {
                let trailers = std::mem::take(&mut chunks.trailers);
                if trailers.is_empty() {
                    self.end(key, written, out);
                } else {
                    let mut block = self.begin_block();
                    head_out::trailers(&trailers, &mut self.scratch, &mut block);
                    let place = frame::write_block(true, at(&self.streams, key).id, &block, out);
                    self.encoded = block;
                    written.flags = Some(place);
                    self.end(key, written, out);
                }
                Ok(true)
            }
        }
    }

    /// Writes the head. True: no more can be done now.
    fn write_head(
        &mut self,
        key: usize,
        rest: &[u8],
        written: &mut Written,
        out: &mut Vec<u8>,
    ) -> Result<bool, WriteError> {
        // Nearly always a head is written at once.
        let mut stash = std::mem::take(&mut at_mut(&mut self.streams, key).stash).into_vec();
        let before = stash.len();
        let head = if before == 0 {
            rest
        } else {
            stash.extend_from_slice(rest);
            stash.as_slice()
        };
        let result = match self.role {
            Role::Server => self.write_response(key, head, out),
            Role::Client => self.write_request(key, head, out),
        };
        match result {
            Ok(Some((length, place))) => {
                written.taken += length.saturating_sub(before);
                written.flags = Some(place);
                if at(&self.streams, key).sending_nothing() {
                    self.end(key, written, out);
                }
                Ok(false)
            }
            Ok(None) => {
                if before == 0 {
                    stash.extend_from_slice(rest);
                }
                at_mut(&mut self.streams, key).stash = stash.into();
                written.taken += rest.len();
                Ok(true)
            }
            // The peer's settings have to come first; nothing was taken.
            Err(Wait::Settings) => {
                stash.truncate(before);
                at_mut(&mut self.streams, key).stash = stash.into();
                Ok(true)
            }
            Err(Wait::Never(error)) => Err(error),
        }
    }

    fn write_response(
        &mut self,
        key: usize,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(usize, usize)>, Wait> {
        let stream = at(&self.streams, key);
        let (id, extended, method) = (stream.id, stream.extended, stream.method);
        // The answer to an extended CONNECT has the head of an answer to GET.
        let asked = if extended { Method::Get } else { method };
        let head = match tulle_http1::parse_response(bytes, &LIMITS, asked) {
            Ok(Parsed::Complete(head)) => head,
            Ok(Parsed::Partial) => return Ok(None),
            Err(_) => return Err(Wait::Never(WriteError::NotAMessage)),
        };
        let text = bytes.get(..head.len).unwrap_or_default();
        let granted = extended && head.status == 101;
        // Anything but 101 declines, but 2xx would grant.
        let status = match head.status {
            101 if granted => 200,
            200..300 if extended => 502,
            status => status,
        };
        let mut block = self.begin_block();
        head_out::response(text, status, granted, &mut self.scratch, &mut block);
        let place = frame::write_block(false, id, &block, out);
        self.encoded = block;
        at_mut(&mut self.streams, key).sending = match head.body {
            _ if granted => Sending::Raw,
            _ if head.status < 200 => Sending::Head,
            BodyLength::None => Sending::Length(0),
            BodyLength::Length(length) => Sending::Length(length),
            BodyLength::Chunked => Sending::Chunked(Chunks::new()),
            BodyLength::UntilClose => Sending::Raw,
        };
        Ok(Some((head.len, place)))
    }

    fn write_request(
        &mut self,
        key: usize,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(usize, usize)>, Wait> {
        let head = match tulle_http1::parse_request(bytes, &LIMITS) {
            Ok(Parsed::Complete(head)) => head,
            Ok(Parsed::Partial) => return Ok(None),
            Err(_) => return Err(Wait::Never(WriteError::NotAMessage)),
        };
        let text = bytes.get(..head.len).unwrap_or_default();
        let field = |wanted: &[u8]| {
            let mut fields = tulle_http1::headers(text);
            fields
                .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
                .map(|(_, value)| value)
        };
        let upgrade = head.upgrade.then(|| field(b"upgrade")).flatten();
        if upgrade.is_some() {
            match self.peer_tunnels {
                None => return Err(Wait::Settings),
                Some(false) => return Err(Wait::Never(WriteError::NoTunnels)),
                Some(true) => {}
            }
        }
        let mut block = self.begin_block();
        let scheme: &[u8] = if self.config.secure {
            b"https"
        } else {
            b"http"
        };
        head_out::request(text, &head, scheme, upgrade, &mut self.scratch, &mut block);
        let id = self.next_id;
        self.next_id += 2;
        self.highest = id;
        self.ids.insert(id, key);
        let stream = at_mut(&mut self.streams, key);
        stream.id = id;
        stream.method = head.method;
        stream.extended = upgrade.is_some();
        stream.accept = upgrade
            .and_then(|_| field(b"sec-websocket-key"))
            .map(websocket::accept)
            .unwrap_or_default();
        stream.sending = match head.body {
            _ if upgrade.is_some() || head.method == Method::Connect => Sending::Raw,
            BodyLength::Length(length) => Sending::Length(length),
            BodyLength::Chunked => Sending::Chunked(Chunks::new()),
            BodyLength::None | BodyLength::UntilClose => Sending::Length(0),
        };
        let place = frame::write_block(false, id, &block, out);
        self.encoded = block;
        Ok(Some((head.len, place)))
    }
}

/// Returns the first `count` of these bytes, or all.
fn at_most(count: u64, bytes: &[u8]) -> &[u8] {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    bytes.get(..count).unwrap_or(bytes)
}

/// Why a head is not written.
enum Wait {
    /// Not before the peer's settings are known.
    Settings,
    Never(WriteError),
}

impl Written {
    /// Notes that a DATA frame of this many bytes was just appended to `out`, if any.
    fn note(&mut self, count: usize, out: &[u8]) {
        if count > 0 {
            self.taken += count;
            self.flags = Some(out.len() - count - frame::HEADER + 4);
        }
    }
}
