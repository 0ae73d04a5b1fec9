//! One small HTTP request to a loopback port: statistics of sidecars, proofs.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer read: Envoy's statistics are some 100 KiB.
const LIMIT: u64 = 16 << 20;

/// The body of a GET that is answered with 200.
///
/// # Errors
/// It was not, in words.
pub fn get(port: u16, path: &str) -> Result<String, String> {
    match get_with(port, path, &[])? {
        (200, body) => Ok(body),
        (status, _) => Err(format!("127.0.0.1:{port}{path} answered {status}")),
    }
}

/// Status and body of a GET with further header fields.
///
/// # Errors
/// There was no answer, in words.
pub fn get_with(port: u16, path: &str, fields: &[(&str, &str)]) -> Result<(u16, String), String> {
    let failed = |e: &dyn std::fmt::Display| format!("127.0.0.1:{port}{path}: {e}");
    let mut stream = connect(port).map_err(|e| failed(&e))?;
    exchange(&mut stream, &format!("127.0.0.1:{port}"), path, fields).map_err(|e| failed(&e))
}

/// A connection to a loopback port on which nothing takes for ever.
pub(super) fn connect(port: u16) -> Result<TcpStream, String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(|e| e.to_string())?;
    for set in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
        set(&stream, Some(PATIENCE)).map_err(|e| e.to_string())?;
    }
    Ok(stream)
}

/// Status and body of a GET on a connection that ends with it.
pub(super) fn exchange(
    stream: &mut (impl Read + Write),
    host: &str,
    path: &str,
    fields: &[(&str, &str)],
) -> Result<(u16, String), String> {
    let mut head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for (name, value) in fields {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    let sent = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.flush());
    sent.map_err(|e| e.to_string())?;
    let mut answer = Vec::new();
    let read = stream.take(LIMIT).read_to_end(&mut answer);
    // A whole answer before a reset counts.
    parse(&answer).ok_or_else(|| match read {
        Err(e) => e.to_string(),
        Ok(_) => "no HTTP answer".to_owned(),
    })
}

/// The body of a GET over a Unix socket that is answered with 200.
///
/// # Errors
/// It was not, in words.
pub fn get_unix(socket: &std::path::Path, path: &str) -> Result<String, String> {
    let failed = |e: &dyn std::fmt::Display| format!("{}{path}: {e}", socket.display());
    let mut stream = UnixStream::connect(socket).map_err(|e| failed(&e))?;
    for set in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
        set(&stream, Some(PATIENCE)).map_err(|e| failed(&e))?;
    }
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).map_err(|e| failed(&e))?;
    let mut answer = Vec::new();
    stream
        .take(LIMIT)
        .read_to_end(&mut answer)
        .map_err(|e| failed(&e))?;
    match parse(&answer) {
        Some((200, body)) => Ok(body),
        Some((status, _)) => Err(failed(&format!("answered {status}"))),
        None => Err(failed(&"no HTTP answer")),
    }
}

fn parse(answer: &[u8]) -> Option<(u16, String)> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = &answer[end + 4..];
    let body = if head.contains("\r\ntransfer-encoding: chunked") {
        unchunk(body)?
    } else {
        body.to_vec()
    };
    Some((status, String::from_utf8_lossy(&body).into_owned()))
}

fn unchunk(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|w| w == b"\r\n")?;
        let size = std::str::from_utf8(&body[..end]).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(whole);
        }
        let chunk = body.get(end + 2..end + 2 + size)?;
        whole.extend_from_slice(chunk);
        body = body.get(end + 2 + size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_bodies_of_both_framings() {
        let plain = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(parse(plain), Some((200, "ok".into())));
        let chunked = b"HTTP/1.1 403 No\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\n";
        assert_eq!(parse(chunked), Some((403, "abc".into())));
        assert_eq!(
            parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"),
            None
        );
        assert_eq!(parse(b"garbage"), None);
    }
}
