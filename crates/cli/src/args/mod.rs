//! The command line. What a command does is in the module of its name.

mod at;
pub(crate) mod cluster;
pub(crate) mod service;

use crate::data_plane::DataPlane;
use crate::examples;
use crate::port_range::PortRange;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The trust domain of a mesh that names none.
const DEFAULT_TRUST_DOMAIN: &str = "tulle.local";

/// Tulle: a light service mesh.
#[derive(Debug, Parser)]
#[command(
    name = "tulle",
    version,
    about,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = examples::ALL
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(flatten)]
    pub(crate) cluster: cluster::Which,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that select the mesh.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Global {
    /// Use another mesh, with its durable files in this directory
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "TULLE_STATE",
        hide_env_values = true,
        help_heading = "Which mesh",
        display_order = 1000
    )]
    pub(crate) state: Option<PathBuf>,
    /// Use another mesh, of this name
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "TULLE_NAME",
        hide_env_values = true,
        help_heading = "Which mesh",
        display_order = 1000
    )]
    pub(crate) name: Option<String>,
}

/// The commands of `tulle`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a mesh on this host: controller, workloads, sidecars, gateways
    #[command(after_help = examples::UP)]
    Up(Up),
    /// Stop the mesh and remove everything it made, even after a crash
    #[command(after_help = examples::DOWN)]
    Down(Down),
    /// Show services, proxies, and who talks to whom
    #[command(after_help = examples::STATUS)]
    Status(Status),
    /// Store manifests and apply them to the mesh at once
    #[command(after_help = examples::APPLY)]
    Apply(Apply),
    /// Show stored objects
    #[command(after_help = examples::GET)]
    Get(Get),
    /// Remove stored objects
    #[command(after_help = examples::DELETE)]
    Delete(Delete),
    /// Restart workloads or gateways in order
    #[command(after_help = examples::RESTART)]
    Restart(Restart),
    /// Start the mesh of this host at boot, by systemd or OpenRC
    #[command(subcommand)]
    Service(service::Service),
    /// Manage certificates and keys for gateway listeners
    #[command(subcommand)]
    Secret(Secret),
    /// Find present and coming problems, with cause and fix
    #[command(after_help = examples::CHECK)]
    Check(Check),
    /// Explain why a service may or may not call another, and show the last failure
    #[command(after_help = examples::WHY)]
    Why(Why),
    /// Prove statements about who may call whom, or show a call that contradicts them
    #[command(after_help = examples::PROVE)]
    Prove(Prove),
    /// Print the smallest policies that allow what is seen for a while
    #[command(after_help = examples::LEARN)]
    Learn(Learn),
    /// Translate another mesh's objects into Tulle's, and name what is lost
    #[command(after_help = examples::IMPORT)]
    Import(Import),
    /// Try plugins in JavaScript
    #[command(subcommand)]
    Plugin(Plugin),
    /// Run a command as a workload's application would: through its sidecar
    #[command(after_help = examples::EXEC)]
    Exec(Exec),
    /// Print the output of a workload or its sidecar
    #[command(after_help = examples::LOGS)]
    Logs(Logs),
    /// Run workloads of a mesh whose controller is on another host
    #[command(after_help = examples::JOIN)]
    Join(Join),
    /// Manage the one-time tokens with which hosts join
    #[command(subcommand)]
    Token(Token),
    /// Show the certificate authority or replace its root
    #[command(subcommand)]
    Ca(Ca),
    /// Revoke identities and certificates, and show which are revoked
    #[command(subcommand)]
    Identity(Identity),
    /// Print the Kubernetes objects of Tulle, for `kubectl apply -f -`, or apply them
    #[command(after_help = examples::INSTALL)]
    Install(Install),
    /// Remove the mesh from a cluster
    #[command(after_help = examples::UNINSTALL)]
    Uninstall(cluster::Uninstall),
    /// Print or apply the Kubernetes objects of this version, with the settings of the installed mesh
    #[command(after_help = examples::UPGRADE)]
    Upgrade(cluster::Upgrade),
    /// Add sidecars to the pods of manifests, or the label that asks for them, and print the
    /// manifests
    #[command(after_help = examples::INJECT)]
    Inject(cluster::Inject),
    /// Choose which namespaces of a cluster get sidecars
    #[command(subcommand)]
    Namespace(cluster::Namespace),
    /// Show configuration, certificates and errors of proxies
    #[command(subcommand)]
    Proxy(cluster::Proxy),
    /// Show success rates, requests a second and latencies of workloads
    #[command(after_help = examples::STAT)]
    Stat(cluster::Stat),
    /// Make namespaces of a cluster strict, and show which traffic that would refuse
    #[command(after_help = examples::HARDEN)]
    Harden(cluster::Harden),
    /// Show who talks to whom, with which identity
    #[command(after_help = examples::EDGES)]
    Edges(cluster::Edges),
    /// Show requests of a workload as they complete
    #[command(after_help = examples::TAP)]
    Tap(cluster::Tap),
    /// Count requests of a workload by path as they complete
    #[command(after_help = examples::TOP)]
    Top(cluster::Tap),
    /// Open the mesh's own dashboard, or forward a local port to another one in the cluster
    #[command(after_help = examples::DASHBOARD)]
    Dashboard(cluster::Dashboard),
    /// Print the metrics of all proxies on one page, or choose which namespaces of a cluster Prometheus scrapes
    #[command(after_help = examples::METRICS)]
    Metrics(cluster::Metrics),
    /// Collect diagnostics of a mesh
    #[command(subcommand)]
    Support(cluster::Support),
    /// Print the versions of this command and of the controller
    Version(Version),
    /// Open the documentation that is on this host, in English or Chinese
    #[command(after_help = examples::DOCS)]
    Docs(Docs),
    /// Measure the data plane beside its peers
    #[command(disable_help_flag = true)]
    Bench {
        /// A study and its options; `tulle bench --help` lists them
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGUMENTS"
        )]
        words: Vec<std::ffi::OsString>,
    },
    /// Print completions for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// Shell to complete in
        shell: Shell,
    },
}

/// `tulle docs`
#[derive(Debug, Clone, Args)]
pub(crate) struct Docs {
    /// Page, by its name, such as reasons or features/access (default: the first one)
    pub(crate) page: Option<String>,
    /// Language (default: Chinese if LANG says so, else English)
    #[arg(long)]
    pub(crate) language: Option<Language>,
    /// Print nothing but the URL, and open no browser
    #[arg(long)]
    pub(crate) print_url: bool,
}

/// Languages of the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Language {
    En,
    Zh,
}

/// Shells of Linux; every other one would be in the program, too.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Fish,
    Zsh,
}

/// Commands that the supervisor, Helm and pods start. They are not part of [`Cli`], so help and completions
/// leave them out.
#[derive(Debug, Parser)]
#[command(name = "tulle")]
pub(crate) enum Internal {
    /// The supervisor of `tulle up --detach`
    Supervisor {
        #[command(flatten)]
        global: Global,
        #[command(flatten)]
        up: Up,
    },
    /// The controller
    Controller(ControllerArgs),
    /// The controller of a cluster, in its pod
    ClusterController {
        /// Its settings, as JSON
        #[arg(long)]
        settings: PathBuf,
    },
    /// Removes the CNI plugin from the nodes, and then its DaemonSet, in a pod that Helm starts
    RemoveCni {
        /// Where the controllers are that have to be updated first
        #[arg(long)]
        once_updated: Option<String>,
    },
    /// Removes the objects that the controller has made, in a pod that Helm starts
    AfterHelm {
        /// Where the controller was
        #[arg(long)]
        namespace: String,
    },
    /// Makes the redirection rules of a pod, as its init container
    Redirect(RedirectArgs),
    /// Connects standard input and output to the controller's socket, in the controller's pod
    ControlStream,
    /// Becomes the agent of an Envoy: a supervisor of the version before starts it so
    EnvoyAgent {
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Clears up after a mesh whose supervisor and janitor are gone, as an init system's last step
    ClearUp {
        #[command(flatten)]
        global: Global,
    },
    /// Clears up after the supervisor, however it ended
    Janitor {
        /// Name of the mesh
        mesh: String,
        /// Its durable files
        durable: PathBuf,
        /// Its other files
        run: PathBuf,
    },
}

impl Internal {
    /// Whether this is the first word of such a command line.
    pub(crate) fn begins_with(word: &std::ffi::OsStr) -> bool {
        use clap::CommandFactory;
        Self::command()
            .get_subcommands()
            .any(|c| word == c.get_name())
    }
}

/// Which sidecars workloads have.
#[derive(Debug, Clone, Args)]
pub(crate) struct Sidecars {
    /// Sidecars of the workloads: `tulle` (Tulle's own), `envoy`, or, on a mesh's first host,
    /// `none`
    #[arg(
        long,
        value_name = "WHICH",
        value_enum,
        default_value = "tulle",
        hide_possible_values = true
    )]
    pub(crate) data_plane: DataPlane,
    /// Envoy program for `--data-plane envoy` (default: `envoy` on the PATH)
    #[arg(long, value_name = "PATH", env = "TULLE_ENVOY", hide_env_values = true)]
    pub(crate) envoy: Option<PathBuf>,
}

impl Sidecars {
    /// Returns the words of a command line that mean the same.
    fn words(&self) -> Vec<OsString> {
        let which = self.data_plane.to_possible_value();
        let which = which.filter(|_| self.data_plane != DataPlane::default());
        let which = which.map(|w| ["--data-plane".into(), w.get_name().into()]);
        let envoy = self.envoy.as_ref();
        let envoy = envoy.map(|e| ["--envoy".into(), e.clone().into()]);
        which.into_iter().chain(envoy).flatten().collect()
    }
}

/// Options that say how a mesh runs on this host.
#[derive(Debug, Clone, Args)]
pub(crate) struct MeshOptions {
    /// Use loopback listeners for declared upstreams instead of network namespaces (the only way
    /// without root)
    #[arg(long)]
    pub(crate) loopback: bool,
    #[command(flatten)]
    pub(crate) sidecars: Sidecars,
    /// Address where the controller listens (default: port 15010 of the mesh's bridge or of
    /// 127.0.0.1)
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// Address at which other hosts of the mesh reach this one, with --loopback
    #[arg(long, value_name = "IP", requires = "loopback")]
    pub(crate) advertise: Option<IpAddr>,
    /// With --loopback: ports at which other hosts of the mesh reach this one's Workloads (default:
    /// any free ones)
    #[arg(long, value_name = "FIRST-LAST", requires = "loopback")]
    pub(crate) inbound_ports: Option<PortRange>,
    /// Loopback address of the console, or `off` (default: 127.0.0.1:15012, or a free port if that is
    /// taken)
    #[arg(long, value_name = "ADDRESS|off", value_parser = console)]
    pub(crate) console: Option<ConsoleChoice>,
    /// Allow the console to change the mesh, not only to show it
    #[arg(long)]
    pub(crate) console_actions: bool,
}

impl MeshOptions {
    /// Returns the words of a command line that mean the same.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = self.sidecars.words();
        let mut add = |option: &str, value: Option<OsString>| {
            if let Some(value) = value {
                words.extend([option.into(), value]);
            }
        };
        let text = |value: Option<String>| value.map(OsString::from);
        add("--listen", text(self.listen.map(|a| a.to_string())));
        add("--advertise", text(self.advertise.map(|a| a.to_string())));
        add(
            "--inbound-ports",
            text(self.inbound_ports.map(|p| p.to_string())),
        );
        add("--console", text(self.console.map(|c| c.to_string())));
        for (option, given) in [
            ("--loopback", self.loopback),
            ("--console-actions", self.console_actions),
        ] {
            if given {
                words.push(option.into());
            }
        }
        words
    }
}

/// `tulle up`
#[derive(Debug, Clone, Args)]
pub(crate) struct Up {
    /// Manifests to start (default: the objects stored before)
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Return when every service answers, and keep the mesh running
    #[arg(long, short)]
    pub(crate) detach: bool,
    /// Stop by itself after this long, such as 30s or 5m
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) run_for: Option<Duration>,
    #[command(flatten)]
    pub(crate) options: MeshOptions,
    /// Send a request through each gateway's routes and show who talked to whom, and how
    #[arg(long)]
    pub(crate) verify: bool,
    /// Keep stored objects that are not in FILES
    #[arg(long)]
    pub(crate) keep: bool,
    /// Time until every service must answer
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "120s")]
    pub(crate) timeout: Duration,
    /// Run as a service of the machine does: log to standard error, and let stored objects stay while
    /// FILES are unchanged
    #[arg(long, requires = "files", conflicts_with_all = ["detach", "verify", "keep"])]
    pub(crate) service: bool,
    /// With --service: log to this file instead, and to FILE.1 what was before
    #[arg(long, value_name = "FILE", requires = "service")]
    pub(crate) log_file: Option<PathBuf>,
    /// This process is the detached supervisor
    #[arg(skip)]
    pub(crate) detached: bool,
}

/// `tulle down`
#[derive(Debug, Clone, Args)]
pub(crate) struct Down {
    /// Time that requests in flight have to complete before everything is killed
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
    /// Also remove the durable files: CA and stored objects
    #[arg(long)]
    pub(crate) purge: bool,
}

/// How to print. The variants have no doc comments: those would make every help longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
}

/// `-o`
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Output {
    /// Output format; `wide` is a table with every column
    #[arg(
        short,
        long = "output",
        value_name = "FORMAT",
        value_enum,
        default_value = "table"
    )]
    pub(crate) output: Format,
}

/// `tulle status`
#[derive(Debug, Clone, Args)]
pub(crate) struct Status {
    /// Show only these services, workloads or gateways and their traffic (default: all)
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Show only problems: not ready, restarted, refused, denied, failed, plaintext
    #[arg(long)]
    pub(crate) problems: bool,
    #[command(flatten)]
    pub(crate) format: Output,
    /// Repeat every second until Ctrl-C
    #[arg(long, short)]
    pub(crate) watch: bool,
}

/// Manifests, named or by `-f`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Files {
    /// Manifests; `-` is standard input
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// A manifest (may be repeated)
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub(crate) filename: Vec<PathBuf>,
}

impl Files {
    /// Both ways of naming them.
    pub(crate) fn all(&self) -> Vec<PathBuf> {
        self.files.iter().chain(&self.filename).cloned().collect()
    }
}

/// `tulle apply`
#[derive(Debug, Clone, Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    pub(crate) files: Files,
    /// Change nothing; print findings, with exit code 79 if there are any
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Output format for the findings of `--dry-run`
    #[arg(
        short,
        long = "output",
        value_name = "FORMAT",
        value_enum,
        default_value = "table",
        requires = "dry_run"
    )]
    pub(crate) output: Format,
}

/// `tulle get`
#[derive(Debug, Clone, Args)]
pub(crate) struct Get {
    /// Kind, such as workload (default: all)
    pub(crate) kind: Option<String>,
    /// Name (default: all of the kind)
    #[arg(value_name = "NAME")]
    pub(crate) object: Option<String>,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle delete`
#[derive(Debug, Clone, Args)]
pub(crate) struct Delete {
    /// Kind, such as workload
    #[arg(required_unless_present = "filename")]
    pub(crate) kind: Option<String>,
    /// Names
    #[arg(value_name = "NAME")]
    pub(crate) objects: Vec<String>,
    /// Remove the objects in this manifest (may be repeated)
    #[arg(
        short = 'f',
        long = "filename",
        value_name = "FILE",
        conflicts_with = "kind"
    )]
    pub(crate) filename: Vec<PathBuf>,
}

/// `tulle restart`
#[derive(Debug, Clone, Args)]
pub(crate) struct Restart {
    /// Workloads, gateways, or services with all their workloads, one after another
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Time until each must answer again
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "120s")]
    pub(crate) timeout: Duration,
}

/// `tulle secret`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Secret {
    /// Store a certificate and its key as a Secret for listeners
    #[command(after_help = examples::SECRET)]
    Tls {
        /// Name of the Secret, as `certificateRefs` of a listener has it
        #[arg(value_name = "NAME")]
        secret: String,
        /// File with the certificates in PEM, the server's own first
        #[arg(long, value_name = "FILE")]
        cert: PathBuf,
        /// File with the private key in PEM, not encrypted
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Print the manifest, with the key in it, and store nothing
        #[arg(short, long, value_name = "FORMAT", value_enum)]
        output: Option<ObjectFormat>,
    },
}

/// `tulle check`
#[derive(Debug, Clone, Args)]
pub(crate) struct Check {
    /// Check before installation whether a cluster can have a mesh
    #[arg(long, conflicts_with_all = ["proxy", "fix"])]
    pub(crate) pre: bool,
    /// Check only the sidecars of a cluster and their pods
    #[arg(long, conflicts_with = "fix")]
    pub(crate) proxy: bool,
    /// Fix what can be fixed safely: nothing that serves traffic is touched
    #[arg(long)]
    pub(crate) fix: bool,
    /// With --fix: change nothing, and show what would be fixed
    #[arg(long, requires = "fix")]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) within: cluster::Within,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle why`
#[derive(Debug, Clone, Args)]
pub(crate) struct Why {
    /// Calling service or gateway
    pub(crate) from: String,
    /// Called service, or host outside the mesh
    pub(crate) to: String,
    /// Method and path of the request, or one of them (default: GET /)
    #[arg(value_name = "METHOD PATH", num_args = 0..=2)]
    request: Vec<String>,
    /// Method of the request
    #[arg(long = "method", value_name = "METHOD")]
    method: Option<String>,
    /// Port of the called service (default: its first)
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
    /// Judge by the objects of then: a time of the day in UTC (14:02), or how long ago (5m)
    #[arg(long, value_name = "TIME", value_parser = at::parse)]
    pub(crate) at: Option<i64>,
    #[command(flatten)]
    pub(crate) within: cluster::Within,
    #[command(flatten)]
    pub(crate) format: Output,
}

impl Why {
    /// The method asked about: what is no path, or `--method`.
    pub(crate) fn method(&self) -> &str {
        let word = self.request.iter().find(|word| !word.starts_with('/'));
        self.method.as_ref().or(word).map_or("GET", String::as_str)
    }

    /// The path asked about; empty: `/`.
    pub(crate) fn path(&self) -> &str {
        let mut words = self.request.iter();
        words
            .find(|word| word.starts_with('/'))
            .map_or("", String::as_str)
    }

    #[cfg(test)]
    pub(crate) fn new(from: &str, to: &str, request: &[&str]) -> Self {
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            request: request.iter().map(ToString::to_string).collect(),
            method: None,
            port: 0,
            at: None,
            within: cluster::Within::default(),
            format: Output {
                output: Format::Table,
            },
        }
    }
}

/// `tulle prove`
#[derive(Debug, Clone, Args)]
pub(crate) struct Prove {
    /// Statements, each one word to the shell
    #[arg(value_name = "STATEMENT")]
    pub(crate) statements: Vec<String>,
    /// File with statements, one a line; `#` begins a comment
    #[arg(long = "from", value_name = "FILE")]
    pub(crate) from: Vec<PathBuf>,
    /// Prove them of the mesh that these manifests would make, not of the one that is up
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle learn`
#[derive(Debug, Clone, Args)]
pub(crate) struct Learn {
    /// Watch for this long
    #[arg(long = "for", value_name = "TIME", value_parser = duration, default_value = "1m")]
    pub(crate) run_for: Duration,
    /// Print policies that only count and log what they would allow
    #[arg(long, conflicts_with = "diff")]
    pub(crate) audit: bool,
    /// Show what policies allow and nobody used, instead of policies
    #[arg(long)]
    pub(crate) diff: bool,
    #[command(flatten)]
    pub(crate) within: cluster::Within,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle import`
#[derive(Debug, Clone, Args)]
pub(crate) struct Import {
    /// Mesh that the objects are of
    #[arg(value_name = "MESH")]
    pub(crate) mesh: OtherMesh,
    /// Files of YAML or JSON, as `kubectl get -o yaml` prints them; `-` is standard input
    #[arg(
        required_unless_present = "cluster",
        conflicts_with = "cluster",
        value_name = "FILE"
    )]
    pub(crate) files: Vec<PathBuf>,
    /// Read the objects that a cluster has, and change nothing there
    #[arg(long)]
    pub(crate) cluster: bool,
    /// Read only this namespace of the cluster
    #[arg(
        long,
        short,
        value_name = "NAME",
        requires = "cluster",
        conflicts_with = "files"
    )]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// Meshes whose objects `tulle import` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OtherMesh {
    /// Open Service Mesh
    Osm,
    /// osm-edge and FSM, which have OSM's kinds and some more
    Fsm,
    /// Istio
    Istio,
    /// Linkerd
    Linkerd,
}

/// `tulle plugin`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Plugin {
    /// Run a plugin on one request, without a mesh, and show what it does
    #[command(after_help = examples::PLUGIN_TEST)]
    Test(PluginTrial),
    /// Run a plugin on one request again and again, and show what one run takes
    #[command(after_help = examples::PLUGIN_BENCH)]
    Bench(PluginBench),
}

/// `tulle plugin bench`
#[derive(Debug, Clone, Args)]
pub(crate) struct PluginBench {
    #[command(flatten)]
    pub(crate) trial: PluginTrial,
    /// Number of runs, after a first one
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub(crate) times: u32,
}

/// `tulle plugin test`
#[derive(Debug, Clone, Args)]
pub(crate) struct PluginTrial {
    /// A manifest with a Plugin, or its module alone (.js)
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Choose one of several Plugins of the manifest
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Configuration of a module, as JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) config: Option<String>,
    /// Method of the request
    #[arg(short = 'X', long, default_value = "GET")]
    pub(crate) method: String,
    /// Path of the request, with its query
    #[arg(long, default_value = "/")]
    pub(crate) path: String,
    /// Header of the request
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,
    /// Body of the request
    #[arg(short = 'd', long, value_name = "TEXT")]
    pub(crate) body: Option<String>,
    /// SPIFFE id of the caller
    #[arg(long, value_name = "ID", default_value = "")]
    pub(crate) source: String,
    /// Backend of the route's rule, for a plugin that chooses one
    #[arg(long, value_name = "SERVICE:PORT")]
    pub(crate) backend: Vec<String>,
    /// Answer of a service to `mesh.fetch`
    #[arg(long, value_name = "TARGET=BODY")]
    pub(crate) fetch: Vec<String>,
    /// Status of the application's response
    #[arg(long, default_value_t = 200)]
    pub(crate) status: u16,
    /// Header of the application's response
    #[arg(long, value_name = "NAME: VALUE")]
    pub(crate) response_header: Vec<String>,
    /// Body of the application's response
    #[arg(long, value_name = "TEXT")]
    pub(crate) response_body: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `tulle exec`
#[derive(Debug, Clone, Args)]
pub(crate) struct Exec {
    /// Workload whose application to imitate
    pub(crate) workload: String,
    /// Program to run, and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// `tulle logs`
#[derive(Debug, Clone, Args)]
pub(crate) struct Logs {
    /// Workload or gateway to read, or `controller` or `supervisor`
    #[arg(value_name = "NAME")]
    pub(crate) workload: String,
    /// Print the sidecar's output
    #[arg(long)]
    pub(crate) sidecar: bool,
    /// Wait for more output
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print only this many last lines
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<usize>,
}

/// How a host joins the mesh of another.
#[derive(Debug, Clone, Args)]
pub(crate) struct JoinOptions {
    /// Address of the controller
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) controller: String,
    /// One-time token, for the first time only: a host keeps its identity. As an argument other users of
    /// this host can read it until it is spent
    #[arg(long, env = "TULLE_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// File with the token; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
    /// Fingerprint of the mesh's CA, printed with the token
    #[arg(long, value_name = "SHA256")]
    pub(crate) ca_fingerprint: String,
    /// Trust domain of the mesh
    #[arg(long, value_name = "DOMAIN", default_value = DEFAULT_TRUST_DOMAIN)]
    pub(crate) trust_domain: String,
    #[command(flatten)]
    pub(crate) sidecars: Sidecars,
    /// Address of this host that other hosts reach (default: the one used to reach the controller)
    #[arg(long, value_name = "IP")]
    pub(crate) advertise: Option<IpAddr>,
    /// Ports at which other hosts reach the Workloads of this one (default: any free ones)
    #[arg(long, value_name = "FIRST-LAST")]
    pub(crate) inbound_ports: Option<PortRange>,
}

impl JoinOptions {
    /// Returns the words of a command line that mean the same. The token is none of them: others can read those.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["--controller".into(), self.controller.clone().into()];
        words.extend([
            "--ca-fingerprint".into(),
            self.ca_fingerprint.clone().into(),
        ]);
        if self.trust_domain != DEFAULT_TRUST_DOMAIN {
            words.extend(["--trust-domain".into(), self.trust_domain.clone().into()]);
        }
        words.extend(self.sidecars.words());
        let advertise = self.advertise.map(|a| ("--advertise", a.to_string()));
        let ports = self
            .inbound_ports
            .map(|p| ("--inbound-ports", p.to_string()));
        for (option, value) in advertise.into_iter().chain(ports) {
            words.extend([option.into(), value.into()]);
        }
        words
    }
}

/// `tulle join`
#[derive(Debug, Clone, Args)]
pub(crate) struct Join {
    /// Manifests of the workloads to run here
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) options: JoinOptions,
    /// Leave the Workloads of this host in the mesh when it ends, as a machine does that is shut down: the next start needs no
    /// controller
    #[arg(long)]
    pub(crate) stay: bool,
    /// Stop by itself after this long, such as 30s or 5m
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) run_for: Option<Duration>,
    /// Run as a service of the machine does: log to standard error, stay in the mesh at the end, and let a mistake in
    /// FILES keep nothing from starting that ran before
    #[arg(long)]
    pub(crate) service: bool,
    /// With --service: log to this file instead, and to FILE.1 what was before
    #[arg(long, value_name = "FILE", requires = "service")]
    pub(crate) log_file: Option<PathBuf>,
}

/// `tulle token`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Token {
    /// Make a token for one identity, such as node/edge-2
    #[command(after_help = examples::TOKEN)]
    Create {
        /// `node/NAME` for a host, `svc/NAME` for a proxy that is started by hand
        identity: String,
        /// Lifetime of the token; at least 1s
        #[arg(long, value_name = "TIME", value_parser = whole_seconds, default_value = "1h")]
        ttl: Duration,
        #[command(flatten)]
        format: Output,
    },
}

/// `tulle ca`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Ca {
    /// Show the trusted roots and the progress of a rotation
    #[command(after_help = examples::CA)]
    Show {
        #[command(flatten)]
        format: Output,
    },
    /// Replace the root without restarts and without lost requests
    #[command(after_help = examples::CA)]
    Rotate {
        /// Minimum time of each step (default: 10s; 2m on Kubernetes)
        #[arg(long, value_name = "TIME", value_parser = duration)]
        hold: Option<Duration>,
        /// Return when the rotation has begun
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        format: Output,
    },
}

/// `tulle identity`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Identity {
    /// Revoke an identity, one certificate or all certificates of a revocation list, at once and
    /// everywhere
    #[command(after_help = examples::IDENTITY)]
    Revoke {
        #[command(flatten)]
        what: Revoked,
        /// Certificate revocation list (PEM) from the issuer of workloads' certificates
        #[arg(long, value_name = "FILE", group = "what")]
        crl: Option<PathBuf>,
        /// Reason to show in the list
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        #[command(flatten)]
        format: Output,
    },
    /// Accept a revoked identity or certificate again
    #[command(after_help = examples::IDENTITY)]
    Allow {
        #[command(flatten)]
        what: Revoked,
        /// Issuer of a revocation list, as `tulle identity list` prints it
        #[arg(long, value_name = "HEX", group = "what")]
        issuer: Option<String>,
        #[command(flatten)]
        format: Output,
    },
    /// Show revoked identities and certificates
    #[command(after_help = examples::IDENTITY)]
    List {
        #[command(flatten)]
        format: Output,
    },
}

/// An identity or a certificate.
#[derive(Debug, Clone, Args)]
#[group(id = "what", required = true, multiple = false)]
pub(crate) struct Revoked {
    /// `svc/NAME`, `node/NAME`, `ns/NAMESPACE/sa/NAME`, or a whole SPIFFE id
    pub(crate) identity: Option<String>,
    /// The serial number of one certificate, in hex
    #[arg(long, value_name = "HEX")]
    pub(crate) serial: Option<String>,
}

/// `tulle version`
#[derive(Debug, Clone, Args)]
pub(crate) struct Version {
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle controller`
#[derive(Debug, Clone, Args)]
pub(crate) struct ControllerArgs {
    /// Directory of the CA and the stored objects
    #[arg(long = "dir", value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Address that sidecars connect to
    #[arg(long)]
    pub(crate) listen: SocketAddr,
    /// Unix socket for commands
    #[arg(long)]
    pub(crate) socket: PathBuf,
    /// Loopback address of the console (default: none)
    #[arg(long)]
    pub(crate) console: Option<SocketAddr>,
    /// Allow the console to change the mesh
    #[arg(long, requires = "console")]
    pub(crate) console_actions: bool,
}

/// Output formats for objects of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ObjectFormat {
    /// Documents of YAML
    Yaml,
    /// A `List` of JSON
    Json,
}

/// Arguments of `tulle install`.
#[derive(Debug, Args)]
pub(crate) struct Install {
    /// Namespace of the controller
    #[arg(long, value_name = "NAME", default_value = "tulle-system")]
    pub(crate) namespace: String,
    #[command(flatten)]
    pub(crate) chosen: cluster::Chosen,
    #[command(flatten)]
    pub(crate) images: cluster::Images,
    /// Initial settings of the mesh (default: permissive, or the settings of the installed mesh)
    #[arg(long, value_enum)]
    pub(crate) profile: Option<cluster::Profile>,
    /// Trust domain of all identities; cannot change later (default: cluster.local)
    #[arg(long, value_name = "NAME")]
    pub(crate) trust_domain: Option<String>,
    /// Number of controllers (default: 1)
    #[arg(long, value_name = "COUNT")]
    pub(crate) replicas: Option<u32>,
    /// Run sidecars as ordinary containers, for clusters before 1.29
    #[arg(long)]
    pub(crate) no_native_sidecar: bool,
    /// Redirect pods by a CNI plugin on each node, without a container that has NET_ADMIN in each
    /// pod
    #[arg(long)]
    pub(crate) cni: bool,
    /// Directory of the CNI configurations on nodes (default: /etc/cni/net.d)
    #[arg(long, value_name = "DIRECTORY", requires = "cni")]
    pub(crate) cni_configurations: Option<String>,
    /// Directory of the CNI plugins on nodes (default: /opt/cni/bin)
    #[arg(long, value_name = "DIRECTORY", requires = "cni")]
    pub(crate) cni_programs: Option<String>,
    /// Namespaces where Gateways may run, in addition to the controller's own
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) gateway_namespaces: Vec<String>,
    /// Print only the CustomResourceDefinitions of Tulle and SMI
    #[arg(long, conflicts_with = "skip_crds")]
    pub(crate) crds_only: bool,
    /// Leave out the CustomResourceDefinitions, for a cluster that has them
    #[arg(long)]
    pub(crate) skip_crds: bool,
    #[command(flatten)]
    pub(crate) applying: cluster::Applying,
    #[command(flatten)]
    pub(crate) issuer: IssuerArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = ObjectFormat::Yaml, conflicts_with = "apply")]
    pub(crate) output: ObjectFormat,
}

/// Arguments that choose the issuer of workloads' certificates.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Who signs certificates of workloads (default: a root of the mesh's own)"
)]
pub(crate) struct IssuerArgs {
    /// Let this cert-manager issuer sign; write an issuer of another API group as KIND.GROUP/NAME
    #[arg(long, value_name = "KIND/NAME", conflicts_with = "vault")]
    pub(crate) cert_manager: Option<String>,
    /// Let Vault or OpenBao at this address sign; --issuer-ca names the authority of its server
    #[arg(long, value_name = "URL", requires = "issuer_ca")]
    pub(crate) vault: Option<String>,
    /// PKI engine of Vault and the role that signs (default: pki/tulle)
    #[arg(long, value_name = "MOUNT/ROLE", requires = "vault")]
    pub(crate) vault_sign: Option<String>,
    /// Kubernetes authentication of Vault and the controller's role there (default:
    /// kubernetes/tulle)
    #[arg(long, value_name = "MOUNT/ROLE", requires = "vault")]
    pub(crate) vault_auth: Option<String>,
    /// ConfigMap with `ca.crt` in the controller's namespace: for Vault the authority of its
    /// server, for cert-manager the roots if the issuer does not report them
    #[arg(long, value_name = "CONFIGMAP")]
    pub(crate) issuer_ca: Option<String>,
}

/// Arguments of `tulle redirect`.
#[derive(Debug, Args)]
pub(crate) struct RedirectArgs {
    /// The kernel's packet filter; auto: nft, or else iptables
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) backend: RedirectBackend,
    /// Ports of the pod that clients reach directly
    #[arg(long, value_delimiter = ',')]
    pub(crate) exclude_inbound_ports: Vec<u16>,
    /// Ports that the application reaches directly
    #[arg(long, value_delimiter = ',')]
    pub(crate) exclude_outbound_ports: Vec<u16>,
    /// Networks that the application reaches directly
    #[arg(long, value_delimiter = ',')]
    pub(crate) exclude_outbound_ranges: Vec<String>,
    /// The only networks that are reached through the sidecar
    #[arg(long, value_delimiter = ',')]
    pub(crate) include_outbound_ranges: Vec<String>,
    /// Redirect the application's DNS to the sidecar
    #[arg(long)]
    pub(crate) dns: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum RedirectBackend {
    Auto,
    Nft,
    Iptables,
}

/// Where the console answers, if the operator says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConsoleChoice {
    /// Nowhere.
    Off,
    /// At this loopback address.
    At(SocketAddr),
}

impl fmt::Display for ConsoleChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// Parses an address of the console. It speaks no TLS, so nobody but this host may reach it.
fn console(text: &str) -> Result<ConsoleChoice, String> {
    if text == "off" {
        return Ok(ConsoleChoice::Off);
    }
    let address: SocketAddr = text.parse().map_err(|_| {
        "expected off, or an address with a port such as 127.0.0.1:15012".to_owned()
    })?;
    match address.ip().is_loopback() {
        true => Ok(ConsoleChoice::At(address)),
        false => Err(
            "the console answers on a loopback address only; reach it from elsewhere with `ssh -L 15012:127.0.0.1:15012`"
                .into(),
        ),
    }
}

/// Parses `500ms`, `30s`, `5m`, `2h`, `1d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| "expected a number with ms, s, m, h or d, such as 30s".to_owned())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("expected ms, s, m, h or d after the number, such as 30s".into()),
    };
    number
        .checked_mul(millis)
        .map(Duration::from_millis)
        .ok_or_else(|| "too long".into())
}

/// Parses a duration of at least a second.
fn whole_seconds(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time < Duration::from_secs(1) => Err("it must be at least 1s".into()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for text in [
            "",
            "s",
            "30",
            "-1s",
            "1.5s",
            "99999999999999999999s",
            "300000000000000d",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_console_is_off_or_on_loopback() {
        assert_eq!(console("off"), Ok(ConsoleChoice::Off));
        for text in ["127.0.0.1:15012", "[::1]:0"] {
            assert_eq!(console(text).unwrap().to_string(), text);
        }
        for text in ["", "on", "15012", "0.0.0.0:15012", "192.0.2.1:1", "[::]:1"] {
            assert!(console(text).is_err(), "{text}");
        }
    }

    #[test]
    fn up_takes_files_and_global_options_after_it() {
        let cli = Cli::try_parse_from(["tulle", "up", "a.yaml", "--state", "/x", "--for", "3s"]);
        let cli = cli.unwrap();
        assert_eq!(cli.global.state, Some("/x".into()));
        let Command::Up(up) = cli.command else {
            panic!("not up")
        };
        assert_eq!(up.files, [PathBuf::from("a.yaml")]);
        assert_eq!(up.run_for, Some(Duration::from_secs(3)));
    }
}
