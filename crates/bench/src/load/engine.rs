//! The generator: one thread, readiness in edges, a state for each connection.

use super::client::{Beside, Errors, Load, Pattern, Report, encode, histogram};
use super::response::{Response, Wrong};
use super::timer::Timer;
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rustix::time::{ClockId, clock_gettime};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, IoSlice, Read, Write};
use std::time::{Duration, Instant};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long requests that are under way at the end are waited for.
const GRACE: Duration = Duration::from_secs(1);
/// Pause before a lost connection is opened again: a server that is gone is not tried a million times.
const PAUSE: Duration = Duration::from_millis(10);
/// How often timeouts are looked for.
const LOOK: Duration = Duration::from_millis(500);
/// Connections that [`Pattern::Hold`] opens at a time: fewer than any listener's backlog.
const AT_A_TIME: usize = 64;
/// A connection's turn comes up to this share of the interval late, so that connections do not march
/// in step.
const JITTER: f64 = 0.1;
/// How often a slow reader reads.
const SLOWLY: Duration = Duration::from_millis(250);
/// How many times that is in a second.
const TIMES: usize = (1000 / SLOWLY.as_millis()) as usize;

const TIMER: Token = Token(usize::MAX);

struct Connection {
    stream: Option<TcpStream>,
    state: State,
    response: Response,
    /// The latency of the request under way counts from here.
    since: Instant,
    /// When that request, or the connecting, really began.
    began: Instant,
    /// At a fixed rate, a connection's next step, …
    step: Instant,
    /// … when the next request is due, which is a little later, …
    due: Instant,
    /// … and that it is overdue, for the connection was not free.
    overdue: bool,
    /// Bytes of the request sent, head and body.
    sent: usize,
    /// A slow reader's turn is waiting.
    reading: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Connecting,
    Free,
    Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Open,
    Ask,
    Read,
}

#[derive(Debug, Clone, Copy)]
enum Loss {
    Connect,
    Reset,
    Timeout,
    Status,
    Body,
    Unanswered,
}

pub(super) struct Engine<'a> {
    load: &'a Load,
    /// Every body is its beginning.
    text: &'a [u8],
    request: Vec<u8>,
    request_beside: Vec<u8>,
    poll: Poll,
    timer: Timer,
    turns: BinaryHeap<Reverse<(Instant, usize, Turn)>>,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
    /// Time between two requests of one connection at a fixed rate.
    interval: Duration,
    random: u64,
    /// [`Pattern::Hold`]: connections not opened yet.
    unopened: usize,
    under_way: usize,
    recording: bool,
    ending: bool,
    latencies: Histogram<u64>,
    lateness: Histogram<u64>,
    answered: u64,
    answered_ever: u64,
    beside_bytes: u64,
    errors: Errors,
    first_error: Option<String>,
}

impl<'a> Engine<'a> {
    /// `text` is as long as the longest body.
    pub(super) fn new(load: &'a Load, text: &'a [u8]) -> io::Result<Self> {
        let last = match load.pattern {
            Pattern::NewConnections => "Connection: close\r\n",
            _ => "",
        };
        let (method, length) = match load.upload {
            0 => ("GET", String::new()),
            upload => ("POST", format!("Content-Length: {upload}\r\n")),
        };
        let bytes = load.bytes;
        let request =
            format!("{method} /bytes/{bytes} HTTP/1.1\r\nHost: echo\r\n{length}{last}\r\n");
        let beside = load.beside.map_or(0, |beside| beside.bytes);
        let request_beside = format!("GET /bytes/{beside} HTTP/1.1\r\nHost: echo\r\n\r\n");
        let count = load.connections + load.beside.map_or(0, |beside| beside.connections);
        let poll = Poll::new()?;
        let timer = Timer::new(poll.registry(), TIMER)?;
        let now = Instant::now();
        let connection = |_| Connection {
            stream: None,
            state: State::Closed,
            response: Response::default(),
            since: now,
            began: now,
            step: now,
            due: now,
            overdue: false,
            sent: 0,
            reading: false,
        };
        let interval = match load.pattern {
            Pattern::Rate(rate) => {
                let count = u32::try_from(load.connections).unwrap_or(u32::MAX);
                // Not never: a rate of nothing is one request a day.
                Duration::from_secs_f64(f64::from(count) / rate.max(1e-5))
            }
            _ => Duration::ZERO,
        };
        Ok(Self {
            load,
            text,
            request: request.into_bytes(),
            request_beside: request_beside.into_bytes(),
            poll,
            timer,
            turns: BinaryHeap::new(),
            connections: (0..count).map(connection).collect(),
            buffer: vec![0; 256 << 10],
            interval,
            random: 0x9e37_79b9_7f4a_7c15,
            unopened: 0,
            under_way: 0,
            recording: false,
            ending: false,
            latencies: histogram(),
            lateness: histogram(),
            answered: 0,
            answered_ever: 0,
            beside_bytes: 0,
            errors: Errors::default(),
            first_error: None,
        })
    }

    pub(super) fn run(mut self, say: &dyn Fn(&str), hold: &dyn Fn()) -> io::Result<Report> {
        self.start();
        if self.load.pattern == Pattern::Hold {
            let end = Instant::now() + self.load.measure;
            self.recording = true;
            self.turn_until(end, |it| {
                it.under_way == 0 && it.unopened == 0 && it.turns.is_empty()
            })?;
            say("holding");
            hold();
            // Whoever was hung up on in the meantime counts.
            self.turn_until(Instant::now(), |_| false)?;
            return Ok(self.report(Duration::ZERO, Duration::ZERO));
        }
        self.turn_until(Instant::now() + self.load.warmup, |_| false)?;
        let (begin, cpu) = (Instant::now(), cpu_time());
        self.recording = true;
        say("begin");
        self.turn_until(begin + self.load.measure, |_| false)?;
        let (time, cpu) = (begin.elapsed(), cpu_time().saturating_sub(cpu));
        say("end");
        let (answered, beside_bytes) = (self.answered, self.beside_bytes);
        self.ending = true;
        self.end_slow_readers();
        self.turn_until(Instant::now() + GRACE, |it| it.under_way == 0)?;
        for index in 0..self.connections.len() {
            if self.connections[index].state == State::Asked {
                self.lost(index, Loss::Unanswered, "no answer a second after the end");
            }
        }
        Ok(Report {
            answered,
            beside_bytes,
            ..self.report(time, cpu)
        })
    }

    fn report(self, time: Duration, cpu: Duration) -> Report {
        Report {
            answered: self.answered,
            seconds: time.as_secs_f64(),
            beside_bytes: self.beside_bytes,
            answered_ever: self.answered_ever,
            errors: self.errors,
            first_error: self.first_error,
            cpu_seconds: cpu.as_secs_f64(),
            late_p99_us: self.lateness.value_at_quantile(0.99),
            histogram: encode(&self.latencies),
            ..Report::default()
        }
    }

    fn start(&mut self) {
        let count = self.load.connections;
        let now = Instant::now();
        let first = match self.load.pattern {
            Pattern::Hold => AT_A_TIME.min(count),
            _ => count,
        };
        self.unopened = count - first;
        for index in 0..first {
            if let Pattern::Rate(_) = self.load.pattern {
                let share = u32::try_from(count).unwrap_or(u32::MAX);
                let place = u32::try_from(index).unwrap_or(u32::MAX);
                self.connections[index].step = now + self.interval / share * place;
                self.step(index);
            }
            self.open(index);
        }
        for index in count..self.connections.len() {
            self.open(index);
        }
    }

    /// Returns the settings of the connection if it is one of those beside the measured ones.
    fn beside(&self, index: usize) -> Option<Beside> {
        self.load.beside.filter(|_| index >= self.load.connections)
    }

    fn pattern(&self, index: usize) -> Pattern {
        match self.beside(index) {
            Some(_) => Pattern::Saturate,
            None => self.load.pattern,
        }
    }

    /// Bytes that a slow reader may read at a time.
    fn portion(&self, index: usize) -> Option<usize> {
        let per_second = self.beside(index)?.per_second?;
        Some((per_second / TIMES).clamp(1, self.buffer.len()))
    }

    /// Their answers are not waited for.
    fn end_slow_readers(&mut self) {
        for index in 0..self.connections.len() {
            if self.portion(index).is_some() {
                let connection = &mut self.connections[index];
                if matches!(connection.state, State::Asked | State::Connecting) {
                    self.under_way -= 1;
                }
                connection.stream = None;
                connection.state = State::Closed;
            }
        }
    }

    /// Does what comes until `end` or until `done`.
    fn turn_until(&mut self, end: Instant, done: impl Fn(&Self) -> bool) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut look = Instant::now() + LOOK;
        loop {
            let now = Instant::now();
            self.take_turns(now);
            if now >= look {
                look = now + LOOK;
                self.end_what_takes_too_long(now);
            }
            let over = now >= end || done(self);
            let wait = if over {
                Duration::ZERO
            } else {
                self.timer.set(self.turns.peek().map(|next| next.0.0))?;
                end.min(look).saturating_duration_since(now)
            };
            if let Err(e) = self.poll.poll(&mut events, Some(wait))
                && e.kind() != io::ErrorKind::Interrupted
            {
                return Err(e);
            }
            for event in &events {
                if event.token() == TIMER {
                    self.timer.went_off();
                } else {
                    self.ready(event.token().0, event.is_read_closed());
                }
            }
            if over {
                return Ok(());
            }
        }
    }

    fn take_turns(&mut self, now: Instant) {
        while let Some(Reverse((when, index, turn))) = self.turns.peek().copied()
            && when <= now
        {
            self.turns.pop();
            let connection = &mut self.connections[index];
            match (turn, connection.state) {
                _ if self.ending => {}
                (Turn::Open, State::Closed) => self.open(index),
                (Turn::Open, _) => {}
                (Turn::Read, state) => {
                    connection.reading = false;
                    if state == State::Asked {
                        self.receive(index, false);
                        self.read_later(index, now);
                    }
                }
                (Turn::Ask, State::Free) => {
                    let late = now.saturating_duration_since(when);
                    self.lateness.saturating_record(micros(late));
                    self.ask(index, now);
                }
                (Turn::Ask, _) => connection.overdue = true,
            }
        }
    }

    fn open(&mut self, index: usize) {
        let now = Instant::now();
        let connection = &mut self.connections[index];
        connection.response.reset();
        connection.began = now;
        connection.since = now;
        let opened = TcpStream::connect(self.load.to).and_then(|mut stream| {
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registry = self.poll.registry();
            registry.register(&mut stream, Token(index), interest)?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                connection.stream = Some(stream);
                connection.state = State::Connecting;
                self.under_way += 1;
            }
            Err(e) => self.lost(index, Loss::Connect, &e.to_string()),
        }
    }

    /// `closed`: nothing comes after what is to be read now, and no further event will say so.
    fn ready(&mut self, index: usize, closed: bool) {
        let slow = self.portion(index).is_some();
        let connection = &mut self.connections[index];
        let Some(stream) = &mut connection.stream else {
            return;
        };
        match connection.state {
            State::Closed => {}
            State::Connecting => match connected(stream) {
                Ok(false) => {}
                Ok(true) => {
                    self.under_way -= 1;
                    connection.state = State::Free;
                    self.free(index, Instant::now());
                }
                Err(e) => self.lost(index, Loss::Connect, &e.to_string()),
            },
            State::Free => match stream.read(&mut self.buffer) {
                Ok(0) | Err(_) if self.load.pattern == Pattern::Hold => {
                    self.lost(index, Loss::Reset, "an idle connection was ended");
                }
                // Nothing is lost: no request was under way.
                Ok(0) => self.reopen(index),
                Ok(_) => self.lost(index, Loss::Body, "an answer that was not asked for"),
                Err(e) if is_nothing(&e) => {}
                Err(_) => self.reopen(index),
            },
            // A slow reader has its turns, whatever has come.
            State::Asked if slow => {}
            State::Asked => {
                if self.send(index) || closed {
                    self.receive(index, closed);
                }
            }
        }
    }

    /// A connection has nothing to do.
    fn free(&mut self, index: usize, now: Instant) {
        if self.ending {
            return;
        }
        match self.pattern(index) {
            Pattern::Rate(_) if !self.connections[index].overdue => {}
            _ => self.ask(index, now),
        }
    }

    fn ask(&mut self, index: usize, now: Instant) {
        let pattern = self.pattern(index);
        let connection = &mut self.connections[index];
        connection.began = now;
        match pattern {
            Pattern::Saturate | Pattern::Hold => connection.since = now,
            // Since the connection was opened.
            Pattern::NewConnections | Pattern::Handshakes | Pattern::Resumed | Pattern::Storm => {}
            Pattern::Rate(_) => {
                connection.since = connection.due;
                connection.overdue = false;
                connection.step += self.interval;
                self.step(index);
            }
        }
        let connection = &mut self.connections[index];
        connection.state = State::Asked;
        connection.sent = 0;
        self.under_way += 1;
        self.send(index);
        self.read_later(index, now);
    }

    /// Sends what is left of the request. True: nothing is.
    fn send(&mut self, index: usize) -> bool {
        let (head, body) = match self.beside(index) {
            Some(_) => (&self.request_beside, 0),
            None => (&self.request, self.load.upload),
        };
        let (length, whole) = (head.len(), head.len() + body);
        let connection = &mut self.connections[index];
        while connection.sent < whole {
            let Some(stream) = &mut connection.stream else {
                return false;
            };
            let sent = connection.sent;
            let head = head.get(sent..).unwrap_or_default();
            let body = &self.text[sent.saturating_sub(length)..body];
            match stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(count) => connection.sent += count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.lost(index, Loss::Reset, &e.to_string());
                    return false;
                }
            }
        }
        true
    }

    /// The next turn of a slow reader that has asked.
    fn read_later(&mut self, index: usize, now: Instant) {
        let slow = self.portion(index).is_some();
        let connection = &mut self.connections[index];
        if slow && connection.state == State::Asked && !connection.reading {
            connection.reading = true;
            self.turns.push(Reverse((now + SLOWLY, index, Turn::Read)));
        }
    }

    fn receive(&mut self, index: usize, closed: bool) {
        let beside = self.beside(index);
        let portion = self.portion(index);
        let room = portion.unwrap_or(self.buffer.len());
        let expected = &self.text[..beside.map_or(self.load.bytes, |beside| beside.bytes)];
        loop {
            let connection = &mut self.connections[index];
            let Some(stream) = &mut connection.stream else {
                return;
            };
            let count = match stream.read(&mut self.buffer[..room]) {
                Ok(0) => {
                    let why = "the connection was closed before the answer was complete";
                    return self.lost(index, Loss::Reset, why);
                }
                Ok(count) => count,
                Err(e) if is_nothing(&e) => return,
                Err(e) => return self.lost(index, Loss::Reset, &e.to_string()),
            };
            if beside.is_some() && self.recording {
                self.beside_bytes += count as u64;
            }
            match connection.response.take(&self.buffer[..count], expected) {
                Ok(true) => return self.answered(index, closed),
                // A read that did not fill the buffer took all there was; more data wakes the loop again.
                Ok(false) if portion.is_some() || (count < room && !closed) => return,
                Ok(false) => {}
                Err(Wrong::Status(status)) => {
                    return self.lost(index, Loss::Status, &format!("status {status}"));
                }
                Err(Wrong::Body(why)) => return self.lost(index, Loss::Body, why),
            }
        }
    }

    fn answered(&mut self, index: usize, closed: bool) {
        let now = Instant::now();
        self.under_way -= 1;
        self.answered_ever += 1;
        let connection = &mut self.connections[index];
        connection.state = State::Free;
        let one_each = self.load.pattern == Pattern::NewConnections;
        let measured = index < self.load.connections;
        let last = closed || connection.response.last || one_each;
        connection.response.reset();
        if self.recording && measured {
            self.answered += 1;
            let latency = now.saturating_duration_since(connection.since);
            self.latencies.saturating_record(micros(latency));
        }
        if self.load.pattern == Pattern::Hold && last {
            self.lost(index, Loss::Reset, "an idle connection was ended");
        } else if self.load.pattern == Pattern::Hold {
            self.open_next();
        } else if last {
            self.reopen(index);
        } else {
            self.free(index, now);
        }
    }

    fn open_next(&mut self) {
        if self.unopened > 0 {
            let next = self.load.connections - self.unopened;
            self.unopened -= 1;
            self.open(next);
        }
    }

    fn reopen(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.stream = None;
        connection.state = State::Closed;
        if !self.ending {
            self.open(index);
        }
    }

    fn lost(&mut self, index: usize, loss: Loss, why: &str) {
        let connection = &mut self.connections[index];
        if matches!(connection.state, State::Asked | State::Connecting) {
            self.under_way -= 1;
        }
        connection.stream = None;
        connection.state = State::Closed;
        let errors = &mut self.errors;
        let (count, kind) = match loss {
            Loss::Connect => (&mut errors.connect, "connect"),
            Loss::Reset => (&mut errors.reset, "reset"),
            Loss::Timeout => (&mut errors.timeout, "timeout"),
            Loss::Status => (&mut errors.status, "status"),
            Loss::Body => (&mut errors.body, "body"),
            Loss::Unanswered => (&mut errors.unanswered, "unanswered"),
        };
        *count += 1;
        self.first_error
            .get_or_insert_with(|| format!("{kind}: {why}"));
        let when = Instant::now() + PAUSE;
        if self.load.pattern == Pattern::Hold {
            // Lost is lost: a second try would hide how many connections are really held.
            if self.unopened > 0 {
                let next = self.load.connections - self.unopened;
                self.unopened -= 1;
                self.turns.push(Reverse((when, next, Turn::Open)));
            }
        } else if !self.ending {
            self.turns.push(Reverse((when, index, Turn::Open)));
        }
    }

    fn end_what_takes_too_long(&mut self, now: Instant) {
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            let under_way = matches!(connection.state, State::Asked | State::Connecting);
            let slow = self.portion(index).is_some();
            if under_way && !slow && now.saturating_duration_since(connection.began) > PATIENCE {
                self.lost(index, Loss::Timeout, "no answer within ten seconds");
            }
        }
    }

    /// The jitter moves a request, not those after it.
    fn step(&mut self, index: usize) {
        let jitter = self.jitter();
        let connection = &mut self.connections[index];
        connection.due = connection.step + jitter;
        let turn = (connection.due, index, Turn::Ask);
        self.turns.push(Reverse(turn));
    }

    /// Returns a random time up to a share of the interval (xorshift: enough to break lockstep).
    fn jitter(&mut self) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = f64::from(u16::try_from(self.random >> 48).unwrap_or(0)) / f64::from(u16::MAX);
        self.interval.mul_f64(JITTER * share)
    }
}

/// Whether it is; an error: it never will be.
fn connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(e) = stream.take_error()? {
        return Err(e);
    }
    match stream.peer_addr() {
        Ok(_) => stream.set_nodelay(true).map(|()| true),
        Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(e) => Err(e),
    }
}

fn is_nothing(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the CPU time of this process.
pub(super) fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}
