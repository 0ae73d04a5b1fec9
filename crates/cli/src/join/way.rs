//! The way to the controller when a host is started: there, or gone for a while.

use super::address::own;
use super::kept::Kept;
use crate::args::join::JoinOptions;
use crate::failure::{Failure, OrFail, Result};
use crate::supervise::last_known::LastKnown;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

const CONNECT_TIME: Duration = Duration::from_secs(10);

/// The way to the controller.
pub(super) struct Way {
    /// Where it listens.
    pub(super) controller: SocketAddr,
    /// This host's address on the way there.
    pub(super) own: IpAddr,
    /// This host may start without its answer: it was of that mesh, and has not left it.
    pub(super) may_be_away: bool,
    /// Why it is not reached.
    pub(super) away: Option<Failure>,
}

impl Way {
    /// Finds it, also where no names are resolved and nobody answers. `fingerprint` is that of the mesh's authority.
    pub(super) fn find(
        options: &JoinOptions,
        fingerprint: &str,
        kept: &Kept,
        known: &LastKnown,
    ) -> Result<Self> {
        let before = known.controller(&options.controller, fingerprint);
        let controller = match resolve(&options.controller) {
            Ok(address) => address,
            Err(failure) => before.ok_or(failure)?,
        };
        let may_be_away = before.is_some() && kept.file().exists() && !known.objects().is_empty();
        let (own, away) = match reach(controller) {
            Ok(own) => (own, None),
            Err(failure) => {
                let address = own(controller).or(known.address());
                match address.filter(|_| may_be_away) {
                    Some(address) => (address, Some(failure)),
                    None => return Err(failure),
                }
            }
        };
        Ok(Self {
            controller,
            own,
            may_be_away,
            away,
        })
    }
}

/// The address of a name such as `HOST:PORT`.
pub(super) fn resolve(address: &str) -> Result<SocketAddr> {
    let wrong = |why: String| {
        Failure::usage(format!("--controller {address} is invalid"))
            .because(why)
            .fix("write HOST:PORT, as `tulle token create` prints it")
    };
    let mut found = address
        .to_socket_addrs()
        .map_err(|e| wrong(e.to_string()))?;
    found
        .next()
        .ok_or_else(|| wrong("the name has no address".into()))
}

/// This host's address on the way to the controller.
fn reach(controller: SocketAddr) -> Result<IpAddr> {
    let stream = TcpStream::connect_timeout(&controller, CONNECT_TIME)
        .or_fail(|| format!("cannot reach the controller at {controller}"))
        .map_err(|f| f.fix("start the mesh there with `tulle up --loopback --listen 0.0.0.0:15010 --advertise ADDRESS FILE`, and open the port"))?;
    let own = stream
        .local_addr()
        .or_fail(|| "cannot read a socket's address".to_owned())?;
    Ok(own.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_without_port_are_refused() {
        assert!(resolve("127.0.0.1").is_err());
        assert!(resolve("127.0.0.1:15010").is_ok());
    }
}
