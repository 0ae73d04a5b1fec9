//! Is a workload ready? Asked the way its own sidecar would ask: from inside its namespace, on
//! loopback. From outside, strict mutual TLS would refuse a probe.

use crate::http;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;
use tokio::sync::oneshot;
use tulle_model::manifest::{Probe, WorkloadPort};

const TIMEOUT: Duration = Duration::from_secs(1);

/// One question, with everything it needs, so that it can be asked on another thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    /// `GET path` answers 200 to 399.
    Http {
        /// The server's address.
        address: SocketAddr,
        /// The path of the request.
        path: String,
    },
    /// All of these accept a connection.
    Tcp(Vec<SocketAddr>),
    /// This program ends with 0.
    Exec(Vec<String>),
}

impl Question {
    /// Returns the probe in a workload's manifest, or a probe that its ports accept connections.
    pub(crate) fn for_probe(probe: Option<&Probe>, ports: &[WorkloadPort], host: IpAddr) -> Self {
        let at = |port: u16| {
            let declared = ports.iter().find(|p| p.port == port);
            let port = declared.and_then(|p| p.target_port).unwrap_or(port);
            SocketAddr::new(host, port)
        };
        let probe = probe.cloned().unwrap_or_default();
        if let Some(get) = probe.http_get {
            return Self::Http {
                address: at(get.port),
                path: get.path,
            };
        }
        if let Some(exec) = probe.exec {
            return Self::Exec(exec.command);
        }
        match probe.tcp_socket {
            Some(socket) => Self::Tcp(vec![at(socket.port)]),
            None => Self::Tcp(ports.iter().map(|p| at(p.port)).collect()),
        }
    }

    fn ask(&self) -> Result<(), String> {
        match self {
            Self::Http { address, path } => {
                let get = |a: SocketAddr| http::get_tcp(a, &a.to_string(), path, TIMEOUT);
                match either(*address, get) {
                    Ok(answer) if (200..400).contains(&answer.status) => Ok(()),
                    Ok(answer) => Err(format!("GET {path} on {address} answers {}", answer.status)),
                    Err(e) => Err(format!("GET {path} on {address}: {e}")),
                }
            }
            Self::Tcp(addresses) => addresses.iter().try_for_each(|address| {
                let connect = |a| TcpStream::connect_timeout(&a, TIMEOUT).map(drop);
                either(*address, connect)
                    .map_err(|e| format!("nothing accepts connections on {address}: {e}"))
            }),
            // Started by the supervisor's own thread, see `workload`.
            Self::Exec(_) => Ok(()),
        }
    }
}

/// Asks an application on loopback; it may listen on one family only. The first error tells.
fn either<T, E>(address: SocketAddr, ask: impl Fn(SocketAddr) -> Result<T, E>) -> Result<T, E> {
    ask(address).or_else(|error| match address.ip() {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => {
            ask((Ipv6Addr::LOCALHOST, address.port()).into()).map_err(|_| error)
        }
        _ => Err(error),
    })
}

/// Asks from inside a namespace (by the path of its file), or from here.
pub(crate) async fn ask(question: Question, namespace: Option<String>) -> Result<(), String> {
    let (tell, told) = oneshot::channel();
    // A thread of its own: it enters the namespace and must not come back.
    let spawned = std::thread::Builder::new()
        .name("probe".into())
        .spawn(move || {
            let answer = enter(namespace.as_deref())
                .map_err(|e| format!("cannot enter the namespace: {e}"))
                .and_then(|()| question.ask());
            let _ = tell.send(answer);
        });
    if let Err(e) = spawned {
        return Err(format!("cannot start a thread for the probe: {e}"));
    }
    told.await
        .unwrap_or_else(|_| Err("the probe failed".into()))
}

fn enter(namespace: Option<&str>) -> io::Result<()> {
    let Some(name) = namespace else { return Ok(()) };
    let file = File::open(Path::new("/run/netns").join(name))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::manifest::HttpGet;

    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn port(port: u16, target_port: Option<u16>) -> WorkloadPort {
        WorkloadPort {
            name: None,
            port,
            target_port,
            app_protocol: None,
            proxy_protocol: false,
        }
    }

    #[test]
    fn probes_go_where_the_application_listens() {
        let ports = [port(80, Some(8080)), port(90, None)];
        let probe = Probe {
            http_get: Some(HttpGet {
                path: "/health".into(),
                port: 80,
            }),
            ..Probe::default()
        };
        assert_eq!(
            Question::for_probe(Some(&probe), &ports, LOCALHOST),
            Question::Http {
                address: "127.0.0.1:8080".parse().unwrap(),
                path: "/health".into()
            }
        );
        let all = ["127.0.0.1:8080", "127.0.0.1:90"].map(|a| a.parse().unwrap());
        assert_eq!(
            Question::for_probe(None, &ports, LOCALHOST),
            Question::Tcp(all.to_vec())
        );
    }

    #[test]
    fn a_listening_port_is_ready_and_a_closed_one_is_not() {
        // No other test is given a port of this address while it is closed.
        let listener = std::net::TcpListener::bind("127.83.1.9:0").unwrap();
        let address = listener.local_addr().unwrap();
        let question = Question::Tcp(vec![address]);
        question.ask().unwrap();
        drop(listener);
        // A child that another test is starting has it, too, until it runs its own program.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let why = loop {
            match question.ask() {
                Err(why) => break why,
                Ok(()) => assert!(std::time::Instant::now() < end, "still ready"),
            }
        };
        assert!(why.contains(&address.to_string()), "{why}");
    }
}
