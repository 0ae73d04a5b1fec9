//! A client of `bookinfo echo`: gRPC and WebSocket, which curl cannot say, and HTTP where there is no
//! curl, as in the demo's own image.

use crate::grpc::proto::Words;
use crate::grpc::proto::echo_client::EchoClient;
use crate::http::MAX_BODY;
use futures_util::SinkExt;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Method;
use hyper_util::rt::TokioIo;
use tokio_stream::StreamExt;
use tokio_tungstenite::tungstenite::protocol::Message;
use tonic::metadata::{Ascii, MetadataKey, MetadataValue};
use tonic::transport::Channel;

/// Headers to send.
type Fields = Vec<(String, String)>;

/// `name: value`, as curl's `-H`.
pub(crate) fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected `name: value`")?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().into()))
}

/// Says each of the words, each after the answer to the one before, and prints the answers.
/// With `wait` a WebSocket is left open until the other side ends it.
pub(crate) async fn talk(
    url: &str,
    words: Vec<String>,
    fields: Fields,
    wait: bool,
) -> Result<(), String> {
    if let Some(rest) = url.strip_prefix("grpc://") {
        let (host, method) = rest.split_once('/').unwrap_or((rest, "Say"));
        return call(host, method, words, &fields).await;
    }
    if url.starts_with("ws://") {
        return web_socket(url, words, fields, wait).await;
    }
    if let Some(address) = url.strip_prefix("tcp://") {
        return crate::greet::talk(address, words).await;
    }
    if let Some(rest) = url.strip_prefix("http://") {
        for word in words {
            ask(Method::POST, rest, word, &fields).await?;
        }
        return Ok(());
    }
    Err(format!(
        "{url:?}: expected http://host:port/path, tcp://host:port, ws://host:port/path, grpc://host:port/Say or grpc://host:port/Repeat"
    ))
}

/// Asks for a URL with GET.
pub(crate) async fn fetch(url: &str, fields: Fields) -> Result<(), String> {
    match url.strip_prefix("http://") {
        Some(rest) => ask(Method::GET, rest, String::new(), &fields).await,
        None => Err(format!("{url:?}: expected http://host:port/path")),
    }
}

/// A request on a connection of its own; prints status, reason and content.
async fn ask(method: Method, rest: &str, body: String, fields: &Fields) -> Result<(), String> {
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let failed = |e: &dyn std::fmt::Display| format!("http://{rest}: {e}");
    let stream = tokio::net::TcpStream::connect(with_port(host)).await;
    let stream = TokioIo::new(stream.map_err(|e| failed(&e))?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream)
        .await
        .map_err(|e| failed(&e))?;
    tokio::spawn(connection);
    let request = hyper::Request::builder()
        .method(method)
        .uri(format!("/{path}"));
    let mut request = request.header("host", host);
    for (name, value) in fields {
        request = request.header(name, value);
    }
    let request = request
        .body(Full::<hyper::body::Bytes>::from(body))
        .map_err(|e| failed(&e))?;
    let answer = sender.send_request(request).await.map_err(|e| failed(&e))?;
    let reason = answer.headers().get("x-tulle-reason");
    let reason = reason.and_then(|r| r.to_str().ok()).unwrap_or_default();
    println!("{} {reason}", answer.status().as_u16());
    let content = Limited::new(answer.into_body(), MAX_BODY).collect().await;
    let content = content.map_err(|e| failed(&e))?.to_bytes();
    println!("{}", String::from_utf8_lossy(&content).trim_end());
    Ok(())
}

async fn web_socket(
    url: &str,
    words: Vec<String>,
    fields: Fields,
    wait: bool,
) -> Result<(), String> {
    use tokio_tungstenite::tungstenite::client::{ClientRequestBuilder, IntoClientRequest};
    let uri = url.parse().map_err(|e| format!("{url:?}: {e}"))?;
    let request = fields
        .into_iter()
        .fold(ClientRequestBuilder::new(uri), |r, (n, v)| {
            r.with_header(n, v)
        })
        .into_client_request()
        .map_err(|e| format!("{url:?}: {e}"))?;
    let authority = request.uri().authority().map(ToString::to_string);
    let host = authority.unwrap_or_default();
    let connect = tokio::net::TcpStream::connect(with_port(&host)).await;
    let stream = connect.map_err(|e| format!("{host}: {e}"))?;
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream)
        .await
        .map_err(|e| format!("{url}: {e}"))?;
    for word in words {
        let sent = socket.send(Message::text(word)).await;
        sent.map_err(|e| format!("{url}: {e}"))?;
        match socket.next().await {
            Some(Ok(Message::Text(text))) => println!("{text}"),
            Some(Ok(other)) => return Err(format!("{url}: unexpected {other:?}")),
            Some(Err(e)) => return Err(format!("{url}: {e}")),
            None => return Err(format!("{url}: it has ended")),
        }
    }
    if wait {
        match socket.next().await {
            Some(Err(e)) => return Err(format!("{url}: {e}")),
            Some(Ok(Message::Close(_))) | None => {}
            Some(Ok(other)) => return Err(format!("{url}: unexpected {other:?}")),
        }
    }
    // A peer that has hung up already needs no closing frame.
    let _ = socket.close(None).await;
    Ok(())
}

fn with_port(host: &str) -> String {
    match host.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => host.into(),
        _ => format!("{host}:80"),
    }
}

async fn call(host: &str, method: &str, words: Vec<String>, fields: &Fields) -> Result<(), String> {
    let endpoint = Channel::from_shared(format!("http://{host}")).map_err(|e| e.to_string())?;
    let channel = endpoint.connect().await;
    let channel = channel.map_err(|e| format!("{host}: {e:?}"))?;
    let mut metadata = Vec::new();
    for (name, value) in fields {
        let name: MetadataKey<Ascii> = name.parse().map_err(|e| format!("{name:?}: {e}"))?;
        let value: MetadataValue<Ascii> = value.parse().map_err(|e| format!("{value:?}: {e}"))?;
        metadata.push((name, value));
    }
    let mut client = EchoClient::with_interceptor(channel, |mut r: tonic::Request<()>| {
        for (name, value) in &metadata {
            r.metadata_mut().append(name.clone(), value.clone());
        }
        Ok(r)
    });
    let failed = |e: tonic::Status| format!("{host}: {:?}: {}", e.code(), e.message());
    let words = words.into_iter().map(|text| Words {
        text,
        name: String::new(),
    });
    match method {
        "Say" => {
            for word in words {
                let answer = client.say(word).await.map_err(failed)?.into_inner();
                println!("{}: {}", answer.name, answer.text);
            }
        }
        "Repeat" => {
            let (say, said) = tokio::sync::mpsc::channel(1);
            let said = tokio_stream::wrappers::ReceiverStream::new(said);
            let answers = client.repeat(said).await.map_err(failed)?;
            let mut answers = answers.into_inner();
            for word in words {
                say.send(word).await.map_err(|_| "the call has ended")?;
                let answer = answers.message().await.map_err(failed)?;
                let answer = answer.ok_or("the call has ended")?;
                println!("{}: {}", answer.name, answer.text);
            }
            drop(say);
            // The stream ends with the status.
            answers.message().await.map_err(failed)?;
        }
        other => return Err(format!("{other:?}: expected Say or Repeat")),
    }
    Ok(())
}
