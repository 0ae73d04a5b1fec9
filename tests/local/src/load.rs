//! Constant load on kept and on new connections, with every request that was lost told apart.

use crate::{Client, eventually, get, pause, post};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Words with which an application of the demo says, in an answer of status 200, that it could not call another.
const MISSING: [&str; 2] = ["class=\"bad\"", "ratingError"];

/// Clients that send one request after another until told to stop.
pub struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    /// Starts clients that ask for `target`, every third time with a body.
    pub fn start(address: SocketAddr, clients: usize, target: &'static str) -> Self {
        let with_bodies = Requests {
            targets: vec![target.to_owned()],
            with_bodies: true,
            afresh: false,
            whole: false,
        };
        Self::for_clients(vec![with_bodies; clients], address)
    }

    /// Starts clients that GET the targets in turn; the first on a new connection each time.
    pub fn gets(address: SocketAddr, clients: usize, targets: &[&str]) -> Self {
        Self::start_gets(address, clients, targets, false)
    }

    /// The same, and an answer of the demo fails as well that says it lacks something of another service.
    pub fn whole_gets(address: SocketAddr, clients: usize, targets: &[&str]) -> Self {
        Self::start_gets(address, clients, targets, true)
    }

    fn start_gets(address: SocketAddr, clients: usize, targets: &[&str], whole: bool) -> Self {
        let requests = |number| Requests {
            targets: targets.iter().map(|t| (*t).to_owned()).collect(),
            with_bodies: false,
            afresh: number == 0,
            whole,
        };
        Self::for_clients((0..clients).map(requests).collect(), address)
    }

    fn for_clients(clients: Vec<Requests>, address: SocketAddr) -> Self {
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let run = |requests: Requests| {
            let (stop, done) = (stop.clone(), done.clone());
            std::thread::spawn(move || run(address, &requests, &stop, &done))
        };
        let clients = clients.into_iter().map(run).collect();
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

    /// Ends the load, of which nothing may have failed. Returns how many requests there were.
    pub fn assert_no_failure(self) -> u64 {
        let done = self.done.clone();
        let failures = self.failures();
        let done = done.load(Ordering::SeqCst);
        assert!(
            failures.is_empty(),
            "{} of {done} requests failed: {:#?}",
            failures.len(),
            failures.iter().take(5).collect::<Vec<_>>()
        );
        done
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// The requests of a client.
#[derive(Clone)]
struct Requests {
    targets: Vec<String>,
    with_bodies: bool,
    afresh: bool,
    whole: bool,
}

fn run(
    address: SocketAddr,
    requests: &Requests,
    stop: &AtomicBool,
    done: &AtomicU64,
) -> Vec<String> {
    let mut failures = Vec::new();
    let mut client = None;
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        if number % 50 == 49 {
            // Connections that are made meanwhile matter too.
            client = None;
        }
        let target = &requests.targets[number % requests.targets.len()];
        let with_body = requests.with_bodies && number % 3 == 2;
        if requests.afresh {
            client = None;
        }
        let on_kept = client.is_some();
        let lacks = |text: String| MISSING.iter().any(|m| text.contains(m)).then_some(text);
        match request(address, target, &mut client, with_body) {
            Ok(text) if requests.whole => failures.extend(lacks(text)),
            Ok(_) => {}
            // A connection that was lost while it was kept, one that could not be made, and an
            // answer that was cut or wrong are different troubles.
            Err(error) => failures.push(format!("request {number}, kept: {on_kept}: {error}")),
        }
        number += 1;
        done.fetch_add(1, Ordering::SeqCst);
        // The machine has other work to do.
        pause("between requests of a load", Duration::from_millis(2));
    }
    failures
}

fn request(
    address: SocketAddr,
    target: &str,
    client: &mut Option<Client>,
    with_body: bool,
) -> Result<String, String> {
    // Back in its place only when the connection is fit for another request.
    let mut on = match client.take() {
        Some(client) => client,
        None => Client::try_connect(address).map_err(|e| format!("connect: {e}"))?,
    };
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
    Ok(response.text())
}
