//! A controller in a small container: it refuses members that ask for much, with a reason, before the kernel ends
//! it, and the others receive what they need.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "common/group.rs"]
mod group;

use common::{Stream, dial, local, names, sign};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tonic::{Code, Status};
use tulle_api::v1;
use tulle_api::v1::certificates_client::CertificatesClient;
use tulle_control::{Controller, memory_limit};
use tulle_tls::Identity;

/// The memory limit of the container.
const ALLOWED: u64 = 128 << 20;
const LONG: Duration = Duration::from_secs(120);
/// The most names a proxy may subscribe to.
const NAMES: usize = 20_000;
/// Names of a small message: as many as a proxy may add while memory is short.
const FEW_NAMES: usize = 64;
/// Streams of one connection.
const STREAMS: usize = 16;

struct Remote {
    address: std::net::SocketAddr,
    fingerprint: String,
}

impl Remote {
    async fn join(&self, directory: &Path) -> Identity {
        let mut objects = local(&directory.join("run/control.sock")).await;
        let asked = v1::JoinTokenRequest {
            identity: "svc/a".into(),
            ttl_seconds: 0,
        };
        let token = objects
            .create_join_token(asked)
            .await
            .unwrap()
            .into_inner()
            .token;
        let channel = dial(self.address, &self.fingerprint, None).await.unwrap();
        let proof = v1::SignRequest {
            join_token: token,
            ..Default::default()
        };
        sign(CertificatesClient::new(channel), "svc/a", proof)
            .await
            .unwrap()
    }

    /// Opens streams that ask for as much as they may; why one is refused, in the end.
    async fn greedy(&self, identity: &Identity, held: &mut Vec<Stream>) -> Option<Status> {
        // One that is closed at once was refused, too.
        let channel = dial(self.address, &self.fingerprint, Some(identity))
            .await
            .ok()?;
        for _ in 0..STREAMS {
            let mut stream = match Stream::open(channel.clone()).await {
                Ok(stream) => stream,
                Err(status) => return Some(status),
            };
            let number = held.len();
            let long = "x".repeat(60);
            let names = (0..NAMES).map(|n| format!("service/{long}-{number}-{n}"));
            let request = v1::SubscribeRequest {
                subscribe: names.collect(),
                ..Default::default()
            };
            stream.requests.send(request).await.ok()?;
            // It has been heard, and is not answered.
            if let Err(status) = stream.updates.message().await {
                return Some(status);
            }
            held.push(stream);
        }
        None
    }
}

/// Runs in the container until its parent ends it.
async fn controller(directory: &str) {
    memory_limit::start();
    let config = common::config(Path::new(directory));
    let running = Controller::start(config).await.unwrap();
    let said = format!("{} {}", running.local_addr(), running.ca_fingerprint());
    group::say(directory, &said);
    std::future::pending::<()>().await;
}

/// Starts the controller of a test in a container. `None`: limits need root.
async fn contained(test: &str, directory: &Path) -> Option<(group::Limited, Remote)> {
    let mut limited = group::again(test, ALLOWED, directory)?;
    let said = limited.said(directory).await;
    let (address, fingerprint) = said.split_once(' ').unwrap();
    let remote = Remote {
        address: address.parse().unwrap(),
        fingerprint: fingerprint.into(),
    };
    Some((limited, remote))
}

/// Returns why a stream has ended, if it has.
async fn end_of(stream: &mut Stream) -> Option<Status> {
    loop {
        match timeout(Duration::ZERO, stream.updates.message()).await {
            // Updates that wait come first.
            Ok(Ok(Some(_))) => {}
            Ok(Err(status)) => return Some(status),
            Ok(Ok(None)) | Err(_) => return None,
        }
    }
}

/// Adds names to all streams in turn, a few in each message, until one is refused.
async fn creep(streams: &mut [Stream]) -> Option<Status> {
    let long = "x".repeat(240);
    for round in 0..NAMES / FEW_NAMES {
        for (number, stream) in streams.iter_mut().enumerate() {
            let names = (0..FEW_NAMES).map(|n| format!("service/{long}-{number}-{round}-{n}"));
            let request = v1::SubscribeRequest {
                subscribe: names.collect(),
                ..Default::default()
            };
            // It fails when the stream has ended.
            let _ = stream.requests.send(request).await;
            let end = end_of(stream).await;
            if end.is_some() {
                return end;
            }
        }
    }
    None
}

/// All streams are open before memory is short, so nobody refuses these.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_ask_for_too_much_in_small_messages_are_refused_in_time() {
    const NAME: &str = "members_that_ask_for_too_much_in_small_messages_are_refused_in_time";
    if let Some(directory) = group::directory() {
        return controller(&directory).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some((mut limited, remote)) = contained(NAME, directory.path()).await else {
        return;
    };
    let identity = remote.join(directory.path()).await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        let channel = dial(remote.address, &remote.fingerprint, Some(&identity)).await;
        let channel = channel.unwrap();
        for _ in 0..STREAMS {
            streams.push(Stream::open(channel.clone()).await.unwrap());
        }
    }
    let mut honest = streams.pop().unwrap();
    honest.subscribe(&["mesh"]).await;
    assert_eq!(names(&honest.accept().await), ["mesh"]);

    let why = creep(&mut streams).await.unwrap();
    limited.runs();
    println!("{} KiB: {why}", limited.memory() >> 10);
    assert_eq!(why.code(), Code::ResourceExhausted, "{why}");
    assert!(why.message().starts_with("overload: "), "{why}");
    // A proxy that asks for little receives it all the same.
    honest.subscribe(&["catalog"]).await;
    assert_eq!(names(&honest.accept().await), ["catalog"]);
    limited.runs();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_ask_for_too_much_are_refused_in_time() {
    const NAME: &str = "members_that_ask_for_too_much_are_refused_in_time";
    if let Some(directory) = group::directory() {
        return controller(&directory).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some((mut limited, remote)) = contained(NAME, directory.path()).await else {
        return;
    };
    let identity = remote.join(directory.path()).await;
    let channel = dial(remote.address, &remote.fingerprint, Some(&identity))
        .await
        .unwrap();
    let mut honest = Stream::open(channel.clone()).await.unwrap();
    honest.subscribe(&["mesh"]).await;
    assert_eq!(names(&honest.accept().await), ["mesh"]);

    let (mut held, begin) = (Vec::new(), Instant::now());
    let mut why = None;
    while why.is_none() {
        assert!(
            begin.elapsed() < LONG,
            "{} streams, {}",
            held.len(),
            limited.memory()
        );
        why = remote.greedy(&identity, &mut held).await;
        if why.is_none() {
            // Its connection may have been closed at once. This one is open.
            why = Stream::open(channel.clone()).await.err();
        }
        limited.runs();
    }
    let why = why.unwrap();
    println!(
        "{} streams, {} KiB: {why}",
        held.len(),
        limited.memory() >> 10
    );
    assert_eq!(why.code(), Code::ResourceExhausted, "{why}");
    assert!(why.message().starts_with("overload: "), "{why}");
    // A stream that was let in before receives a service that is new to it, and the reason why no other stream is
    // let in.
    honest.subscribe(&["catalog"]).await;
    assert_eq!(names(&honest.accept().await), ["catalog"]);
    limited.runs();

    // When they have gone there is room again.
    drop(held);
    let begin = Instant::now();
    loop {
        if let Ok(mut stream) = Stream::open(channel.clone()).await {
            stream.subscribe(&["mesh"]).await;
            if stream.next().await.is_ok() {
                break;
            }
        }
        assert!(
            begin.elapsed() < LONG,
            "nobody is served: {}",
            limited.memory()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    limited.runs();
}

/// A proxy says what it trusts in so many words that all of them together would not fit into the container.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_reports_of_what_proxies_trust_are_not_kept() {
    const NAME: &str = "long_reports_of_what_proxies_trust_are_not_kept";
    if let Some(directory) = group::directory() {
        return controller(&directory).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some((mut limited, remote)) = contained(NAME, directory.path()).await else {
        return;
    };
    let identity = remote.join(directory.path()).await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        let channel = dial(remote.address, &remote.fingerprint, Some(&identity)).await;
        let channel = channel.unwrap();
        for _ in 0..STREAMS {
            streams.push(Stream::open(channel.clone()).await.unwrap());
        }
    }
    for stream in &mut streams {
        // Half a MiB on its way, 6 MiB in memory.
        let report = v1::TrustReport {
            root_sha256: vec![String::new(); 1 << 18],
            ..Default::default()
        };
        let request = v1::SubscribeRequest {
            subscribe: vec!["mesh".into()],
            trusts: Some(report),
            ..Default::default()
        };
        stream.requests.send(request).await.unwrap();
        // The controller has read it, and answers with what is to be trusted.
        while stream.accept().await.trust.is_none() {}
        limited.runs();
    }
    println!("{} KiB", limited.memory() >> 10);
}
