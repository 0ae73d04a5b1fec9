//! Answers scrapes.
//!
//! One path, one method, one answer per connection: no HTTP library is worth its size here.

use super::render;
use crate::state::MeshState;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tulle_net::places::{Class, PlaceLimits, Places};

/// Scrapes at a time.
const SCRAPES: PlaceLimits = PlaceLimits {
    all: 32,
    source: 16,
    reserved: 0,
};
/// Longest request head read.
const MAX_HEAD: usize = 8 * 1024;
/// Time limit of a whole scrape.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Answers scrapes until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, state: Arc<MeshState>) {
    let serve = |stream, _| {
        let state = state.clone();
        async move {
            // A scraper that does not finish in time is dropped; it will come again.
            let _ = tokio::time::timeout(TIMEOUT, answer(stream, &state)).await;
        }
    };
    let places = Places::new(SCRAPES);
    places.accept(listener, |_| Class::Anyone, serve).await;
}

async fn answer(mut stream: TcpStream, state: &MeshState) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(1024);
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = if head.starts_with(b"GET /metrics ") {
        ("200 OK", render(state))
    } else {
        ("404 Not Found", "only GET /metrics\n".to_owned())
    };
    let response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}
