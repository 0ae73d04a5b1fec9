//! Installation in a cluster: `tulle install`, `upgrade` and `uninstall`.

use super::duration::duration;
use super::output::{ObjectFormat, Output};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Values that the user chooses at installation.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Chosen {
    /// File with values as for the Helm chart; a later file wins, and `-` is standard input
    #[arg(long, short = 'f', value_name = "FILE")]
    pub(crate) values: Vec<PathBuf>,
    /// One value, such as controller.replicas=2; wins over files and other options
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// The initial settings of a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// Callers without a sidecar are let in, and workloads reach what is outside the mesh
    Permissive,
    /// Callers without a sidecar are refused, and destinations outside the mesh need an Egress
    Strict,
}

/// Options that select the images.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Images {
    /// Registry of the images (default: localhost; for an upgrade that of the installed mesh)
    #[arg(long, value_name = "HOST/PATH")]
    pub(crate) registry: Option<String>,
    /// Tag of the images (default: this version)
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
}

/// Options that apply the objects instead of printing them.
#[derive(Debug, Clone, Args)]
pub(crate) struct Applying {
    /// Apply the objects with kubectl instead of printing them, and wait until the controller and the CNI plugin run;
    /// end at once if a node cannot get an image
    #[arg(long)]
    pub(crate) apply: bool,
    /// Longest wait of --apply
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5m", requires = "apply")]
    pub(crate) timeout: Duration,
}

/// Arguments of `tulle install`.
#[derive(Debug, Args)]
pub(crate) struct Install {
    /// Namespace of the controller
    #[arg(long, value_name = "NAME", default_value = "tulle-system")]
    pub(crate) namespace: String,
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    #[command(flatten)]
    pub(crate) images: Images,
    /// Initial settings of the mesh (default: permissive, or the settings of the installed mesh)
    #[arg(long, value_enum)]
    pub(crate) profile: Option<Profile>,
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
    pub(crate) applying: Applying,
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

/// `tulle upgrade`
#[derive(Debug, Clone, Args)]
pub(crate) struct Upgrade {
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    #[command(flatten)]
    pub(crate) images: Images,
    /// Print the changes instead of the objects
    #[arg(long, conflicts_with = "apply")]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) applying: Applying,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle uninstall`
#[derive(Debug, Clone, Args)]
pub(crate) struct Uninstall {
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Uninstall even while pods have sidecars, which keep working until their certificates expire
    #[arg(long)]
    pub(crate) force: bool,
    /// Also remove the CustomResourceDefinitions of the mesh, and with them every object of these
    /// kinds
    #[arg(long)]
    pub(crate) crds: bool,
    /// Change nothing; print what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
}
