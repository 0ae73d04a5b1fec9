//! One `tulle-proxy` process: its files, its first identity, its limits.
//!
//! The proxy makes its key and keeps it in a memory file that the supervisor holds open. A restarted
//! proxy so has its identity at once, even without a controller, and the key is never on a disk. The
//! memory file is the proxy's standard input: no other child inherits it.

mod bootstrap;
mod command;
mod files;
mod identity;

use super::context::Context;
use super::listening::Listening;
use super::ports::Reserved;
use super::process::{Make, SupervisedProcess};
use super::{state, user};
use crate::failure::{OrFail, Result};
use crate::http;
use crate::paths::make_dir;
use crate::proc::ProcessId;
use crate::remove_tree::remove_tree;
use files::{give_fd_to, give_to};
use rustix::fs::MemfdFlags;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tulle_model::bootstrap::{Dns, Listener};

/// How long a proxy lets requests in flight end.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);
const ADMIN_TIME: Duration = Duration::from_secs(2);

/// The settings in which proxies differ.
pub(crate) struct Description {
    /// Name of its directory, log and cgroup; unique in the mesh.
    pub(crate) name: String,
    /// Last part of its identity `svc/<identity>`.
    pub(crate) identity: String,
    /// The workload whose application is behind it; none for a gateway.
    pub(crate) workload: Option<String>,
    /// Namespace it runs in; none: the host's.
    pub(crate) namespace: Option<String>,
    /// Where it listens.
    pub(crate) listeners: Vec<Listener>,
    /// Where it answers its application's DNS.
    pub(crate) dns: Option<Dns>,
    /// Where its metrics are.
    pub(crate) metrics: SocketAddr,
    /// Where this host reaches them.
    pub(crate) scraped: SocketAddr,
    /// Where its administration is.
    pub(crate) admin: SocketAddr,
    /// Holds the ports of the addresses above that the supervisor chose.
    pub(crate) _reserved: Vec<Reserved>,
    /// Passes further listeners, which come and go; none: all are in `listeners`.
    pub(crate) passes_listeners: Option<Rc<Listening>>,
}

/// A proxy that is kept running.
pub(crate) struct RunningProxy {
    name: String,
    kept: SupervisedProcess,
    maker: Rc<Maker>,
    admin_socket: PathBuf,
    directory: PathBuf,
}

impl RunningProxy {
    /// Starts it and keeps it running.
    pub(crate) fn start(context: &Rc<Context>, description: Description) -> Result<Self> {
        let directory = context.paths.proxies().join(&description.name);
        let user = user::of_sidecar(context, &description.name)?;
        make_dir(&directory, 0o700)?;
        give_to(&directory, user)?;
        let memory = rustix::fs::memfd_create("tulle-identity", MemfdFlags::CLOEXEC)
            .or_fail(|| "cannot make a memory file for a proxy's key".to_owned())?;
        give_fd_to(&memory, user)?;
        let admin_socket = context.paths.admin_socket(&description.name);
        let name = description.name.clone();
        let maker = Rc::new(Maker {
            context: Rc::clone(context),
            listeners: RefCell::new(description.listeners.clone()),
            reserved: RefCell::default(),
            moves: Cell::default(),
            description,
            directory: directory.clone(),
            user,
            memory,
            identity: RefCell::default(),
            enrolled: Cell::default(),
            serving: RefCell::default(),
            process: OnceCell::new(),
        });
        let made = Rc::clone(&maker);
        let make: Make = Box::new(move |_| {
            let maker = Rc::clone(&made);
            Box::pin(async move { maker.make().await.map_err(|f| f.to_string()) })
        });
        let kept = SupervisedProcess::start(
            format!("proxy of {name}"),
            DRAIN + Duration::from_secs(2),
            Rc::clone(&context.changed),
            make,
        );
        // The first command is made later.
        let _ = maker.process.set(kept.shared());
        Ok(Self {
            name,
            kept,
            maker,
            admin_socket,
            directory,
        })
    }

    /// Its state, `ready` as last asked.
    pub(crate) fn state(&self, ready: bool) -> state::Proxy {
        state::Proxy {
            process: self.kept.process(),
            ready,
            identity: self.maker.identity.borrow().clone(),
            replaceable: self.is_replaceable(),
            admin_socket: self.admin_socket.clone(),
            admin: Some(self.maker.description.admin),
            metrics: Some(self.maker.description.scraped),
        }
    }

    /// Whether it has certificate and configuration; else why not.
    pub(crate) async fn ready(&self) -> std::result::Result<(), String> {
        let process = self.kept.process();
        if process.id.is_none() {
            return Err(match process.last_exit {
                Some(why) => format!(
                    "the proxy is not running ({why}); see `tulle logs {} --sidecar`",
                    self.name.strip_prefix("gateway.").unwrap_or(&self.name)
                ),
                None => "the proxy is starting".into(),
            });
        }
        let socket = self.admin_socket.clone();
        let asked =
            tokio::task::spawn_blocking(move || http::get_unix(&socket, "/ready", ADMIN_TIME));
        match asked.await {
            // The answer may be that of a process which was followed by another one meanwhile.
            Ok(Ok(_)) if self.kept.process().id != process.id => {
                Err("another process is starting".into())
            }
            Ok(Ok(answer)) if answer.status == 200 => Ok(()),
            Ok(Ok(answer)) => {
                let text = answer.text();
                let text = text.trim();
                let why = text.strip_prefix("not ready: ").unwrap_or(text);
                if why.contains("certificate") {
                    self.maker.enrol_again().await;
                }
                Err(format!("the proxy is not ready: {why}"))
            }
            Ok(Err(e)) => Err(format!("the proxy does not answer yet: {e}")),
            Err(e) => Err(format!("the proxy could not be asked: {e}")),
        }
    }

    /// Starts it anew with the listeners of an address of this host that is gone at another address. It has its
    /// identity, so nobody is asked for anything.
    pub(crate) fn move_to(&self, old: IpAddr, new: IpAddr) {
        let mut listeners = self.maker.listeners.borrow_mut();
        for listener in listeners.iter_mut().filter(|l| l.address.ip() == old) {
            listener.address.set_ip(new);
            // Held for as long as this proxy is kept, like the ports before. Somebody who has it is named by the
            // proxy, which cannot listen there.
            if let Ok(reserved) = Reserved::bind(listener.address) {
                self.maker.reserved.borrow_mut().push(reserved);
            }
        }
        self.maker.moves.set(true);
        // Connections that it had came to the address that is gone.
        self.kept.kill_and_start();
    }

    /// Whether a process of a sidecar can hand its listeners to the next one.
    pub(crate) fn is_replaceable(&self) -> bool {
        self.maker.heir_socket().is_some()
    }

    /// Whether a sidecar is ready. Its listeners are then its own, and the process before, if there is one, is ended.
    pub(crate) async fn take_over(&self) -> std::result::Result<(), String> {
        self.ready().await?;
        if self.has_predecessor() {
            self.retire();
        }
        self.maker.certify_only_last();
        Ok(())
    }

    /// Starts another process that is to take over, and goes on meanwhile.
    pub(crate) fn succeed(&self) {
        if !self.has_predecessor() {
            // One before that has ended by itself is certified no more.
            self.maker.certify_only_last();
        }
        self.kept.succeed();
    }

    /// Whether the process before goes on, because the present one has not taken over.
    pub(crate) fn has_predecessor(&self) -> bool {
        self.kept.has_predecessor()
    }

    /// Drains and ends the process before.
    pub(crate) fn retire(&self) {
        self.kept.retire();
    }

    /// Its present process, if there is one.
    pub(crate) fn id(&self) -> Option<ProcessId> {
        self.kept.process().id
    }

    /// Drains and ends it, and removes its files.
    pub(crate) async fn stop(self) {
        self.kept.stop().await;
        if let Err(e) = remove_tree(&self.directory) {
            tracing::warn!(directory = %self.directory.display(), error = %e, "cannot remove");
        }
    }
}

/// Makes the command for each start of one proxy.
struct Maker {
    context: Rc<Context>,
    description: Description,
    /// Where it listens now.
    listeners: RefCell<Vec<Listener>>,
    /// Holds ports of addresses that this host got later.
    reserved: RefCell<Vec<Reserved>>,
    /// It is started again because it moves.
    moves: Cell<bool>,
    directory: PathBuf,
    user: Option<u32>,
    memory: OwnedFd,
    identity: RefCell<String>,
    /// When it last was to get a join token.
    enrolled: Cell<Option<Instant>>,
    /// Answers the sidecar that runs now, on a host that joined, and before it the one that goes on beside it.
    serving: RefCell<Vec<JoinHandle<()>>>,
    /// Whether a process goes on beside the next one.
    process: OnceCell<Rc<RefCell<state::Process>>>,
}

impl Drop for Maker {
    fn drop(&mut self) {
        for serving in self.serving.take() {
            serving.abort();
        }
    }
}
