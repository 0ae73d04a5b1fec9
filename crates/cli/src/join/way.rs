//! The way to the controller when a host is started: there, or gone for a while.

use super::address::own;
use super::kept::Kept;
use crate::args::Join;
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
    /// It does not answer.
    pub(super) is_away: bool,
}

impl Way {
    /// Finds it. A host that was of the mesh, and has not left it, goes on where no controller answers, and no names are
    /// resolved.
    pub(super) fn find(args: &Join, kept: &Kept, known: &LastKnown) -> Result<Self> {
        let controller = match resolve(&args.controller) {
            Ok(address) => address,
            Err(failure) => known.controller(&args.controller).ok_or(failure)?,
        };
        let failure = match reach(controller) {
            Ok(own) => {
                known.note_controller(&args.controller, controller);
                return Ok(Self {
                    controller,
                    own,
                    is_away: false,
                });
            }
            Err(failure) => failure,
        };
        let address = own(controller).or(known.address());
        match address.filter(|_| kept.file().exists() && !known.objects().is_empty()) {
            Some(own) => Ok(Self {
                controller,
                own,
                is_away: true,
            }),
            None => Err(failure),
        }
    }
}

fn resolve(address: &str) -> Result<SocketAddr> {
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
