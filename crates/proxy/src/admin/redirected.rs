//! `tulle-proxy --check-redirect`: an init container without privileges that succeeds only where
//! the pod's traffic is redirected. The node makes the rules; a pod started before the node could
//! make them must not run without them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use tulle_net::socket;

/// Port where redirected connections to the pod come in.
const INBOUND: u16 = 15006;
/// Port on which nothing listens yet.
const ELSEWHERE: u16 = 15001;
const LIMIT: Duration = Duration::from_secs(5);

/// Checks that a call of the sidecar's user to the pod's own address comes in at the sidecar's
/// port. All rules are made at once, so one of them stands for the others.
///
/// # Errors
/// It does not; the text says what to do.
pub fn check(own: IpAddr) -> Result<(), String> {
    let inbound = socket::available((Ipv6Addr::UNSPECIFIED, INBOUND).into());
    let bound = TcpListener::bind(inbound);
    let _inbound = bound.map_err(|e| format!("cannot listen on port {INBOUND}: {e}"))?;
    let called = TcpStream::connect_timeout(&SocketAddr::new(own, ELSEWHERE), LIMIT);
    called.map(drop).map_err(|e| {
        format!(
            "the pod's traffic is not redirected ({own}: {e}): when its network was made, the node had no CNI plugin \
             of the mesh. A new pod in its place has rules once the DaemonSet tulle-cni is ready on the node"
        )
    })
}
