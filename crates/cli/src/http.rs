//! A small blocking HTTP/1.1 client for a proxy's admin socket and for probes: one GET, one
//! answer, bounded in time and size. Not for anything else; traffic goes through the proxy.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest answer that is read. A proxy's metrics are far below it.
const LONGEST: u64 = 32 << 20;
/// All of an answer may take so many times what one part of it may.
const PARTS: u32 = 10;

/// Status and body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Response {
    /// Status code.
    pub(crate) status: u16,
    /// Body, unframed.
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// Body as text; what is not UTF-8 is replaced.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// GET over a Unix socket. `timeout` is for connecting and for each part of the answer.
pub(crate) fn get_unix(socket: &Path, path: &str, timeout: Duration) -> io::Result<Response> {
    let flags = SocketFlags::CLOEXEC;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Also for connecting, which waits for as long as a server takes no more.
    set_socket_timeout(&stream, Timeout::Send, Some(timeout))?;
    connect(&stream, &SocketAddrUnix::new(socket)?)?;
    let stream = UnixStream::from(stream);
    stream.set_read_timeout(Some(timeout))?;
    exchange(stream, "localhost", path, timeout)
}

/// GET over TCP. `timeout` is for connecting and for each part of the answer.
pub(crate) fn get_tcp(
    address: SocketAddr,
    host: &str,
    path: &str,
    timeout: Duration,
) -> io::Result<Response> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    exchange(stream, host, path, timeout)
}

fn exchange<S: Read + Write>(
    mut stream: S,
    host: &str,
    path: &str,
    timeout: Duration,
) -> io::Result<Response> {
    let until = Instant::now() + timeout * PARTS;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: tulle\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    let mut limited = stream.take(LONGEST);
    let mut chunk = [0; 16 * 1024];
    loop {
        match limited.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(chunk.get(..n).unwrap_or_default()),
            // A server that keeps the connection open has still answered in full.
            Err(_) if complete(&bytes) => break,
            Err(e) => return Err(e),
        }
        if complete(&bytes) {
            break;
        }
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    parse(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer"))
}

struct Head<'a> {
    status: u16,
    length: Option<usize>,
    chunked: bool,
    body: &'a [u8],
}

fn head(bytes: &[u8]) -> Option<Head<'_>> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let text = std::str::from_utf8(bytes.get(..end)?).ok()?;
    let mut lines = text.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let (mut length, mut chunked) = (None, false);
    for (name, value) in lines.filter_map(|l| l.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok();
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.to_ascii_lowercase().contains("chunked");
        }
    }
    if matches!(status, 204 | 304) {
        length = Some(0);
    }
    Some(Head {
        status,
        length,
        chunked,
        body: bytes.get(end + 4..)?,
    })
}

fn complete(bytes: &[u8]) -> bool {
    head(bytes).is_some_and(|h| match h.length {
        _ if h.chunked => unchunk(h.body).is_some(),
        Some(length) => h.body.len() >= length,
        None => false,
    })
}

fn parse(bytes: &[u8]) -> Option<Response> {
    let head = head(bytes)?;
    let body = if head.chunked {
        unchunk(head.body)?
    } else {
        let length = head.length.unwrap_or(head.body.len());
        head.body.get(..length)?.to_vec()
    };
    Some(Response {
        status: head.status,
        body,
    })
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n")?;
        let line = std::str::from_utf8(rest.get(..end)?).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        rest = rest.get(end + 2..)?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size.checked_add(2)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framings() {
        let plain = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokxx";
        assert_eq!(parse(plain).unwrap().text(), "ok");
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n1;a=b\r\n!\r\n0\r\n\r\n";
        assert_eq!(parse(chunked).unwrap().text(), "ok!");
        let until_close = b"HTTP/1.0 503 No\r\n\r\nlater";
        let answer = parse(until_close).unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (503, "later"));
        for broken in [
            &b""[..],
            b"HTTP/1.1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
        ] {
            assert_eq!(parse(broken), None);
        }
    }

    /// Runs a server of one connection on a thread.
    fn serve<T: Send + 'static>(
        path: &Path,
        server: impl FnOnce(UnixStream) -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
        std::thread::spawn(move || server(listener.accept().unwrap().0))
    }

    #[test]
    fn who_never_ends_an_answer_or_takes_no_connection_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let (slow, full) = (dir.path().join("slow"), dir.path().join("full"));
        serve(&slow, |mut stream| {
            // Until the client has gone.
            while stream.write_all(b"HTTP").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let part = Duration::from_millis(50);
        let failed = get_unix(&slow, "/", part).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        let listener = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&full).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _first = UnixStream::connect(&full).unwrap();
        let failed = get_unix(&full, "/", part).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_real_exchange_over_a_unix_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let server = serve(&path, |mut stream| {
            let mut request = [0; 1024];
            let n = stream.read(&mut request).unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nready")
                .unwrap();
            String::from_utf8_lossy(&request[..n]).into_owned()
        });
        let answer = get_unix(&path, "/ready", Duration::from_secs(5)).unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (200, "ready"));
        assert!(
            server
                .join()
                .unwrap()
                .starts_with("GET /ready HTTP/1.1\r\n")
        );
    }
}
