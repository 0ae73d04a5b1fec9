//! Every TCP segment that passes the links of a network namespace, put together to streams.

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with, sockopt,
};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const ETH_P_ALL: u16 = 3;
const TCP: u8 = 6;
const SYN: u8 = 2;

/// A capture that goes on until it is stopped.
pub struct Capture {
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<HashMap<(SocketAddr, SocketAddr), Segments>>,
}

#[derive(Default)]
struct Segments {
    /// Where sequence numbers begin.
    start: u32,
    seen_from_start: bool,
    by_place: BTreeMap<u32, Vec<u8>>,
}

/// One direction of a connection.
#[derive(Debug, Clone)]
pub struct Stream {
    /// The sender.
    pub from: SocketAddr,
    /// The receiver.
    pub to: SocketAddr,
    /// It was there before the capture, or a part is missing: `bytes` may begin anywhere.
    pub is_partial: bool,
    /// The bytes sent.
    pub bytes: Vec<u8>,
}

impl Capture {
    /// Starts to capture in the network namespace of this thread.
    pub fn start() -> Self {
        let protocol = NonZeroU32::new(u32::from(ETH_P_ALL.to_be())).map(Protocol::from_raw);
        let socket = socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )
        .unwrap();
        sockopt::set_socket_recv_buffer_size_force(&socket, 32 << 20).unwrap();
        let tick = Some(Duration::from_millis(20));
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, tick).unwrap();
        let stopped = Arc::new(AtomicBool::new(false));
        let until = stopped.clone();
        let thread = std::thread::spawn(move || read(&socket, &until));
        Self { stopped, thread }
    }

    /// Ends it once all links have been silent for a moment.
    pub fn stop(self) -> Vec<Stream> {
        self.stopped.store(true, Ordering::SeqCst);
        let flows = self.thread.join().unwrap();
        let mut streams: Vec<_> = flows
            .into_iter()
            .map(|((from, to), segments)| segments.stream(from, to))
            .filter(|stream| !stream.bytes.is_empty())
            .collect();
        streams.sort_by_key(|s| (s.to, s.from));
        streams
    }
}

impl Segments {
    fn stream(self, from: SocketAddr, to: SocketAddr) -> Stream {
        let (mut bytes, mut is_partial) = (Vec::new(), !self.seen_from_start);
        for (place, segment) in self.by_place {
            let have = bytes.len();
            let place = place as usize;
            is_partial |= place > have;
            // Retransmitted bytes are already there.
            let new = have.saturating_sub(place).min(segment.len());
            bytes.extend_from_slice(&segment[new..]);
        }
        Stream {
            from,
            to,
            is_partial,
            bytes,
        }
    }
}

impl Stream {
    /// Whether this is in it.
    pub fn contains(&self, text: &str) -> bool {
        self.bytes.windows(text.len()).any(|w| w == text.as_bytes())
    }

    /// Whether it is TLS records from its first byte to its last, a handshake first.
    pub fn is_tls(&self) -> bool {
        let mut rest = self.bytes.as_slice();
        let mut first = true;
        while let [kind, 3, 1 | 3, high, low, after @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let known = matches!(kind, 20..=23) && length <= 16384 + 256;
            if !known || first && *kind != 22 || after.len() < length {
                return false;
            }
            first = false;
            rest = &after[length..];
        }
        rest.is_empty() && !first
    }
}

fn read(socket: &OwnedFd, stopped: &AtomicBool) -> HashMap<(SocketAddr, SocketAddr), Segments> {
    let mut flows: HashMap<_, Segments> = HashMap::new();
    // Offloading makes packets longer than the links carry.
    let mut packet = vec![0; 128 * 1024];
    loop {
        let Ok((_, length)) = recv(socket, &mut packet[..], RecvFlags::empty()) else {
            if stopped.load(Ordering::SeqCst) {
                return flows;
            }
            continue;
        };
        let Some(segment) = parse(&packet[..length]) else {
            continue;
        };
        let flow = flows.entry((segment.from, segment.to)).or_default();
        if segment.is_first {
            // Ports are used again by later connections; only the first is looked at.
            if flow.seen_from_start && flow.start != segment.number.wrapping_add(1) {
                continue;
            }
            flow.start = segment.number.wrapping_add(1);
            flow.seen_from_start = true;
        } else if flow.by_place.is_empty() && !flow.seen_from_start {
            flow.start = segment.number;
        }
        if !segment.data.is_empty() {
            let place = segment.number.wrapping_sub(flow.start);
            // The same segment passes two links or more.
            flow.by_place
                .entry(place)
                .or_insert_with(|| segment.data.to_vec());
        }
    }
}

struct Segment<'a> {
    from: SocketAddr,
    to: SocketAddr,
    is_first: bool,
    number: u32,
    data: &'a [u8],
}

/// A segment from an Ethernet frame.
fn parse(frame: &[u8]) -> Option<Segment<'_>> {
    let (ethernet, packet) = frame.split_at_checked(14)?;
    let (from, to, segment): (IpAddr, IpAddr, &[u8]) = match [ethernet[12], ethernet[13]] {
        [0x08, 0x00] if *packet.get(9)? == TCP => {
            let head = usize::from(packet[0] & 15) * 4;
            let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            let at = |i: usize| -> Option<Ipv4Addr> {
                let bytes: [u8; 4] = packet.get(i..i + 4)?.try_into().ok()?;
                Some(bytes.into())
            };
            // Short frames are padded.
            let total = if total == 0 { packet.len() } else { total };
            (at(12)?.into(), at(16)?.into(), packet.get(head..total)?)
        }
        [0x86, 0xdd] if *packet.get(6)? == TCP => {
            let at = |i: usize| -> Option<Ipv6Addr> {
                let bytes: [u8; 16] = packet.get(i..i + 16)?.try_into().ok()?;
                Some(bytes.into())
            };
            (at(8)?.into(), at(24)?.into(), packet.get(40..)?)
        }
        _ => return None,
    };
    let port = |i: usize| Some(u16::from_be_bytes([*segment.get(i)?, *segment.get(i + 1)?]));
    let number: [u8; 4] = segment.get(4..8)?.try_into().ok()?;
    let head = usize::from(segment.get(12)? >> 4) * 4;
    Some(Segment {
        from: (from, port(0)?).into(),
        to: (to, port(2)?).into(),
        is_first: segment.get(13)? & SYN != 0,
        number: u32::from_be_bytes(number),
        data: segment.get(head..)?,
    })
}
