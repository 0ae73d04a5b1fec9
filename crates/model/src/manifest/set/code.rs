//! The codes of findings. They are in scripts and in docs/findings.md, so none ever changes its
//! meaning.

/// Two objects of a kind have one name.
pub const SAME_NAME: &str = "TL0001";
/// Two Mesh objects.
pub const TWO_MESHES: &str = "TL0002";
/// A service that does not exist.
pub(super) const NO_SERVICE: &str = "TL0010";
/// A port that the service does not have.
pub(super) const NO_PORT: &str = "TL0011";
/// A gateway that does not exist.
pub(super) const NO_GATEWAY: &str = "TL0012";
/// A listener that the gateway does not have, or that does not take such routes.
pub(super) const NO_LISTENER: &str = "TL0013";
/// An HTTPRouteGroup, or a match of one, that does not exist.
pub(super) const NO_GROUP: &str = "TL0014";
/// An SMI TCPRoute that does not exist.
pub(super) const NO_TCP_ROUTE: &str = "TL0015";
/// An HTTPFilter or Plugin that does not exist.
pub(super) const NO_FILTER: &str = "TL0016";
/// A Secret or ConfigMap, or a key of one, that does not exist.
pub const NO_TEXT: &str = "TL0017";
/// An identity that nobody has.
pub(super) const NO_IDENTITY: &str = "TL0018";
/// Replicas that disagree about a port.
pub(super) const PROTOCOLS_DIFFER: &str = "TL0020";
/// A workload and a gateway with one identity.
pub(super) const SAME_IDENTITY: &str = "TL0021";
/// A gateway of another class.
pub(super) const OTHER_CLASS: &str = "TL0022";
/// Two gateways that listen at one address and port.
pub(super) const SAME_SOCKET: &str = "TL0023";
/// A gateway whose name is no DNS label.
pub(super) const NO_LABEL: &str = "TL0024";
/// Two routes with the same match for one host and parent.
pub(super) const SAME_MATCH: &str = "TL0030";
/// A rule that an earlier one of its route hides.
pub(super) const SHADOWED: &str = "TL0031";
/// A rule that sends requests nowhere.
pub(super) const NO_BACKEND: &str = "TL0032";
/// A service of which no workload is ready. Found in a mesh that is up only.
pub const NO_ENDPOINT: &str = "TL0033";
/// Two policies of a kind for one service and port.
pub(super) const SAME_TARGET: &str = "TL0040";
/// A policy that a setting of the Mesh makes superfluous.
pub(super) const IGNORED: &str = "TL0041";
/// A limit of 0.
pub(super) const LIMIT_ZERO: &str = "TL0042";
/// A retry that names no condition.
pub(super) const RETRY_NOTHING: &str = "TL0043";
/// A policy that is about no service there is.
pub(super) const SELECTS_NOTHING: &str = "TL0044";
/// A policy for HTTP on a port that carries opaque bytes.
pub(super) const NOT_HTTP: &str = "TL0045";
/// A policy for a route whose callers would enforce it on themselves.
pub(super) const UNENFORCED: &str = "TL0046";
/// A policy or route that restricts by path and does not say whether letter case matters.
pub(super) const LETTER_CASE: &str = "TL0047";
/// A certificate or authority that a listener needs for TLS and that cannot be used. Only the
/// controller, which has Secrets, finds it.
pub const UNUSABLE: &str = "TL0048";
/// A listener's certificate that has expired. Only the controller finds it.
pub const EXPIRED: &str = "TL0049";
/// A backend of a route that no policy lets the route's callers call.
pub(super) const NOT_ADMITTED: &str = "TL0050";
/// Calls of the last minutes that would be denied. Only a controller that proxies report to finds it, in a dry run.
pub const OBSERVED: &str = "TL0051";
