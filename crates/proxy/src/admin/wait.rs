//! `tulle-proxy --wait-ready`: where a sidecar is an ordinary container, the kubelet starts the
//! application's container only when this has ended.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Port on which a pod's sidecar answers.
const HEALTH_PORT: u16 = 15021;
const LIMIT: Duration = Duration::from_secs(120);
const BETWEEN: Duration = Duration::from_millis(100);
const ANSWER: Duration = Duration::from_secs(2);

/// Waits until the sidecar of this pod is ready.
///
/// # Errors
/// It is not ready in time; the text is its last answer.
pub fn ready() -> Result<(), String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, HEALTH_PORT));
    let end = Instant::now() + LIMIT;
    loop {
        let why = match ask(address) {
            Ok(answer) if answer.starts_with("HTTP/1.1 200 ") => return Ok(()),
            Ok(answer) => answer.lines().last().unwrap_or_default().to_owned(),
            Err(error) => error.to_string(),
        };
        if Instant::now() > end {
            return Err(format!("the sidecar is not ready after {LIMIT:?}: {why}"));
        }
        std::thread::sleep(BETWEEN);
    }
}

fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(4096).read_to_string(&mut answer)?;
    Ok(answer)
}
