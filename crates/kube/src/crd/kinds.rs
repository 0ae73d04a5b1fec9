//! Which definitions there are.

/// A kind that clusters get a definition of.
#[derive(Debug)]
pub struct Definition {
    /// API group.
    pub group: &'static str,
    /// Versions; objects are stored as the first.
    pub versions: &'static [&'static str],
    /// The kind, as in objects.
    pub kind: &'static str,
    /// The plural, as in URLs.
    pub plural: &'static str,
    /// Short names for `kubectl get`.
    pub short_names: &'static [&'static str],
    /// In no namespace.
    pub cluster: bool,
    /// The purpose of the kind.
    pub description: &'static str,
    own_columns: &'static [Column],
}

/// A column that `kubectl get` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// The column's head.
    pub name: &'static str,
    /// `string`, `integer`, `boolean` or `date`.
    pub kind: &'static str,
    /// Where in the object it is.
    pub path: &'static str,
}

const fn column(name: &'static str, kind: &'static str, path: &'static str) -> Column {
    Column { name, kind, path }
}

const ACCEPTED: Column = column(
    "Accepted",
    "string",
    r#".status.conditions[?(@.type=="Accepted")].status"#,
);
const AGE: Column = column("Age", "date", ".metadata.creationTimestamp");
const TARGETS: Column = column("Target", "string", ".spec.targetRefs[*].name");

const BACKENDS: Column = column("Backend", "string", ".spec.backends[*].name");
const SOURCES: Column = column("Source", "string", ".spec.sources[*].name");

impl Definition {
    /// Whether the controller says something of its objects. The Service Mesh Interface has no place
    /// for that.
    pub fn has_status(&self) -> bool {
        self.group == TULLE
    }

    /// All columns, without the name.
    pub fn columns(&self) -> Vec<Column> {
        let accepted: &[Column] = if self.has_status() { &[ACCEPTED] } else { &[] };
        [self.own_columns, accepted, &[AGE]].concat()
    }
}

const TULLE: &str = "tulle.dev";
const ALPHA: &[&str] = &["v1alpha1"];

/// All definitions, in the order of the documentation.
pub fn definitions() -> &'static [Definition] {
    &DEFINITIONS
}

static DEFINITIONS: [Definition; 14] = [
    Definition {
        group: TULLE,
        versions: ALPHA,
        kind: "Mesh",
        plural: "meshes",
        short_names: &[],
        cluster: true,
        description: "Settings of the whole mesh; there is one, named `mesh`.",
        own_columns: &[
            column("mTLS", "string", ".spec.mtls.mode"),
            column("Permissive", "boolean", ".spec.permissiveMode"),
        ],
    },
    Definition {
        group: TULLE,
        versions: ALPHA,
        kind: "TrafficPolicy",
        plural: "trafficpolicies",
        short_names: &["tp"],
        cluster: false,
        description: "How clients treat a service: balancing, timeouts, retries, circuit breaking.",
        own_columns: &[
            TARGETS,
            column("Balancer", "string", ".spec.loadBalancer.type"),
        ],
    },
    Definition {
        group: TULLE,
        versions: ALPHA,
        kind: "RateLimit",
        plural: "ratelimits",
        short_names: &["rl"],
        cluster: false,
        description: "How often a service or a gateway may be called.",
        own_columns: &[
            TARGETS,
            column("Requests", "integer", ".spec.requests.count"),
            column("Per", "string", ".spec.requests.per"),
        ],
    },
    Definition {
        group: TULLE,
        versions: ALPHA,
        kind: "HTTPFilter",
        plural: "httpfilters",
        short_names: &["hf"],
        cluster: false,
        description: "Filters of a route beyond Gateway API; routes name it by `extensionRef`.",
        own_columns: &[],
    },
    Definition {
        group: TULLE,
        versions: ALPHA,
        kind: "AuthorizationPolicy",
        plural: "authorizationpolicies",
        short_names: &["ap"],
        cluster: false,
        description: "Rules about who may call a service, and with which requests.",
        own_columns: &[
            TARGETS,
            column("Action", "string", ".spec.action"),
            column("Mode", "string", ".spec.mode"),
        ],
    },
    Definition {
        group: TULLE,
        versions: ALPHA,
        kind: "Authentication",
        plural: "authentications",
        short_names: &["authn"],
        cluster: false,
        description: "Proof that requests must carry beside the identity of their workload.",
        own_columns: &[
            TARGETS,
            column("Issuer", "string", ".spec.jwt.providers[*].issuer"),
        ],
    },
    Definition {
        group: TULLE,
        versions: ALPHA,
        kind: "Plugin",
        plural: "plugins",
        short_names: &[],
        cluster: false,
        description: "A script that reads and edits a service's requests and responses.",
        own_columns: &[TARGETS, column("Failure", "string", ".spec.failurePolicy")],
    },
    Definition {
        group: TULLE,
        versions: ALPHA,
        kind: "IngressBackend",
        plural: "ingressbackends",
        short_names: &["ib"],
        cluster: false,
        description: "Services that somebody else's ingress may call.",
        own_columns: &[BACKENDS, SOURCES],
    },
    Definition {
        group: TULLE,
        versions: ALPHA,
        kind: "AccessControl",
        plural: "accesscontrols",
        short_names: &["ac"],
        cluster: false,
        description: "Services that other clients outside the mesh may call.",
        own_columns: &[BACKENDS, SOURCES],
    },
    Definition {
        group: TULLE,
        versions: ALPHA,
        kind: "Egress",
        plural: "egresses",
        short_names: &["eg"],
        cluster: false,
        description: "Destinations outside the mesh that workloads may reach.",
        own_columns: &[column("Hosts", "string", ".spec.hosts"), SOURCES],
    },
    Definition {
        group: "access.smi-spec.io",
        versions: &["v1alpha3"],
        kind: "TrafficTarget",
        plural: "traffictargets",
        short_names: &["tt"],
        cluster: false,
        description: "Service accounts that may call others (Service Mesh Interface).",
        own_columns: &[
            column("Destination", "string", ".spec.destination.name"),
            SOURCES,
        ],
    },
    Definition {
        group: "specs.smi-spec.io",
        versions: &["v1alpha4"],
        kind: "HTTPRouteGroup",
        plural: "httproutegroups",
        short_names: &["htr"],
        cluster: false,
        description: "Named kinds of request (Service Mesh Interface).",
        own_columns: &[column("Match", "string", ".spec.matches[*].name")],
    },
    Definition {
        group: "specs.smi-spec.io",
        versions: &["v1alpha4"],
        kind: "TCPRoute",
        plural: "tcproutes",
        short_names: &["tr"],
        cluster: false,
        description: "Ports, for TrafficTargets (Service Mesh Interface).",
        own_columns: &[column("Ports", "string", ".spec.matches.ports")],
    },
    Definition {
        group: "split.smi-spec.io",
        versions: &["v1alpha4", "v1alpha2"],
        kind: "TrafficSplit",
        plural: "trafficsplits",
        short_names: &["ts"],
        cluster: false,
        description: "A service's requests by weight (Service Mesh Interface).",
        own_columns: &[
            column("Service", "string", ".spec.service"),
            column("Backend", "string", ".spec.backends[*].service"),
        ],
    },
];
