//! A controller that is killed while it writes comes up with the last objects it acknowledged.
//!
//! A disk may lose more in a power cut: that is tested with a disk that forgets, beside the store
//! (`crates/control/src/store/power_cut.rs`).

#![allow(clippy::unwrap_used)] // a helper of tests may fail like a test

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tulle_api::v1::objects_client::ObjectsClient;
use tulle_api::v1::{ApplyRequest, ListRequest, Object, StatusRequest};
use tulle_proxy::control::dial::{self, Stream};

/// In all.
const KILLS: u32 = 200;
/// Batches within whose time a controller is killed.
const SOME: u64 = 6;
/// They wait for the disk and for processes, so several may.
const SIDE_BY_SIDE: u32 = 4;

struct Controller {
    child: Child,
    socket: PathBuf,
}

impl Controller {
    fn start(directory: &Path) -> Self {
        let socket = directory.join("socket");
        let _ = std::fs::remove_file(&socket);
        let child = Command::new(env!("CARGO_BIN_EXE_tulle"))
            .args(["controller", "--listen", "127.0.0.1:0", "--dir"])
            .arg(directory.join("controller"))
            .arg("--socket")
            .arg(&socket)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(directory.join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { child, socket }
    }

    /// Waits until it answers; returns the fingerprint of its authority, too.
    async fn objects(&mut self) -> (ObjectsClient<Channel>, String) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let socket = self.socket.clone();
            let connect = dial::connector(move || {
                let socket = socket.clone();
                async move { Ok(Box::new(UnixStream::connect(socket).await?) as Box<dyn Stream>) }
            });
            let endpoint = Endpoint::from_static("http://controller");
            let mut objects = ObjectsClient::new(endpoint.connect_with_connector_lazy(connect));
            if let Ok(status) = objects.status(StatusRequest::default()).await {
                return (objects, status.into_inner().ca_fingerprint);
            }
            let log = || std::fs::read_to_string(self.socket.with_file_name("log")).unwrap();
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it has ended: {}", log());
            assert!(Instant::now() < until, "it does not answer: {}", log());
            sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn target(name: &str, number: u64) -> Object {
    let json = format!(
        r#"{{"apiVersion":"access.smi-spec.io/v1alpha3","kind":"TrafficTarget","metadata":{{"name":"{name}","annotations":{{"number":"{number}"}}}},"spec":{{"destination":{{"kind":"ServiceAccount","name":"b"}},"sources":[{{"kind":"ServiceAccount","name":"a"}}]}}}}"#
    );
    Object {
        kind: "TrafficTarget".into(),
        name: name.into(),
        json,
    }
}

/// Applies so many batches, one after the other, and keeps the numbers of the last that was acknowledged and of the last
/// that was sent.
async fn write(
    objects: &mut ObjectsClient<Channel>,
    acknowledged: &mut u64,
    sent: &mut u64,
    batches: u64,
) -> Result<(), tonic::Status> {
    for _ in 0..batches {
        *sent += 1;
        let request = ApplyRequest {
            objects: vec![target("first", *sent), target("second", *sent)],
            ..Default::default()
        };
        objects.apply(request).await?;
        *acknowledged = *sent;
    }
    Ok(())
}

async fn numbers(objects: &mut ObjectsClient<Channel>) -> (u64, u64) {
    let stored = objects.list(ListRequest::default()).await.unwrap();
    let stored = stored.into_inner().objects;
    let number = |name: &str| {
        let object = stored.iter().find(|o| o.name == name);
        let value: Option<serde_json::Value> =
            object.map(|o| serde_json::from_str(&o.json).unwrap());
        let text = value.map(|v| v["metadata"]["annotations"]["number"].clone());
        text.map_or(0, |t| t.as_str().unwrap().parse().unwrap())
    };
    (number("first"), number("second"))
}

/// Kills one controller again and again. Returns how often a write was under way.
async fn kill_again_and_again(kills: u32, seed: u64) -> u32 {
    let directory = tempfile::tempdir().unwrap();
    // A controller refuses to put its socket where others can enter.
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let (mut acknowledged, mut sent) = (0, 0);
    let mut authority: Option<String> = None;
    let mut interrupted = 0;
    let mut dice = seed;
    // Time of these on this machine.
    let mut some = Duration::ZERO;
    for kill in 0..=kills {
        let mut controller = Controller::start(directory.path());
        let (mut objects, fingerprint) = controller.objects().await;
        let known = authority.get_or_insert_with(|| fingerprint.clone());
        assert_eq!(*known, fingerprint, "another authority after kill {kill}");
        let (first, second) = numbers(&mut objects).await;
        assert_eq!(first, second, "half a batch after kill {kill}");
        assert!(
            (acknowledged..=sent).contains(&first),
            "{first} is there after kill {kill}; acknowledged {acknowledged}, sent {sent}"
        );
        if kill == kills {
            break;
        }
        (acknowledged, sent) = (first, first);
        if kill == 0 {
            let begun = Instant::now();
            let written = write(&mut objects, &mut acknowledged, &mut sent, SOME).await;
            written.unwrap();
            some = begun.elapsed();
        }
        // xorshift64: the moments differ within a run and are the same in the next.
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let moment = some * u32::try_from(dice % 1000).unwrap() / 1000;
        let writing = write(&mut objects, &mut acknowledged, &mut sent, u64::MAX);
        let ended = timeout(moment, writing).await;
        assert!(ended.is_err(), "it ended by itself: {ended:?}");
        interrupted += u32::from(sent > acknowledged);
        controller.child.kill().unwrap();
    }
    assert!(acknowledged > SOME, "nothing was written before a kill");
    interrupted
}

#[test]
fn a_controller_killed_at_any_moment_has_what_it_acknowledged() {
    let threads: Vec<_> = (1..=SIDE_BY_SIDE)
        .map(|number| {
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                let seed = 0x9e37_79b9_7f4a_7c15 ^ u64::from(number);
                runtime.block_on(kill_again_and_again(KILLS / SIDE_BY_SIDE, seed))
            })
        })
        .collect();
    let interrupted: u32 = threads.into_iter().map(|t| t.join().unwrap()).sum();
    assert!(interrupted > KILLS / 2, "{interrupted} of {KILLS}");
}
