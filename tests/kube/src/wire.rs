//! Takes apart a packet capture from a node's network: the traffic between pods, or between nodes.

use crate::Cluster;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::{Child, Stdio};

/// A capture of IPv4 and TCP that runs.
pub struct Capture {
    tcpdump: Child,
    file: std::path::PathBuf,
}

/// One direction of a connection.
pub type Direction = (SocketAddrV4, SocketAddrV4);

/// Captured payloads, by direction.
#[derive(Debug, Default)]
pub struct Wire {
    /// Payloads by their position in the stream. Of connections that were there before the capture
    /// the beginning is missing.
    segments: BTreeMap<Direction, BTreeMap<u64, Vec<u8>>>,
    /// The sequence number of the first byte, of connections whose beginning was seen.
    begins: BTreeMap<Direction, u32>,
}

impl Cluster {
    /// Starts to look at everything that passes the bridge between the pods.
    ///
    /// # Panics
    /// tcpdump does not start.
    pub fn capture(&self) -> Capture {
        self.capture_on("cni0")
    }

    /// Starts to look at everything that passes an interface of the first node: `node0` leads to the
    /// other nodes.
    ///
    /// # Panics
    /// tcpdump does not start.
    pub fn capture_on(&self, interface: &str) -> Capture {
        let file = std::env::temp_dir().join(format!("tulle-wire-{}.pcap", std::process::id()));
        // The bridge shows what it hands from pod to pod only to those who listen to all of it,
        // which tcpdump does by itself.
        let tcpdump = self
            .command(&[
                "net",
                "tcpdump",
                "-i",
                interface,
                "-U",
                "-s",
                "0",
                "-B",
                "65536",
                "-Z",
                "root",
                // Or the kernel holds the last second's packets when it ends.
                "--immediate-mode",
                "-w",
            ])
            .arg(&file)
            .arg("tcp")
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        let mut tcpdump = tcpdump.unwrap_or_else(|e| panic!("tcpdump: {e}"));
        let said = tcpdump.stderr.take().map(BufReader::new);
        let mut said = said.unwrap_or_else(|| unreachable!("it was piped"));
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            let read = said.read_line(&mut line).unwrap_or(0);
            assert!(read > 0, "tcpdump ended");
        }
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Capture { tcpdump, file }
    }
}

impl Capture {
    /// Ends it and takes it apart.
    ///
    /// # Panics
    /// There is no capture.
    pub fn end(mut self) -> Wire {
        // Not killed: it has to write what it still holds. The script became tcpdump. SIGINT may be ignored.
        let pid = self.tcpdump.id().to_string();
        let told = std::process::Command::new("kill")
            .args(["-TERM", &pid])
            .status();
        assert!(told.is_ok_and(|s| s.success()), "tcpdump has ended before");
        let ended = self.tcpdump.wait();
        assert!(ended.is_ok(), "tcpdump: {ended:?}");
        let mut bytes = Vec::new();
        let read = std::fs::File::open(&self.file).and_then(|mut f| f.read_to_end(&mut bytes));
        read.unwrap_or_else(|e| panic!("{}: {e}", self.file.display()));
        Wire::parse(&bytes)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.tcpdump.kill();
        let _ = self.tcpdump.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

impl Wire {
    /// A file of tcpdump: little endian, Ethernet.
    fn parse(file: &[u8]) -> Self {
        let mut wire = Self::default();
        let mut rest = file.get(24..).unwrap_or_default();
        while let Some((head, after)) = rest.split_at_checked(16) {
            let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
            let Some((frame, after)) = after.split_at_checked(length) else {
                break; // cut off while it was written
            };
            wire.frame(frame);
            rest = after;
        }
        wire
    }

    fn frame(&mut self, frame: &[u8]) -> Option<()> {
        let packet = frame.get(14..).filter(|_| frame[12..14] == [8, 0])?;
        let header = usize::from(packet.first()? & 15) * 4;
        let total = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
        // A packet without a length, which the network card was to fill in, is taken whole.
        let packet = packet.get(..total).filter(|_| total > 0).unwrap_or(packet);
        let ip = |at: usize| Some(Ipv4Addr::from(*packet.get(at..at + 4)?.first_chunk::<4>()?));
        let (from, to) = (ip(12)?, ip(16)?);
        let tcp = packet.get(header..)?;
        let port = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
        let sequence = u32::from_be_bytes(*tcp.get(4..8)?.first_chunk::<4>()?);
        let payload = tcp.get(usize::from(tcp.get(12)? >> 4) * 4..)?;
        let direction = (
            SocketAddrV4::new(from, port(0)?),
            SocketAddrV4::new(to, port(2)?),
        );
        let syn = tcp.get(13)? & 2 != 0;
        if syn {
            self.begins.insert(direction, sequence.wrapping_add(1));
        }
        if !payload.is_empty() {
            let begin = self.begins.get(&direction).copied().unwrap_or(0);
            let place = u64::from(sequence.wrapping_sub(begin));
            let stream = self.segments.entry(direction).or_default();
            let kept = stream.entry(place).or_default();
            // The same place again is the same, or more, sent again.
            if kept.len() < payload.len() {
                *kept = payload.to_vec();
            }
        }
        Some(())
    }

    /// Directions between these addresses in which anything was sent.
    pub fn between<'a>(
        &'a self,
        pods: &'a BTreeSet<Ipv4Addr>,
    ) -> impl Iterator<Item = Direction> + 'a {
        let sent = self.segments.keys().copied();
        sent.filter(|(from, to)| pods.contains(from.ip()) && pods.contains(to.ip()))
    }

    /// Whether such bytes went that way in one piece.
    pub fn has(&self, direction: Direction, bytes: &[u8]) -> bool {
        let sent = self.segments.get(&direction).into_iter().flatten();
        sent.into_iter()
            .any(|(_, payload)| payload.windows(bytes.len()).any(|w| w == bytes))
    }

    /// Why a direction is not TLS from the first to the last byte; `None`: it is. Of one whose
    /// beginning was not seen, that cannot be said.
    pub fn not_tls(&self, direction: Direction) -> Option<String> {
        let segments = self.segments.get(&direction)?;
        if !self.begins.contains_key(&direction) {
            return None;
        }
        let mut stream = Vec::new();
        for (place, payload) in segments {
            let known = stream.len() as u64;
            if *place > known {
                return Some(format!("bytes {known} to {place} were not captured"));
            }
            let overlap = usize::try_from(known - place).unwrap_or(usize::MAX);
            stream.extend_from_slice(payload.get(overlap..).unwrap_or_default());
        }
        let mut rest = stream.as_slice();
        let mut first = true;
        while let [kind, major, _, high, low, after @ ..] = rest {
            // Change of cipher, alert, handshake, data (RFC 8446 5.1); the first is a hello.
            let is_record = matches!(kind, 20..=23) && *major == 3;
            if !is_record || (first && *kind != 22) {
                let text = String::from_utf8_lossy(&rest[..rest.len().min(80)]).into_owned();
                return Some(format!("{text:?}"));
            }
            first = false;
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            // The last one may have been under way when the capture ended.
            rest = after.get(length..).unwrap_or_default();
        }
        None
    }

    /// Whether the beginning of that direction was seen.
    pub fn is_whole(&self, direction: Direction) -> bool {
        self.begins.contains_key(&direction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 1000);
    const B: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 80);

    fn frame(wire: &mut Wire, sequence: u32, flags: u8, payload: &[u8]) {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0]);
        let total = u16::try_from(40 + payload.len()).unwrap_or(0);
        frame.extend(total.to_be_bytes());
        frame.extend([0; 8]);
        frame.extend(A.ip().octets());
        frame.extend(B.ip().octets());
        frame.extend(A.port().to_be_bytes());
        frame.extend(B.port().to_be_bytes());
        frame.extend(sequence.to_be_bytes());
        frame.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        frame.extend(payload);
        // Ethernet pads short frames.
        frame.extend([0; 6]);
        assert_eq!(wire.frame(&frame), Some(()));
    }

    #[test]
    fn tls_is_told_from_anything_else() {
        let mut wire = Wire::default();
        frame(&mut wire, 9, 2, b"");
        // Out of order, and sent twice.
        frame(&mut wire, 16, 0, &[23, 3, 3, 0, 1, 9]);
        frame(&mut wire, 10, 0, &[22, 3, 1, 0, 1, 9]);
        frame(&mut wire, 10, 0, &[22, 3, 1, 0, 1, 9]);
        assert_eq!(wire.not_tls((A, B)), None);
        frame(&mut wire, 22, 0, b"GET / HTTP/1.1");
        assert!(wire.not_tls((A, B)).is_some_and(|why| why.contains("GET")));
        assert!(wire.has((A, B), b"HTTP/1"));
        let both = BTreeSet::from([*A.ip(), *B.ip()]);
        assert_eq!(wire.between(&both).collect::<Vec<_>>(), [(A, B)]);

        let mut gap = Wire::default();
        frame(&mut gap, 9, 2, b"");
        frame(&mut gap, 12, 0, &[22, 3, 1, 0, 1, 9]);
        assert!(
            gap.not_tls((A, B))
                .is_some_and(|why| why.contains("not captured"))
        );
    }
}
