//! Filters, which change a request and its response on the way.

use super::is_default;
use serde::{Deserialize, Serialize};

/// Fields that say where a message ends or belong to one connection, and those by which sidecars
/// speak of identity: an edit of them would break the message or forge a fact.
const PROTECTED: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-client-cert",
];

/// Whether a header field is not for configuration to change. Those named `x-tulle-…` are the
/// mesh's own.
pub fn is_protected_header(name: &str) -> bool {
    // Servers that map names to variables take `_` for `-`.
    let name = name.to_ascii_lowercase().replace('_', "-");
    PROTECTED.contains(&name.as_str()) || name.starts_with("x-tulle-")
}

/// A filter. Shares are in millionths (`ppm`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Filter {
    /// Edits the request's head.
    RequestHeaders(HeaderEdit),
    /// Edits the response's head.
    ResponseHeaders(HeaderEdit),
    /// Answers with a redirection.
    Redirect(Redirect),
    /// Changes host or path on the way.
    Rewrite(Rewrite),
    /// Sends a copy elsewhere and drops its answer.
    Mirror(Mirror),
    /// Cross-origin requests of browsers.
    Cors(Cors),
    /// Delays or aborts on purpose.
    Fault(Fault),
    /// Limits the rate of requests.
    RateLimit(RateLimit),
    /// Answers by itself.
    Respond(Respond),
    /// Asks somebody else.
    ExternalAuth(ExternalAuth),
    /// Requires a signed token.
    Jwt(Jwt),
    /// Filters for requests that meet a condition.
    When(When),
    /// Sets request fields to values that are made of the request.
    RequestValues(Vec<FieldValue>),
    /// A script that reads and edits requests and responses, or answers.
    Plugin(Plugin),
}

impl Filter {
    /// The services that are sent something beside the route's backends.
    pub fn services(&self) -> Vec<&str> {
        match self {
            Self::Mirror(mirror) => vec![&mirror.service],
            Self::ExternalAuth(filter) => vec![&filter.service],
            Self::Plugin(plugin) => plugin.services.iter().map(String::as_str).collect(),
            Self::When(when) => when.filters.iter().flat_map(Self::services).collect(),
            _ => Vec::new(),
        }
    }
}

/// A plugin.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plugin {
    /// Its name in refusals, logs and metrics.
    pub name: String,
    /// A module of JavaScript.
    pub source: String,
    /// Its configuration, as JSON; empty: `null`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub config: String,
    /// Requests and responses pass unchanged where it fails.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fail_open: bool,
    /// Milliseconds of CPU that a call may take; 0: 5.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cpu_ms: u32,
    /// KiB of memory that it may have on each worker; 0: 4096.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory_kib: u32,
    /// Calls under way on each worker; 0: 256.
    #[serde(default, skip_serializing_if = "is_default")]
    pub calls: u32,
    /// KiB of the longest body that its hooks see; 0: 256.
    #[serde(default, skip_serializing_if = "is_default")]
    pub body_kib: u32,
    /// Services that it may ask.
    #[serde(default, skip_serializing_if = "is_default")]
    pub services: Vec<String>,
}

/// Filters for requests that meet a condition.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct When {
    /// The condition in CEL. One that has no value for a request counts as met.
    pub condition: String,
    /// The filters.
    pub filters: Vec<Filter>,
}

/// A field whose value is made of the request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FieldValue {
    /// Lower case.
    pub name: String,
    /// Its value in CEL. Where it has none, the field is removed.
    pub expression: String,
}

/// Edits of headers, in the order remove, set, add.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HeaderEdit {
    /// Replaces all fields of the name.
    #[serde(skip_serializing_if = "is_default")]
    pub set: Vec<Header>,
    /// Appends a field.
    #[serde(skip_serializing_if = "is_default")]
    pub add: Vec<Header>,
    /// Names, lower case.
    #[serde(skip_serializing_if = "is_default")]
    pub remove: Vec<String>,
}

/// A header field.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Header {
    /// Lower case.
    pub name: String,
    /// Value.
    pub value: String,
}

/// A redirection; parts that are not given stay the same.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Redirect {
    /// `http` or `https`; empty: as it came.
    #[serde(skip_serializing_if = "is_default")]
    pub scheme: String,
    /// Empty: as it came.
    #[serde(skip_serializing_if = "is_default")]
    pub hostname: String,
    /// 0: that of the scheme if one is given, else the listener's.
    #[serde(skip_serializing_if = "is_default")]
    pub port: u16,
    /// Path.
    #[serde(skip_serializing_if = "is_default")]
    pub path: Option<PathEdit>,
    /// 301, 302, 303, 307 or 308; 0: 302.
    #[serde(skip_serializing_if = "is_default")]
    pub status: u16,
}

/// A rewrite of the host or path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rewrite {
    /// Empty: as it came.
    #[serde(skip_serializing_if = "is_default")]
    pub hostname: String,
    /// Path.
    #[serde(skip_serializing_if = "is_default")]
    pub path: Option<PathEdit>,
}

/// A change of the path; the query stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PathEdit {
    /// In place of the whole path.
    Full(String),
    /// The text in place of the prefix that the rule's match has matched.
    Prefix(String),
}

/// A copy of requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mirror {
    /// Service name.
    pub service: String,
    /// Service port.
    pub port: u16,
    /// Share of the requests.
    pub ppm: u32,
}

/// Cross-origin resource sharing (Fetch standard).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cors {
    /// Exact origins, `*`, or with one `*` for a label, such as `https://*.example.com`.
    pub allow_origins: Vec<String>,
    /// Methods, or `*`.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_methods: Vec<String>,
    /// Names, or `*`.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_headers: Vec<String>,
    /// Names, or `*`.
    #[serde(skip_serializing_if = "is_default")]
    pub expose_headers: Vec<String>,
    /// Browsers may send cookies and other credentials.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_credentials: bool,
    /// How long a browser may remember the answer; 0: 5 s, as Gateway API says.
    #[serde(skip_serializing_if = "is_default")]
    pub max_age_s: u32,
}

/// Failures on purpose. A request may be delayed and then aborted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Fault {
    /// Delay.
    #[serde(skip_serializing_if = "is_default")]
    pub delay_ms: u32,
    /// Share of the requests that are delayed.
    #[serde(skip_serializing_if = "is_default")]
    pub delay_ppm: u32,
    /// Status of aborted requests; 0 with `abort_ppm`: the connection is reset.
    #[serde(skip_serializing_if = "is_default")]
    pub abort_status: u16,
    /// Share of the requests that are aborted.
    #[serde(skip_serializing_if = "is_default")]
    pub abort_ppm: u32,
}

/// A token bucket of each proxy (all of its workers together).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RateLimit {
    /// The object it comes from.
    pub name: String,
    /// Tokens per interval.
    pub tokens: u32,
    /// Interval.
    pub per_ms: u32,
    /// How many more may come at once.
    #[serde(skip_serializing_if = "is_default")]
    pub burst: u32,
    /// Status of the answer; 0: 429.
    #[serde(skip_serializing_if = "is_default")]
    pub status: u16,
    /// Added to the answer.
    #[serde(skip_serializing_if = "is_default")]
    pub headers: Vec<Header>,
    /// A text in CEL: requests with different ones have different buckets; empty: one for all.
    #[serde(skip_serializing_if = "is_default")]
    pub by: String,
}

/// A fixed answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Respond {
    /// 200 to 599.
    pub status: u16,
    /// Content.
    #[serde(skip_serializing_if = "is_default")]
    pub body: String,
    /// Its type; empty: `text/plain; charset=utf-8`.
    #[serde(skip_serializing_if = "is_default")]
    pub content_type: String,
}

/// Most bytes of a request's body that another service is shown before it decides. Manifests, schemas and proxies have
/// the same bound: a proxy refuses the whole of a resource that has more.
pub const MOST_AUTH_BODY: u32 = 1 << 20;

/// Another service decides (Envoy's ext_authz protocols).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExternalAuth {
    /// The object it comes from.
    pub name: String,
    /// Service of the mesh that is asked.
    pub service: String,
    /// Its port.
    pub port: u16,
    /// `envoy.service.auth.v3.Authorization/Check` rather than plain HTTP.
    #[serde(skip_serializing_if = "is_default")]
    pub grpc: bool,
    /// HTTP: put before the path.
    #[serde(skip_serializing_if = "is_default")]
    pub path_prefix: String,
    /// How long it may take; 0: 1 s.
    #[serde(skip_serializing_if = "is_default")]
    pub timeout_ms: u32,
    /// Lets requests pass while the server cannot be asked.
    #[serde(skip_serializing_if = "is_default")]
    pub fail_open: bool,
    /// HTTP: request headers that the server receives beside authorization; lower case.
    #[serde(skip_serializing_if = "is_default")]
    pub request_headers: Vec<String>,
    /// HTTP: headers of an answer that allows that go on to the upstream; lower case.
    #[serde(skip_serializing_if = "is_default")]
    pub upstream_headers: Vec<String>,
    /// HTTP: headers of an answer that denies that go back to the client, beside those of every
    /// answer; empty: all.
    #[serde(skip_serializing_if = "is_default")]
    pub client_headers: Vec<String>,
    /// Body bytes that the server receives; 0: none, and at most [`MOST_AUTH_BODY`].
    #[serde(skip_serializing_if = "is_default")]
    pub body_bytes: u32,
}

/// Requires a token signed by one of the providers (RFC 7519).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Jwt {
    /// The object it comes from.
    pub name: String,
    /// Issuers of tokens; a token of one is enough.
    pub providers: Vec<JwtProvider>,
    /// A request without a token passes; one with a bad token does not.
    #[serde(skip_serializing_if = "is_default")]
    pub optional: bool,
}

/// An issuer of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JwtProvider {
    /// `iss`, compared exactly.
    pub issuer: String,
    /// Audiences; one of them must be in `aud`; empty: any.
    #[serde(skip_serializing_if = "is_default")]
    pub audiences: Vec<String>,
    /// A JSON Web Key Set (RFC 7517).
    pub jwks: String,
    /// Header to take it from, after `Bearer ` if that is there; empty: `authorization`.
    #[serde(skip_serializing_if = "is_default")]
    pub header: String,
    /// Claims that go to the upstream as headers.
    #[serde(skip_serializing_if = "is_default")]
    pub claim_headers: Vec<ClaimHeader>,
    /// The token goes on to the upstream.
    #[serde(skip_serializing_if = "is_default")]
    pub forward: bool,
    /// Accepts tokens without `exp`, which never expire. The lax value is the one that is written: a
    /// resource that says nothing means the strict one to every proxy that knows the field.
    #[serde(skip_serializing_if = "is_default")]
    pub expiry_optional: bool,
}

/// A claim as a header.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimHeader {
    /// Claim.
    pub claim: String,
    /// Header, lower case. One that the client sends is removed.
    pub header: String,
}
