//! Reasons why a request or connection failed: one code per cause, the same in the response, the
//! access log, the metrics (`response_flags`) and `/errors`.

use std::fmt;

/// A cause. The text of each is the code operators search for; see docs/reasons.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Nothing went wrong.
    Ok,
    /// The policy does not allow this call.
    Denied,
    /// Plaintext on a port that requires mutual TLS.
    PlaintextRefused,
    /// The destination belongs to no service of the mesh and egress is not allowed.
    NoService,
    /// The destination is outside the mesh, and no rule lets this caller reach it.
    EgressDenied,
    /// No route matches the request.
    NoRoute,
    /// The service has no endpoint.
    NoEndpoint,
    /// This port is not served here.
    NoPort,
    /// TCP connect refused or failed.
    ConnectFailed,
    /// Connect or handshake took longer than the connect timeout.
    ConnectTimeout,
    /// The TLS handshake failed: wrong identity, expired certificate, other trust domain…
    TlsFailed,
    /// The upstream ended the connection before a complete response.
    UpstreamReset,
    /// The upstream's response breaks HTTP framing rules.
    BadResponse,
    /// No response head within the request timeout.
    RequestTimeout,
    /// The client did not finish the request's head in time.
    HeaderTimeout,
    /// No byte in either direction for too long.
    IdleTimeout,
    /// The request's host belongs to another listener than its TLS connection.
    Misdirected,
    /// The request breaks HTTP rules and is never forwarded.
    BadRequest,
    /// The client went away.
    ClientClosed,
    /// A limit of this proxy was reached.
    Overload,
    /// A rate limit is exceeded.
    RateLimited,
    /// An external authorization service denies the request.
    ExternalDenied,
    /// The external authorization service is not reachable.
    ExternalUnavailable,
    /// A required token is missing, or a token is invalid.
    Unauthenticated,
    /// Too many requests to the destination have failed or were slow.
    CircuitOpen,
    /// No usable certificate or configuration yet.
    NotReady,
    /// A plugin failed, and its requests do not pass without it.
    PluginFailed,
    /// The rule that matches has no backend, or one that does not exist.
    NoBackend,
    /// Aborted by a fault filter.
    FaultInjected,
    /// Answered with a redirection.
    Redirected,
    /// Answered with the route's fixed response.
    Responded,
    /// A CORS preflight was answered.
    CorsPreflight,
}

impl Reason {
    /// The code, as in metrics and logs.
    pub fn code(self) -> &'static str {
        match self {
            Self::Ok => "-",
            Self::Denied => "denied",
            Self::PlaintextRefused => "plaintext_refused",
            Self::NoService => "no_service",
            Self::EgressDenied => "egress_denied",
            Self::NoRoute => "no_route",
            Self::NoEndpoint => "no_endpoint",
            Self::NoPort => "no_port",
            Self::ConnectFailed => "connect_failed",
            Self::ConnectTimeout => "connect_timeout",
            Self::TlsFailed => "tls_failed",
            Self::UpstreamReset => "upstream_reset",
            Self::BadResponse => "bad_response",
            Self::RequestTimeout => "request_timeout",
            Self::HeaderTimeout => "header_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::Misdirected => "misdirected",
            Self::BadRequest => "bad_request",
            Self::ClientClosed => "client_closed",
            Self::Overload => "overload",
            Self::RateLimited => "rate_limited",
            Self::Unauthenticated => "unauthenticated",
            Self::ExternalDenied => "external_denied",
            Self::ExternalUnavailable => "external_unavailable",
            Self::CircuitOpen => "circuit_open",
            Self::NotReady => "not_ready",
            Self::PluginFailed => "plugin_failed",
            Self::NoBackend => "no_backend",
            Self::FaultInjected => "fault_injected",
            Self::Redirected => "redirected",
            Self::Responded => "responded",
            Self::CorsPreflight => "cors_preflight",
        }
    }

    /// Whether nothing went wrong although no upstream was asked: the configuration gave the
    /// answer.
    pub fn is_response(self) -> bool {
        matches!(
            self,
            Self::Ok | Self::Redirected | Self::Responded | Self::CorsPreflight
        )
    }

    /// The status a client gets when nothing has been sent yet.
    pub fn status(self) -> u16 {
        match self {
            Self::Ok | Self::Responded => 200,
            Self::CorsPreflight => 204,
            Self::Redirected => 302,
            Self::NoBackend | Self::PluginFailed => 500,
            Self::Denied | Self::PlaintextRefused | Self::EgressDenied | Self::ExternalDenied => {
                403
            }
            Self::NoRoute | Self::NoPort => 404,
            Self::HeaderTimeout | Self::IdleTimeout => 408,
            Self::RateLimited => 429,
            Self::Unauthenticated => 401,
            Self::ExternalUnavailable => 503,
            Self::BadRequest | Self::ClientClosed => 400,
            Self::Misdirected => 421,
            Self::UpstreamReset | Self::BadResponse | Self::TlsFailed | Self::NoService => 502,
            Self::NoEndpoint
            | Self::ConnectFailed
            | Self::Overload
            | Self::CircuitOpen
            | Self::NotReady
            | Self::FaultInjected => 503,
            Self::ConnectTimeout | Self::RequestTimeout => 504,
        }
    }
}

impl Reason {
    /// Returns the status for a gRPC client: that of the cause, not the one that gRPC derives from
    /// [`Self::status`]. Requests that may be sent again get UNAVAILABLE.
    pub fn grpc_status(self) -> u8 {
        const OK: u8 = 0;
        const CANCELLED: u8 = 1;
        const DEADLINE_EXCEEDED: u8 = 4;
        const PERMISSION_DENIED: u8 = 7;
        const UNIMPLEMENTED: u8 = 12;
        const INTERNAL: u8 = 13;
        const UNAVAILABLE: u8 = 14;
        const UNAUTHENTICATED: u8 = 16;
        match self {
            Self::Ok | Self::Redirected | Self::Responded | Self::CorsPreflight => OK,
            Self::ClientClosed => CANCELLED,
            Self::RequestTimeout => DEADLINE_EXCEEDED,
            Self::Denied | Self::PlaintextRefused | Self::EgressDenied | Self::ExternalDenied => {
                PERMISSION_DENIED
            }
            Self::Unauthenticated => UNAUTHENTICATED,
            Self::NoRoute | Self::NoPort | Self::NoService | Self::Misdirected => UNIMPLEMENTED,
            Self::BadRequest | Self::BadResponse | Self::PluginFailed => INTERNAL,
            Self::NoEndpoint
            | Self::NoBackend
            | Self::ConnectFailed
            | Self::ConnectTimeout
            | Self::TlsFailed
            | Self::UpstreamReset
            | Self::HeaderTimeout
            | Self::IdleTimeout
            | Self::Overload
            | Self::CircuitOpen
            | Self::RateLimited
            | Self::FaultInjected
            | Self::ExternalUnavailable
            | Self::NotReady => UNAVAILABLE,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// A failure with details for the operator.
#[derive(Debug)]
pub struct Failure {
    /// The cause.
    pub reason: Reason,
    /// Object, address or identity concerned and what to do.
    pub detail: String,
    /// The answer to the client, if it is not the usual one.
    pub answer: Option<Box<LocalResponse>>,
}

/// An answer that differs from the usual one of its reason.
#[derive(Debug, Default)]
pub struct LocalResponse {
    /// Status; 0: none, the connection is reset.
    pub status: u16,
    /// Further fields, names in lower case.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Content with its type; `None`: the reason and its detail.
    pub body: Option<(String, Vec<u8>)>,
}

impl Failure {
    /// A failure with its detail.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
            answer: None,
        }
    }

    /// Sets an answer of its own.
    #[must_use]
    pub fn with_response(mut self, answer: LocalResponse) -> Self {
        self.answer = Some(Box::new(answer));
        self
    }

    /// The status a client gets when nothing has been sent yet.
    pub fn status(&self) -> u16 {
        self.answer
            .as_ref()
            .map_or(self.reason.status(), |a| a.status)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.detail)
    }
}

impl std::error::Error for Failure {}
