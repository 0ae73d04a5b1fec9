//! Tells the init system how far the mesh is (`sd_notify(3)`: a datagram to `$NOTIFY_SOCKET`).
//!
//! Without the variable nothing is told. No process of the mesh inherits it.

use crate::output::one_line;
use crate::paths::Paths;
use crate::supervise::state::{Phase, RunState};
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Follows the mesh until it has stopped. It counts as ready when every service answers, or when
/// `patience` is over: one application that does not start keeps no other from being ready.
pub(crate) async fn follow(paths: Paths, patience: Duration, mut phases: watch::Receiver<Phase>) {
    let begun = phases.wait_for(|p| *p != Phase::Starting);
    let late = timeout(patience, begun).await.is_err();
    if late {
        let state = RunState::read(&paths).ok().flatten();
        let missing = state.map(|s| s.not_ready().join("; ")).unwrap_or_default();
        let missing = one_line(&missing);
        tracing::warn!(missing, "not every service answers yet");
        tell(&format!("READY=1\nSTATUS=not ready: {missing}"));
        let _ = phases.wait_for(|p| *p != Phase::Starting).await;
    }
    if *phases.borrow() == Phase::Running {
        tell("READY=1\nSTATUS=every service has answered");
    }
    let _ = phases.wait_for(|p| *p == Phase::Stopping).await;
    tell("STOPPING=1\nSTATUS=requests in flight may end");
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, "cannot tell the init system");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let own = UnixDatagram::unbound()?;
    // A full queue must not hold up the mesh.
    own.set_nonblocking(true)?;
    own.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_a_path_or_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("tulle-notify-{}", std::process::id());
        let by_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (server, socket) in [
            (UnixDatagram::bind(&path), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&by_name), format!("@{name}").into()),
        ] {
            let server = server.unwrap();
            send(&socket, "READY=1").unwrap();
            let mut got = [0; 32];
            let length = server.recv(&mut got).unwrap();
            assert_eq!(got[..length], *b"READY=1");
        }
        assert!(send(OsStr::new("/nowhere/notify"), "READY=1").is_err());
    }
}
