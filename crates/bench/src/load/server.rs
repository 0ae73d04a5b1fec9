//! The server behind the sidecars: bodies from memory, one thread, one read and one write a request.

use crate::failure::{OrFail, Result};
use crate::payload::{LONGEST, text};
use clap::Args;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token};
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;

const LISTENER: Token = Token(usize::MAX);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// More fields than any sidecar adds.
const MOST_FIELDS: usize = 64;
/// Longest request head.
const LONGEST_HEAD: usize = 64 << 10;
/// Different lengths whose heads are kept.
const MOST_LENGTHS: usize = 64;

/// `tulle-bench internal server`
#[derive(Debug, Clone, Args)]
pub struct Serve {
    /// Where it listens
    #[arg(long)]
    pub listen: SocketAddr,
}

/// Serves until it is killed: `/bytes/N` answers N bytes, after the request's body, which is to be such text, too, `/caller` the caller's certificate header
/// as the sidecar wrote it.
///
/// # Errors
/// The address cannot be listened on, or the system polls no more.
pub fn main(options: &Serve) -> Result<()> {
    let what = || format!("cannot serve on {}", options.listen);
    let listener = TcpListener::bind(options.listen).or_fail(what)?;
    // A thousand clients come at once in a storm; with the usual backlog the rest would try again after a second.
    rustix::net::listen(&listener, BACKLOG)
        .map_err(std::io::Error::from)
        .or_fail(what)?;
    run(listener).or_fail(what)
}

fn run(mut listener: TcpListener) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut free = Vec::new();
    let mut shared = Shared {
        buffer: vec![0; 64 << 10],
        text: text(LONGEST),
        heads: Vec::new(),
    };
    loop {
        if let Err(e) = poll.poll(&mut events, None)
            && e.kind() != io::ErrorKind::Interrupted
        {
            return Err(e);
        }
        for event in &events {
            if event.token() == LISTENER {
                accept(&listener, poll.registry(), &mut connections, &mut free)?;
                continue;
            }
            let index = event.token().0;
            let Some(connection) = connections.get_mut(index).and_then(Option::as_mut) else {
                continue;
            };
            if !connection
                .ready(&mut shared, event.is_read_closed())
                .unwrap_or(false)
            {
                connections[index] = None;
                free.push(index);
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    registry: &Registry,
    connections: &mut Vec<Option<Connection>>,
    free: &mut Vec<usize>,
) -> io::Result<()> {
    loop {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // It was reset before it was accepted: the client counts that.
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(e) => return Err(e),
        };
        let index = free.pop().unwrap_or_else(|| {
            connections.push(None);
            connections.len() - 1
        });
        let set = stream.set_nodelay(true).and_then(|()| {
            let interest = Interest::READABLE | Interest::WRITABLE;
            registry.register(&mut stream, Token(index), interest)
        });
        if set.is_ok() {
            connections[index] = Some(Connection {
                stream,
                pending: Vec::new(),
                upload: None,
                answer: None,
            });
        } else {
            free.push(index);
        }
    }
}

struct Connection {
    stream: TcpStream,
    /// The part of an incomplete request head that has arrived.
    pending: Vec<u8>,
    /// A request whose body is coming.
    upload: Option<Upload>,
    /// The answer that is being sent.
    answer: Option<Answer>,
}

struct Upload {
    request: Request,
    /// Bytes of the body so far.
    taken: usize,
}

impl Upload {
    /// Takes what came of the body; false: it is not the expected one.
    fn take(&mut self, bytes: &[u8], text: &[u8]) -> bool {
        let end = self.taken + bytes.len();
        let right = end <= self.request.body && text.get(self.taken..end) == Some(bytes);
        self.taken = end;
        right
    }
}

struct Answer {
    what: What,
    /// Bytes sent, head and body.
    sent: usize,
    /// Close the connection afterwards.
    last: bool,
}

enum What {
    /// Index of the head, length of the body.
    Bytes(usize, usize),
    /// All of it, not so often.
    Text(Vec<u8>),
}

/// The buffers that all connections share.
struct Shared {
    buffer: Vec<u8>,
    text: Vec<u8>,
    /// Response heads by length of the body.
    heads: Vec<(usize, Vec<u8>)>,
}

impl Connection {
    /// Does what can be done now; false: the connection is over. `closed`: nothing comes after what is
    /// to be read now, and no further event will say so.
    fn ready(&mut self, shared: &mut Shared, closed: bool) -> io::Result<bool> {
        if self.answer.is_some() && !self.send(shared)? {
            return Ok(self.answer.is_some());
        }
        loop {
            let count = match self.stream.read(&mut shared.buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let come = &shared.buffer[..count];
            let right = match &mut self.upload {
                Some(upload) => upload.take(come, &shared.text),
                None => self.begin(come, &shared.text),
            };
            // The client counts it as a lost request, which it is.
            if !right {
                return Ok(false);
            }
            let complete = |upload: &mut Upload| upload.taken == upload.request.body;
            if let Some(upload) = self.upload.take_if(complete) {
                self.answer = Some(upload.request.answer(shared));
                if !self.send(shared)? {
                    return Ok(self.answer.is_some());
                }
            }
            // A read that did not fill the buffer took all there was; more data wakes the loop again.
            if count < shared.buffer.len() && !closed {
                return Ok(true);
            }
        }
    }

    /// Takes what came of a head, and of the body after it; false: it is none.
    fn begin(&mut self, come: &[u8], text: &[u8]) -> bool {
        let parsed = if self.pending.is_empty() {
            Request::parse(come)
        } else {
            self.pending.extend_from_slice(come);
            Request::parse(&self.pending)
        };
        match parsed {
            Ok(Some((request, end))) => {
                let mut upload = Upload { request, taken: 0 };
                let come = if self.pending.is_empty() {
                    come
                } else {
                    &self.pending
                };
                let right = upload.take(&come[end..], text);
                self.pending.clear();
                self.upload = Some(upload);
                right
            }
            Ok(None) if self.pending.is_empty() => {
                self.pending.extend_from_slice(come);
                true
            }
            Ok(None) => self.pending.len() < LONGEST_HEAD,
            Err(()) => false,
        }
    }

    /// True: all of the answer is sent and the connection goes on. False with an answer left: later.
    fn send(&mut self, shared: &Shared) -> io::Result<bool> {
        let Some(answer) = &mut self.answer else {
            return Ok(true);
        };
        loop {
            let (head, body): (&[u8], &[u8]) = match &answer.what {
                What::Bytes(head, length) => (&shared.heads[*head].1, &shared.text[..*length]),
                What::Text(text) => (text, &[]),
            };
            let whole = head.len() + body.len();
            let head = head.get(answer.sent..).unwrap_or_default();
            let body = &body[answer.sent.saturating_sub(whole - body.len())..];
            match self
                .stream
                .write_vectored(&[IoSlice::new(head), IoSlice::new(body)])
            {
                Ok(count) => answer.sent += count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            if answer.sent == whole {
                let last = answer.last;
                self.answer = None;
                return Ok(!last);
            }
        }
    }
}

struct Request {
    path: Path,
    /// Length of its body.
    body: usize,
    last: bool,
}

enum Path {
    Bytes(usize),
    Caller(Vec<u8>),
    Unknown,
}

impl Request {
    /// Parses a request and returns the end of its head. None: the rest is still to come.
    fn parse(bytes: &[u8]) -> std::result::Result<Option<(Self, usize)>, ()> {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        let end = match request.parse(bytes) {
            Ok(httparse::Status::Complete(end)) => end,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(()),
        };
        let path = request.path.unwrap_or_default();
        let fields = || request.headers.iter();
        let has = |name: &str, value: &[u8]| {
            fields()
                .any(|f| f.name.eq_ignore_ascii_case(name) && f.value.eq_ignore_ascii_case(value))
        };
        let mut lengths = fields().filter(|f| f.name.eq_ignore_ascii_case("content-length"));
        let body = match lengths.next().map(|f| std::str::from_utf8(f.value)) {
            None => 0,
            // Only a body of this length can follow: requests are not pipelined.
            Some(text) => text.map_err(drop)?.parse().map_err(drop)?,
        };
        let length = path.strip_prefix("/bytes/").and_then(|n| n.parse().ok());
        let path = match length {
            Some(length) if length <= LONGEST => Path::Bytes(length),
            None if path == "/caller" => {
                let of_caller =
                    fields().filter(|f| f.name.eq_ignore_ascii_case("x-forwarded-client-cert"));
                let values: Vec<&[u8]> = of_caller.map(|f| f.value).collect();
                Path::Caller(values.join(&b"\n"[..]))
            }
            _ => Path::Unknown,
        };
        let keep = request.version == Some(1) || has("connection", b"keep-alive");
        let last = !keep || has("connection", b"close");
        Ok(Some((Self { path, body, last }, end)))
    }

    fn answer(self, shared: &mut Shared) -> Answer {
        let what = match self.path {
            Path::Bytes(length) => {
                let known = shared.heads.iter().position(|(l, _)| *l == length);
                let head = known.unwrap_or_else(|| {
                    shared.heads.push((length, head("200 OK", length)));
                    shared.heads.len() - 1
                });
                if head < MOST_LENGTHS {
                    What::Bytes(head, length)
                } else {
                    // The table is full: a text of its own, this once.
                    let (_, mut all) = shared.heads.pop().unwrap_or_default();
                    all.extend_from_slice(&shared.text[..length]);
                    What::Text(all)
                }
            }
            Path::Caller(caller) => {
                let mut all = head("200 OK", caller.len());
                all.extend_from_slice(&caller);
                What::Text(all)
            }
            Path::Unknown => What::Text(head("404 Not Found", 0)),
        };
        Answer {
            what,
            sent: 0,
            last: self.last,
        }
    }
}

fn head(status: &str, length: usize) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    .into_bytes()
}
