//! Is an address free that the manifests name? Asked before anything is started: proxies share
//! their ports among workers (`SO_REUSEPORT`), so those of two meshes of one user would silently
//! share the clients, and a probe would be answered by a stranger.

use super::gateway::addresses;
use super::state::Mode;
use crate::failure::{Failure, Result};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use tulle_model::manifest::Object;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Whether somebody could listen there now.
pub(crate) fn free(address: SocketAddr) -> Result<()> {
    let Err(error) = TcpListener::bind(address) else {
        return Ok(());
    };
    let failure = Failure::new(format!("cannot listen on {address}"));
    Err(match error.kind() {
        ErrorKind::AddrInUse => failure.because("another process does already").fix(format!(
            "`ss -ltnp 'sport = :{}'` shows which; end it, or choose another port",
            address.port()
        )),
        ErrorKind::PermissionDenied => failure
            .because(error)
            .fix("choose a port of 1024 or more, or run this as root"),
        ErrorKind::AddrNotAvailable => failure
            .because("this host has no such address")
            .fix("choose one that `ip address` shows"),
        _ => failure.because(error),
    })
}

/// Looks at every address of the objects that is this host's.
pub(crate) fn check(objects: &[Object], mode: Mode) -> Result<()> {
    for object in objects {
        for address in wanted(object, mode) {
            free(address).map_err(|f| f.of(&object.id()))?;
        }
    }
    Ok(())
}

fn wanted(object: &Object, mode: Mode) -> Vec<SocketAddr> {
    match object {
        Object::Gateway(gateway) => addresses(&gateway.spec),
        Object::Workload(workload) if mode == Mode::Loopback => {
            let spec = &workload.spec;
            let own = spec.ports.iter().filter(|_| !spec.command.is_empty());
            let own = own.map(|p| p.target_port.unwrap_or(p.port));
            let upstreams = spec.upstreams.iter().filter_map(|u| u.local_port);
            own.chain(upstreams)
                .map(|port| SocketAddr::new(LOCALHOST, port))
                .collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named_with_its_object() {
        let taken = TcpListener::bind((LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let text = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: in}}\nspec:\n  \
             gatewayClassName: tulle\n  listeners: [{{name: a, port: {port}, protocol: HTTP}}]\n"
        );
        let objects = tulle_model::manifest::parse("x.yaml", &text).unwrap();
        let objects: Vec<Object> = objects.into_iter().map(|l| l.object).collect();
        let said = check(&objects, Mode::Loopback).unwrap_err().to_string();
        for part in [
            "Gateway/in",
            &format!("127.0.0.1:{port}"),
            "another process",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        drop(taken);
        check(&objects, Mode::Loopback).unwrap();
    }
}
