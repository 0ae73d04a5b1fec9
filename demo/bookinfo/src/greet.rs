//! Speaks first, as databases and mail servers do: a greeting, then each line it is told again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

/// Most connections at a time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 1024;
/// Longest line.
const MAX_LINE: u64 = 4096;
/// Longest wait for the next line.
const PATIENCE: Duration = Duration::from_secs(330);

/// Serves until SIGTERM. Conversations that are under way end with it.
pub(crate) async fn serve(address: SocketAddr, name: String) -> Result<(), String> {
    let cannot = |e| format!("greet cannot listen on {address}: {e}");
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let actual = listener.local_addr().map_err(cannot)?;
    let signals = |e| format!("greet cannot wait for signals: {e}");
    let mut terminate = signal(SignalKind::terminate()).map_err(signals)?;
    println!("greet listens on {actual}");
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let name: Arc<str> = name.into();
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await;
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = terminate.recv() => return Ok(()),
        };
        match accepted {
            Ok((stream, _)) => {
                let name = Arc::clone(&name);
                tokio::spawn(async move {
                    // A client that goes away is its own business.
                    let _ = greet(stream, &name).await;
                    drop(slot);
                });
            }
            Err(e) => {
                // Out of files, mostly: wait for some to be closed rather than spin.
                eprintln!("greet cannot accept a connection: {e}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn greet(stream: TcpStream, name: &str) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (received, mut out) = stream.into_split();
    out.write_all(format!("{name} is ready\n").as_bytes())
        .await?;
    let mut received = BufReader::new(received);
    loop {
        let mut line = String::new();
        let mut next = (&mut received).take(MAX_LINE);
        let read = tokio::time::timeout(PATIENCE, next.read_line(&mut line)).await??;
        if read == 0 || !line.ends_with('\n') {
            return Ok(());
        }
        out.write_all(format!("{name} heard {line}").as_bytes())
            .await?;
    }
}

/// Waits for the greeting, then says each of the words after the answer to the one before.
pub(crate) async fn talk(address: &str, words: Vec<String>) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("tcp://{address}: {e}");
    let stream = TcpStream::connect(address).await.map_err(failed)?;
    let (received, mut out) = stream.into_split();
    let mut received = BufReader::new(received).take(MAX_LINE * (1 + words.len() as u64));
    let mut said = String::new();
    received.read_line(&mut said).await.map_err(failed)?;
    for word in words {
        out.write_all(format!("{word}\n").as_bytes())
            .await
            .map_err(failed)?;
        received.read_line(&mut said).await.map_err(failed)?;
    }
    print!("{said}");
    Ok(())
}
