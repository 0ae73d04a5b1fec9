//! Two hosts of a mesh as network namespaces on one wire, with the addresses a test wants and the
//! product's redirection: for what `tulle up` does not set up, such as a network without IPv4.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_thread_res_uid};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use tulle_redirect::{FilterBackend, Namespace, Redirection, apply_redirection};

/// Applications in a yard; sidecars are root there, whose connections are not redirected.
const APPLICATION: u32 = 1600;

/// Runs this in a network namespace, as another user if one is given.
pub(crate) fn in_namespace<T: Send>(
    name: &str,
    user: Option<u32>,
    run: impl FnOnce() -> T + Send,
) -> T {
    let namespace = File::open(Path::new("/run/netns").join(name)).unwrap();
    let work = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        if let Some(user) = user {
            let user = rustix::process::Uid::from_raw(user);
            set_thread_res_uid(user, user, user).unwrap();
        }
        run()
    };
    // Both are of the thread alone, and end with it.
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// The two namespaces; gone with the value.
pub struct Yard {
    names: [String; 2],
}

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// Where the client and its sidecar are.
    Client,
    /// Where the server and its sidecar are.
    Server,
}

impl Yard {
    /// Makes them. Each pair of addresses is the client's and the server's, in one network of /64
    /// or /24; nothing else is configured, so a yard without IPv4 addresses has no IPv4 but loopback.
    pub fn new(addresses: &[(IpAddr, IpAddr)]) -> Self {
        let unique = crate::free_port();
        let names = ["a", "b"].map(|side| format!("tulle-y{unique:x}.{side}"));
        let yard = Self { names };
        let [a, b] = &yard.names;
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        ip(&format!(
            "-n {a} link add eth0 type veth peer name eth0 netns {b}"
        ));
        for (name, own) in [(a, 0), (b, 1)] {
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} link set eth0 up"));
            for pair in addresses {
                let address = if own == 0 { pair.0 } else { pair.1 };
                let (prefix, more) = match address {
                    IpAddr::V4(_) => (24, ""),
                    // The address is usable at once, without detection of duplicates.
                    IpAddr::V6(_) => (64, " nodad"),
                };
                ip(&format!(
                    "-n {name} address add {address}/{prefix} dev eth0{more}"
                ));
            }
        }
        yard
    }

    /// Redirects connections of applications to the sidecar and others' connections to it, as on
    /// every host of a mesh.
    pub fn redirect(&self, change: impl Fn(Redirection) -> Redirection) {
        self.redirect_at(Host::Client, &change);
        self.redirect_at(Host::Server, &change);
    }

    /// Like `redirect`, on one of the hosts.
    pub fn redirect_at(&self, host: Host, change: impl Fn(Redirection) -> Redirection) {
        let namespace = Namespace {
            name: self.name(host).to_owned(),
            v4: Ipv4Addr::UNSPECIFIED,
            v6: None,
        };
        let redirection = Redirection {
            sidecar_uid: 0,
            ..Redirection::default()
        };
        apply_redirection(&namespace, FilterBackend::Nft, &change(redirection)).unwrap();
    }

    /// Leads what is for elsewhere from one of the hosts to this address.
    pub fn default_route(&self, host: Host, via: IpAddr) {
        ip(&format!(
            "-n {} route add default via {via}",
            self.name(host)
        ));
    }

    /// Name of a namespace.
    pub fn name(&self, host: Host) -> &str {
        match host {
            Host::Client => &self.names[0],
            Host::Server => &self.names[1],
        }
    }

    /// Runs this on one of the hosts as its sidecar would: nothing is redirected.
    pub fn sidecar<T: Send>(&self, host: Host, run: impl FnOnce() -> T + Send) -> T {
        in_namespace(self.name(host), None, run)
    }

    /// Runs this on one of the hosts as an application.
    pub fn application<T: Send>(&self, host: Host, run: impl FnOnce() -> T + Send) -> T {
        in_namespace(self.name(host), Some(APPLICATION), run)
    }
}

fn ip(line: &str) {
    let output = Command::new("ip").args(line.split(' ')).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {line}: {said}");
}

impl Drop for Yard {
    fn drop(&mut self) {
        for name in &self.names {
            // It may not have been made.
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}
