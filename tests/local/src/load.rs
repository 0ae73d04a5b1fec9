//! Constant load on kept connections, with every request that was lost told apart.

use crate::{Client, eventually, get, post};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Clients that send one request after another until told to stop.
pub struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    /// Starts clients that ask for `target`, every third time with a body.
    pub fn start(address: SocketAddr, clients: usize, target: &'static str) -> Self {
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let run = |_| {
            let (stop, done) = (stop.clone(), done.clone());
            std::thread::spawn(move || run(address, target, &stop, &done))
        };
        let clients = (0..clients).map(run).collect();
        let load = Self {
            stop,
            done,
            clients,
        };
        load.await_more(20);
        load
    }

    /// Waits until so many more requests have ended.
    pub fn await_more(&self, count: u64) {
        let goal = self.done.load(Ordering::SeqCst) + count;
        eventually("the load goes on", || {
            self.done.load(Ordering::SeqCst) >= goal
        });
    }

    /// Ends the load; what failed.
    pub fn failures(mut self) -> Vec<String> {
        self.stop.store(true, Ordering::SeqCst);
        let clients = std::mem::take(&mut self.clients);
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    }

    /// Ends the load, of which nothing may have failed.
    pub fn assert_no_failure(self) {
        let done = self.done.clone();
        let failures = self.failures();
        let done = done.load(Ordering::SeqCst);
        assert!(
            failures.is_empty(),
            "{} of {done} requests failed: {:#?}",
            failures.len(),
            failures.iter().take(5).collect::<Vec<_>>()
        );
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn run(address: SocketAddr, target: &str, stop: &AtomicBool, done: &AtomicU64) -> Vec<String> {
    let mut failures = Vec::new();
    let mut client = None;
    let mut number = 0u32;
    while !stop.load(Ordering::SeqCst) {
        let on_kept = client.is_some();
        match request(address, target, &mut client, number) {
            Ok(()) => {}
            // A connection that was lost while it was kept, one that could not be made, and an
            // answer that was cut or wrong are different troubles.
            Err(error) => failures.push(format!("request {number}, kept: {on_kept}: {error}")),
        }
        number += 1;
        done.fetch_add(1, Ordering::SeqCst);
        // The machine has other work to do.
        std::thread::sleep(Duration::from_millis(2));
    }
    failures
}

fn request(
    address: SocketAddr,
    target: &str,
    client: &mut Option<Client>,
    number: u32,
) -> Result<(), String> {
    // Back in its place only when the connection is fit for another request.
    let mut on = match client.take() {
        Some(client) => client,
        None => Client::try_connect(address).map_err(|e| format!("connect: {e}"))?,
    };
    let with_body = number % 3 == 2;
    let (method, bytes) = match with_body {
        true => ("POST", post(target, &[b'x'; 3000])),
        false => ("GET", get(target).into_bytes()),
    };
    on.try_send(bytes)
        .map_err(|e| format!("{method}: send: {e}"))?;
    let response = on
        .try_response(method)
        .map_err(|e| format!("{method}: response: {e}"))?;
    if response.status() != 200 {
        return Err(format!("{method}: {} {}", response.start, response.text()));
    }
    if !response.header("connection").eq_ignore_ascii_case("close") {
        *client = Some(on);
    }
    Ok(())
}
