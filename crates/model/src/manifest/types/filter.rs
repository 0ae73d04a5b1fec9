//! Filters that change requests on their way: those of routes (Gateway API) and our own.

#[cfg(feature = "schema")]
use super::schema;
use super::{BackendRef, ObjectRef, is_default};
use serde::{Deserialize, Serialize};

/// A filter of a route: `type` and the field that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteFilter {
    /// The type of the filter.
    #[serde(rename = "type")]
    pub kind: String,
    /// Edits the request's headers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub request_header_modifier: Option<HeaderModifier>,
    /// Edits the response's headers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub response_header_modifier: Option<HeaderModifier>,
    /// Sends a copy of requests elsewhere.
    #[serde(default, skip_serializing_if = "is_default")]
    pub request_mirror: Option<RequestMirror>,
    /// Answers with a redirection.
    #[serde(default, skip_serializing_if = "is_default")]
    pub request_redirect: Option<RequestRedirect>,
    /// Rewrites the host or path.
    #[serde(default, skip_serializing_if = "is_default")]
    pub url_rewrite: Option<UrlRewrite>,
    /// Answers cross-origin requests of browsers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cors: Option<CorsFilter>,
    /// Refers to an HTTPFilter or a Plugin.
    #[serde(default, skip_serializing_if = "is_default")]
    pub extension_ref: Option<ObjectRef>,
}

impl RouteFilter {
    /// The HTTPFilter that it refers to.
    pub fn http_filter(&self) -> Option<&ObjectRef> {
        let reference = self.extension_ref.as_ref();
        reference.filter(|reference| !reference.is_plugin())
    }
}

/// Header edits, done in the order remove, set, add.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HeaderModifier {
    /// Headers to replace.
    #[serde(skip_serializing_if = "is_default")]
    pub set: Vec<HeaderValue>,
    /// Headers to append.
    #[serde(skip_serializing_if = "is_default")]
    pub add: Vec<HeaderValue>,
    /// Headers to remove.
    #[serde(skip_serializing_if = "is_default")]
    pub remove: Vec<String>,
}

/// A header and its value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderValue {
    /// The name; its case does not matter.
    pub name: String,
    /// Value.
    pub value: String,
}

/// A copy of requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestMirror {
    /// The destination.
    pub backend_ref: BackendRef,
    /// Share of the requests; default 100.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(max = 100)))]
    pub percent: Option<u32>,
    /// The share as a fraction.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fraction: Option<Fraction>,
}

/// A share.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fraction {
    /// The numerator.
    pub numerator: u32,
    /// The denominator; default 100.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub denominator: Option<u32>,
}

/// A redirection; parts that are not given stay the same.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RequestRedirect {
    /// `http` or `https`.
    #[serde(skip_serializing_if = "is_default")]
    pub scheme: Option<String>,
    /// Host.
    #[serde(skip_serializing_if = "is_default")]
    pub hostname: Option<String>,
    /// Path.
    #[serde(skip_serializing_if = "is_default")]
    pub path: Option<PathModifier>,
    /// Port.
    #[serde(skip_serializing_if = "is_default")]
    pub port: Option<u16>,
    /// 301, 302 (default), 303, 307 or 308.
    #[serde(skip_serializing_if = "is_default")]
    pub status_code: Option<u16>,
}

/// A rewrite of the host or path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct UrlRewrite {
    /// Host.
    #[serde(skip_serializing_if = "is_default")]
    pub hostname: Option<String>,
    /// Path.
    #[serde(skip_serializing_if = "is_default")]
    pub path: Option<PathModifier>,
}

/// A change of the path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathModifier {
    /// `ReplaceFullPath` or `ReplacePrefixMatch`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The new path.
    #[serde(default, skip_serializing_if = "is_default")]
    pub replace_full_path: Option<String>,
    /// The text in place of the matched prefix.
    #[serde(default, skip_serializing_if = "is_default")]
    pub replace_prefix_match: Option<String>,
}

/// Cross-origin requests of browsers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CorsFilter {
    /// Origins, `*`, or with a `*` for a label.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_origins: Vec<String>,
    /// Browsers may send cookies and other credentials.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_credentials: bool,
    /// Methods, or `*`.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_methods: Vec<String>,
    /// Headers, or `*`.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_headers: Vec<String>,
    /// Headers, or `*`.
    #[serde(skip_serializing_if = "is_default")]
    pub expose_headers: Vec<String>,
    /// Seconds a browser may remember the answer; default 5.
    #[serde(skip_serializing_if = "is_default")]
    pub max_age: Option<u32>,
}

/// `tulle.dev/v1alpha1` HTTPFilter, for `extensionRef`. Its filters are applied in the order of the
/// fields.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HttpFilterSpec {
    /// A condition in CEL: the route's rule takes only requests for which it holds, the others go on to later rules.
    #[serde(rename = "match", skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(length(max = 4096)))]
    pub match_when: Option<String>,
    /// A condition in CEL: the filters below are for requests for which it holds.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(length(max = 4096)))]
    pub when: Option<String>,
    /// Limits the rate of requests.
    #[serde(skip_serializing_if = "is_default")]
    pub rate_limit: Option<RequestLimit>,
    /// Injects failures.
    #[serde(skip_serializing_if = "is_default")]
    pub fault: Option<FaultSpec>,
    /// Requires a signed token.
    #[serde(skip_serializing_if = "is_default")]
    pub jwt: Option<JwtSpec>,
    /// Asks another service whether a request may pass.
    #[serde(skip_serializing_if = "is_default")]
    pub external_auth: Option<ExternalAuthSpec>,
    /// Sets request headers to values in CEL.
    #[serde(skip_serializing_if = "is_default")]
    pub request_headers: Vec<HeaderExpression>,
    /// Sends a copy of requests elsewhere.
    #[serde(skip_serializing_if = "is_default")]
    pub mirror: Option<RequestMirror>,
    /// Answers requests directly.
    #[serde(skip_serializing_if = "is_default")]
    pub direct_response: Option<DirectResponse>,
}

/// A header whose value is made of the request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderExpression {
    /// The name; its case does not matter.
    pub name: String,
    /// The value in CEL, a text. Where it has none, the header is removed.
    #[cfg_attr(feature = "schema", schemars(length(max = 4096)))]
    pub expression: String,
}

/// A number of requests per interval.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestLimit {
    /// How many per interval.
    pub count: u32,
    /// Interval; default `1s`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub per: Option<String>,
    /// How many more may come at once.
    #[serde(default, skip_serializing_if = "is_default")]
    pub burst: u32,
    /// Status of a refusal; default 429.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 400, max = 599)))]
    pub status: Option<u16>,
    /// Headers added to the refusal.
    #[serde(default, skip_serializing_if = "is_default")]
    pub headers: Vec<HeaderValue>,
    /// A text in CEL: requests with different ones are limited each by themselves.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(length(max = 4096)))]
    pub by: Option<String>,
}

/// Injects failures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FaultSpec {
    /// Delays requests.
    #[serde(skip_serializing_if = "is_default")]
    pub delay: Option<FaultDelay>,
    /// Aborts requests.
    #[serde(skip_serializing_if = "is_default")]
    pub abort: Option<FaultAbort>,
}

/// A delay of requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultDelay {
    /// Length of the delay.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub duration: String,
    /// Share of the requests; default `100%`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::SHARE)))]
    pub percentage: Option<String>,
}

/// An abort of requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FaultAbort {
    /// Status; without it the connection is reset.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(min = 200, max = 599)))]
    pub status: Option<u16>,
    /// Share of the requests; default `100%`.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::SHARE)))]
    pub percentage: Option<String>,
}

/// A fixed answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DirectResponse {
    /// Status, 200 to 599.
    #[cfg_attr(feature = "schema", schemars(range(min = 200, max = 599)))]
    pub status: u16,
    /// Content of the answer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub body: String,
    /// Content type; default `text/plain; charset=utf-8`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub content_type: Option<String>,
}

/// A server that decides whether a request may pass.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExternalAuthSpec {
    /// `HTTP` (default) or `GRPC`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = schema::allowed::AUTH_PROTOCOLS)))]
    pub protocol: Option<String>,
    /// The service that is asked.
    pub backend_ref: BackendRef,
    /// HTTP: prefix of the path.
    #[serde(default, skip_serializing_if = "is_default")]
    pub path_prefix: Option<String>,
    /// Timeout; default `1s`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = schema::DURATION)))]
    pub timeout: Option<String>,
    /// Lets requests pass while the server cannot be asked.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fail_open: bool,
    /// HTTP: request headers that the server receives beside authorization.
    #[serde(default, skip_serializing_if = "is_default")]
    pub request_headers: Vec<String>,
    /// HTTP: headers of its answer that go on to the upstream.
    #[serde(default, skip_serializing_if = "is_default")]
    pub upstream_headers: Vec<String>,
    /// HTTP: headers of its answer that go back to the client.
    #[serde(default, skip_serializing_if = "is_default")]
    pub client_headers: Vec<String>,
    /// Bytes of the body that the server receives.
    #[serde(default, skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schema", schemars(range(max = crate::resource::MOST_AUTH_BODY)))]
    pub body_bytes: u32,
}

/// Requires a token of one of the providers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwtSpec {
    /// Issuers of tokens; a token of one is enough.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub providers: Vec<JwtProviderSpec>,
    /// Lets requests without a token pass.
    #[serde(default, skip_serializing_if = "is_default")]
    pub optional: bool,
}

/// An issuer of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwtProviderSpec {
    /// Issuer (`iss`).
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub issuer: String,
    /// Audiences; one of them must be in `aud`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub audiences: Vec<String>,
    /// A JSON Web Key Set as text.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jwks: Option<String>,
    /// Key `jwks` of a ConfigMap or Secret.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jwks_ref: Option<ObjectRef>,
    /// Address from which the controller fetches the set, if the Mesh lists the host.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jwks_uri: Option<String>,
    /// Header with the token; default `authorization`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub header: Option<String>,
    /// Claims to pass on as headers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub claim_headers: Vec<ClaimHeaderSpec>,
    /// Passes the token on to the upstream.
    #[serde(default, skip_serializing_if = "is_default")]
    pub forward: bool,
    /// Refuses tokens without `exp`; default true.
    #[serde(default, skip_serializing_if = "is_default")]
    pub require_expiry: Option<bool>,
}

/// A claim to pass on as a header.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimHeaderSpec {
    /// Claim.
    pub claim: String,
    /// Header.
    pub header: String,
}
