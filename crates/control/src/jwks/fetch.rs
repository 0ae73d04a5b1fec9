//! One request for a set of keys.

use super::address::may_be_asked;
use super::set;
use crate::index::KeySource;
use crate::lookup::KEY_SETS;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tulle_tls::outside::{Inside, OutsideClient};

/// Longest answer; a set of 32 large keys has 25 KiB.
const MAX_ANSWER: usize = 64 * 1024;
/// Time limit of a whole fetch: the name, the connection, the answer.
const EXCHANGE: Duration = Duration::from_secs(10);
/// Time limit of connecting to one address.
const CONNECT: Duration = Duration::from_secs(3);

/// A set, and how long its server says that it holds.
pub(super) struct Fetched {
    pub jwks: String,
    pub max_age: Option<Duration>,
}

/// Fetches a set.
///
/// # Errors
/// The reason of the failure. It does not repeat the server's words: its reader may not be allowed
/// to ask that server.
pub(super) async fn fetch(source: &KeySource) -> Result<Fetched, String> {
    let exchange = timeout(EXCHANGE, exchange(source)).await;
    exchange.unwrap_or_else(|_| Err(format!("no answer within {} s", EXCHANGE.as_secs())))
}

async fn exchange(source: &KeySource) -> Result<Fetched, String> {
    let tls = OutsideClient::new(&source.roots).and_then(|c| c.config(Inside::Http1));
    let tls = tls.map_err(text)?;
    let name = OutsideClient::server_name(&source.uri.host).map_err(text)?;
    let tcp = connect(source).await?;
    let stream = TlsConnector::from(tls).connect(name, tcp).await;
    let stream = stream.map_err(|e| format!("TLS: {e}"))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(text)?;
    let host = match source.uri.host.contains(':') {
        true => format!("[{}]:{}", source.uri.host, source.uri.port),
        false if source.uri.port == 443 => source.uri.host.clone(),
        false => format!("{}:{}", source.uri.host, source.uri.port),
    };
    let request = Request::get(&source.uri.target)
        .header(header::HOST, host)
        .header(header::ACCEPT, "application/jwk-set+json, application/json")
        .header(header::USER_AGENT, "tulle")
        .body(Empty::<Bytes>::new())
        .map_err(text)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(text)?;
        read(response).await
    };
    tokio::pin!(connection, answer);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // The connection may end with the answer's last byte, which is then in `answer`.
        ended = &mut connection => match ended {
            Ok(()) => answer.await,
            Err(e) => Err(text(e)),
        },
    }
}

async fn read(response: Response<hyper::body::Incoming>) -> Result<Fetched, String> {
    match response.status() {
        StatusCode::OK => {}
        status if status.is_redirection() => {
            return Err(format!(
                "it answers {}: redirects are not followed, name the last address",
                status.as_u16()
            ));
        }
        status => return Err(format!("it answers {}, not 200", status.as_u16())),
    }
    let cache = response.headers().get_all(header::CACHE_CONTROL).iter();
    let max_age = max_age(cache.filter_map(|value| value.to_str().ok()));
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect();
    let body = body
        .await
        .map_err(|e| format!("the answer breaks off, or has more than {MAX_ANSWER} bytes: {e}"))?;
    let jwks = set::usable(&body.to_bytes())?;
    Ok(Fetched { jwks, max_age })
}

/// Connects to an address that was looked at: the name is not resolved again.
async fn connect(source: &KeySource) -> Result<TcpStream, String> {
    let (host, port) = (source.uri.host.as_str(), source.uri.port);
    let found = KEY_SETS.resolve(host, port).await?;
    let allowed = |a: &SocketAddr| may_be_asked(a.ip(), &source.networks);
    let mut why = format!(
        "{host} has no address that may be asked: list its networks in the Mesh (jwks.hosts) if that is meant"
    );
    for address in found.into_iter().filter(allowed) {
        match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => {
                // The address may be one of the controller's own, though it is one of the internet.
                let own = tcp.local_addr().is_ok_and(|own| own.ip() == address.ip());
                if own && source.networks.is_empty() {
                    continue;
                }
                return Ok(tcp);
            }
            Ok(Err(e)) => why = format!("{host}:{port}: {e}"),
            Err(_) => {
                why = format!(
                    "{host}:{port}: no connection within {} s",
                    CONNECT.as_secs()
                )
            }
        }
    }
    Err(why)
}

/// Returns how long an answer may be kept (RFC 9111, section 5.2.2); zero if it must not be kept.
fn max_age<'a>(values: impl Iterator<Item = &'a str>) -> Option<Duration> {
    let mut age: Option<Duration> = None;
    for directive in values.flat_map(|value| value.split(',')) {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        let said = match name.trim().to_ascii_lowercase().as_str() {
            "no-store" | "no-cache" => Duration::ZERO,
            "max-age" => match value.trim().trim_matches('"').parse() {
                Ok(seconds) => Duration::from_secs(seconds),
                Err(_) => continue,
            },
            _ => continue,
        };
        age = Some(age.map_or(said, |known| known.min(said)));
    }
    age
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cache_control_says() {
        let age = |values: &[&str]| max_age(values.iter().copied()).map(|d| d.as_secs());
        assert_eq!(age(&[]), None);
        assert_eq!(age(&["public, Max-Age=60"]), Some(60));
        assert_eq!(age(&["max-age=\"60\"", "max-age=30"]), Some(30));
        assert_eq!(age(&["no-cache, max-age=60"]), Some(0));
        assert_eq!(age(&["max-age=x, s-maxage=9"]), None);
        assert_eq!(age(&["max-age=-1"]), None);
    }
}
