//! One `tulle-proxy` process: its files, its first identity, its limits.
//!
//! The proxy makes its key and keeps it in a memory file that the supervisor holds open. A restarted
//! proxy so has its identity at once, even without a controller, and the key is never on a disk. The
//! memory file is the proxy's standard input: no other child inherits it.

use super::context::{CONTROLLER_TIME, Context};
use super::listening::Listening;
use super::ports::Reserved;
use super::process::{Make, SupervisedProcess};
use super::{state, user};
use crate::failure::{Failure, OrFail, Result};
use crate::http;
use crate::new_file::NewFile;
use crate::paths::make_dir;
use crate::proc::ProcessId;
use rustix::fs::MemfdFlags;
use std::cell::{Cell, OnceCell, RefCell};
use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tulle_model::bootstrap::{Bootstrap, Control, Dns, Listener};
use tulle_model::identity::SpiffeId;
use tulle_model::to_yaml;
use tulle_proxy::control::host::SidecarSocket;
use tulle_redirect::{Cgroup, LaunchSpec, ProcessLimits};

/// How long a proxy lets requests in flight end.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);
/// How long a restart waits for a controller that hangs.
const RESTART_PATIENCE: Duration = Duration::from_millis(500);
/// Between tokens for a proxy without a valid certificate.
const ENROL_PERIOD: Duration = Duration::from_secs(10);
const NO_AUTHORITY: &str = "this host has no authority over its identity: `certificates.hostAuthority` of the Mesh gives it one";
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
        let admin_socket = directory.join("admin.sock");
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
        if let Err(e) = fs::remove_dir_all(&self.directory) {
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

impl Maker {
    async fn make(&self) -> Result<tokio::process::Command> {
        let token = self.directory.join("token");
        if !self.moves.take() && !self.starts_alone()? {
            self.enrol(&token).await?;
        }
        let mut bootstrap = self.bootstrap(token)?;
        let passed = match &self.description.passes_listeners {
            Some(listening) => Some(listening.renew(&mut bootstrap)?),
            None => self.certified_by_host(&mut bootstrap)?,
        };
        let file = self.directory.join("bootstrap.yaml");
        let text = to_yaml(&bootstrap).or_fail(|| {
            format!(
                "cannot write the configuration of {}",
                self.description.name
            )
        })?;
        self.write(&file, text.as_bytes())?;
        // A socket left by a killed proxy would keep its successor from binding.
        let _ = fs::remove_file(self.directory.join("admin.sock"));
        let launch = LaunchSpec {
            namespace: self.description.namespace.clone(),
            cgroup: self.cgroup(),
            user: self.user.map(|u| (u, u)),
            ..LaunchSpec::default()
        };
        let log = self
            .context
            .paths
            .log(&format!("{}.sidecar", self.description.name));
        // A gateway is Tulle's own proxy in any data plane.
        let envoy = self.context.envoy.as_ref();
        let envoy = envoy.filter(|_| self.description.workload.is_some());
        let program = envoy.map_or(&self.context.proxy, |e| &e.agent);
        let mut command = self
            .context
            .own_command(&launch, program, &log, passed)
            .map_err(Failure::new)?;
        if let Some(programs) = envoy {
            command.arg("--envoy").arg(&programs.envoy);
        }
        let memory = self
            .memory
            .try_clone()
            .or_fail(|| "cannot pass on a memory file".to_owned())?;
        command
            .arg("--config")
            .arg(&file)
            .current_dir(&self.directory)
            .stdin(std::process::Stdio::from(memory));
        Ok(command)
    }

    /// Where the next process of a sidecar takes its listeners over. A gateway's come from the supervisor, and the agent of an Envoy has
    /// none.
    fn heir_socket(&self) -> Option<PathBuf> {
        let has_heirs = self.description.passes_listeners.is_none() && self.context.envoy.is_none();
        has_heirs.then(|| self.directory.join("heir.sock"))
    }

    /// Whether a sidecar of a host that joined starts without anybody to ask: its configuration is the one that was kept of the
    /// sidecar before it, and its certificate comes from the host's authority.
    fn starts_alone(&self) -> Result<bool> {
        let context = &self.context;
        let is_first = self.identity.borrow().is_empty();
        let (Some(certifier), Some(known)) = (&context.certifier, &context.last_known) else {
            return Ok(false);
        };
        if !is_first || !context.line.is_away() || context.envoy.is_some() {
            return Ok(false);
        }
        let name = &self.description.identity;
        let what = || format!("{name} cannot start while no controller answers");
        if certifier.generation() == 0 {
            certifier.read_again()?;
        }
        let identity = certifier
            .identity(name)
            .ok_or_else(|| Failure::new(what()).because(NO_AUTHORITY))?;
        let configuration = known.sidecar(&self.description.name);
        let configuration = configuration
            .ok_or_else(|| Failure::new(what()).because("it has not run on this host before"))?;
        self.write(&self.snapshot(), &configuration)?;
        *self.identity.borrow_mut() = identity.to_string();
        Ok(true)
    }

    /// The file with the configuration that it had last.
    fn snapshot(&self) -> PathBuf {
        self.context.paths.snapshot(&self.description.name)
    }

    /// Writes a new join token. Without a controller a proxy that had its identity before starts
    /// from memory; one that never had must wait.
    async fn enrol(&self, token: &Path) -> Result<()> {
        self.enrolled.set(Some(Instant::now()));
        let identity = format!("svc/{}", self.description.identity);
        // A restart is urgent, and most likely needs no token.
        let first = self.identity.borrow().is_empty();
        let patience = if first {
            CONTROLLER_TIME
        } else {
            RESTART_PATIENCE
        };
        match self.context.token(&identity, patience).await {
            Ok(answer) => {
                *self.identity.borrow_mut() = answer.spiffe_id;
                *self.context.ca_fingerprint.borrow_mut() = answer.ca_fingerprint;
                self.write(token, answer.token.as_bytes())
            }
            Err(failure) if first => Err(failure),
            Err(failure) => {
                tracing::warn!(
                    proxy = self.description.name,
                    "goes on from memory: {failure}"
                );
                Ok(())
            }
        }
    }

    /// Gives a token to a proxy that runs without a certificate: it expired while the controller was away,
    /// or the first token expired before it was used. The proxy looks for a token at each try.
    async fn enrol_again(&self) {
        let lately = |t: Instant| t.elapsed() < ENROL_PERIOD;
        if self.enrolled.get().is_some_and(lately) {
            return;
        }
        tracing::info!(
            proxy = self.description.name,
            "has no valid certificate and gets a token"
        );
        if let Err(failure) = self.enrol(&self.directory.join("token")).await {
            tracing::warn!(proxy = self.description.name, "{failure}");
        }
    }

    fn bootstrap(&self, token: PathBuf) -> Result<Bootstrap> {
        let identity = SpiffeId::parse(&self.identity.borrow())
            .or_fail(|| "the controller gave an identity that is none".to_owned())?;
        let (configured, limit, settings) = {
            let mesh = self.context.mesh.borrow();
            let limit = mesh.sidecar_cpu_milli().ok().flatten();
            (mesh.sidecar.workers, limit, mesh.settings())
        };
        Ok(Bootstrap {
            identity,
            certificates: None,
            control: Some(Control {
                address: self.context.controller.to_string(),
                ca_fingerprint: self.context.ca_fingerprint.borrow().clone(),
                trust_bundle: None,
                service: self.description.workload.clone(),
                // Also when it is spent: a proxy whose certificate expires looks there again.
                join_token_file: Some(token),
                service_account_token: None,
                snapshot: Some(self.snapshot()),
                identity_cache: Some(PathBuf::from("/proc/self/fd/0")),
                host_authority: None,
                // A joined host may be far from its controller. The agent of Envoy takes no signals.
                sparing: !self.context.node.is_empty() && self.context.envoy.is_none(),
            }),
            workers: configured.unwrap_or_else(|| workers(limit)),
            admin: self.description.admin,
            admin_socket: Some(self.directory.join("admin.sock")),
            metrics: self.description.metrics,
            health: None,
            application: Ipv4Addr::LOCALHOST.into(),
            probes: Vec::new(),
            application_metrics: None,
            listeners: self.listeners.borrow().clone(),
            gateway_sockets: None,
            heir_socket: self.heir_socket(),
            dns: self.description.dns.clone(),
            drain_timeout_ms: u32::try_from(DRAIN.as_millis()).unwrap_or(u32::MAX),
            mesh: settings.unwrap_or_default(),
            services: Vec::new(),
            inbound: None,
            gateways: Vec::new(),
            egress: None,
        })
    }

    /// Gives the sidecar of a joined host's workload a way to be certified while no controller answers. The
    /// socket is its own, so it is certified as this workload and no other.
    fn certified_by_host(&self, bootstrap: &mut Bootstrap) -> Result<Option<OwnedFd>> {
        let certifier = self.context.certifier.as_ref();
        // The agent of an Envoy would pass on what Envoy's peers refuse.
        let (Some(certifier), None) = (certifier, &self.context.envoy) else {
            return Ok(None);
        };
        let what = || "cannot make the socket over which a sidecar is certified".to_owned();
        let (ours, theirs) = SidecarSocket::pair().or_fail(what)?;
        let theirs = OwnedFd::from(theirs);
        if let Some(control) = &mut bootstrap.control {
            control.host_authority = Some(u16::try_from(theirs.as_raw_fd()).or_fail(what)?);
        }
        let identity = bootstrap.identity.clone();
        let serving = Rc::clone(certifier).serve(ours, identity, Rc::clone(&self.context));
        let mut all = self.serving.borrow_mut();
        // One that goes on is the first. Others have ended.
        let going_on = self.process.get();
        let going_on = going_on.is_some_and(|process| process.borrow().before.is_some());
        let kept = all.len().min(usize::from(going_on));
        all.drain(kept..).for_each(|ended| ended.abort());
        all.push(tokio::task::spawn_local(serving));
        Ok(Some(theirs))
    }

    /// Certifies the present process and no other.
    fn certify_only_last(&self) {
        let mut all = self.serving.borrow_mut();
        let before = all.len().saturating_sub(1);
        all.drain(..before).for_each(|ended| ended.abort());
    }

    /// Directories of the proxy's cgroup, as far as limits are asked for and permitted.
    fn cgroup(&self) -> Vec<PathBuf> {
        let limits = {
            // The controller stores no Mesh whose quantities cannot be read.
            let mesh = self.context.mesh.borrow();
            ProcessLimits {
                cpu_millis: mesh.sidecar_cpu_milli().ok().flatten(),
                memory_bytes: mesh.sidecar_memory_bytes().ok().flatten(),
            }
        };
        if limits.is_none() {
            return Vec::new();
        }
        match Cgroup::create(&self.context.paths.name, &self.description.name, &limits) {
            Ok(group) => group.directories().to_vec(),
            Err(e) => {
                self.context
                    .warn(format!("the limits of sidecars have no effect: {e}"));
                Vec::new()
            }
        }
    }

    fn write(&self, file: &Path, bytes: &[u8]) -> Result<()> {
        write_for(file, bytes, self.user)
    }
}

/// Writes a file for the proxy's eyes only. The directory is the proxy's own, so what lies there,
/// links above all, was perhaps put there to have root write or give away something else: the file
/// is always a new one, and given away by its descriptor.
fn write_for(file: &Path, bytes: &[u8], user: Option<u32>) -> Result<()> {
    let what = || format!("cannot write {}", file.display());
    let mut new = NewFile::create(file).or_fail(what)?;
    new.out.write_all(bytes).or_fail(what)?;
    give_fd_to(&new.out, user)?;
    new.replace().or_fail(what)
}

fn give_to(path: &Path, user: Option<u32>) -> Result<()> {
    let Some(user) = user else { return Ok(()) };
    std::os::unix::fs::chown(path, Some(user), Some(user))
        .or_fail(|| format!("cannot give {} to user {user}", path.display()))
}

fn give_fd_to(file: &impl AsFd, user: Option<u32>) -> Result<()> {
    let Some(user) = user else { return Ok(()) };
    std::os::unix::fs::fchown(file, Some(user), Some(user))
        .or_fail(|| format!("cannot give a file to user {user}"))
}

/// One worker up to one core, then one for each begun core. 0 lets the proxy decide.
fn workers(limit: Option<u32>) -> u16 {
    limit.map_or(0, |millis| {
        u16::try_from(millis.div_ceil(1000).max(1)).unwrap_or(u16::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_writes_through_no_link_that_the_proxy_left() {
        use std::os::unix::fs::{MetadataExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let file = dir.path().join("token");
        symlink(&victim, dir.path().join("token.new")).unwrap();
        let own = rustix::process::geteuid().as_raw();
        let user = (own == 0).then_some(61_200);
        write_for(&file, b"secret", user).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(fs::metadata(&victim).unwrap().uid(), own);
        let written = fs::symlink_metadata(&file).unwrap();
        assert!(written.is_file() && written.mode() & 0o777 == 0o600);
        assert_eq!(written.uid(), user.unwrap_or(own));
        assert_eq!(fs::read(&file).unwrap(), b"secret");
    }

    #[test]
    fn workers_follow_the_cpu_limit() {
        assert_eq!(workers(None), 0);
        assert_eq!(workers(Some(200)), 1);
        assert_eq!(workers(Some(1000)), 1);
        assert_eq!(workers(Some(1001)), 2);
    }
}
