//! The variables of Tulle's own expressions: what is known of a request, of who sends it, of its tokens and of its response.

use crate::scope::{Scope, Variable};
use crate::types::Type;

/// All variables; those of a response last.
pub static VARIABLES: [(&str, Type); 19] = [
    ("request.method", Type::String),
    ("request.path", Type::String),
    ("request.query", Type::String),
    ("request.host", Type::String),
    ("request.protocol", Type::String),
    ("request.size", Type::Int),
    ("request.headers", Type::Table),
    ("source.identity", Type::String),
    ("source.namespace", Type::String),
    ("source.service", Type::String),
    ("source.address", Type::String),
    ("destination.identity", Type::String),
    ("destination.service", Type::String),
    ("destination.port", Type::Int),
    ("jwt.claims", Type::Dyn),
    ("response.code", Type::Int),
    ("response.reason", Type::String),
    ("response.duration", Type::Int),
    ("response.size", Type::Int),
];

/// Where that of tokens stands; those of a response begin behind it.
const JWT: usize = 14;

/// The variables of a request: those that conditions and values before the response can use.
#[must_use]
pub fn scope() -> Scope<'static> {
    Scope::new(VARIABLES.get(..JWT).unwrap_or_default())
}

/// The variables of a request and its tokens, for policies: the sidecar or gateway that they are for checks the tokens.
#[must_use]
pub fn policy_scope() -> Scope<'static> {
    Scope::new(VARIABLES.get(..=JWT).unwrap_or_default())
}

/// The variables of a request and its response, for the access log.
#[must_use]
pub fn log_scope() -> Scope<'static> {
    Scope::new(&VARIABLES)
}

/// Method, such as `GET`.
pub const METHOD: Variable = Variable(0);
/// Path as it is forwarded, without the query.
pub const PATH: Variable = Variable(1);
/// Query without the `?`; empty: there is none.
pub const QUERY: Variable = Variable(2);
/// Host without its port, in lower case.
pub const HOST: Variable = Variable(3);
/// `HTTP/1.1`, `HTTP/2` or `gRPC`.
pub const PROTOCOL: Variable = Variable(4);
/// Length of the body in bytes as the head says it; -1: it does not.
pub const SIZE: Variable = Variable(5);
/// A header's value by its name in any letter case.
pub const HEADERS: Variable = Variable(6);
/// SPIFFE id of the caller; empty: it has shown no certificate.
pub const SOURCE_IDENTITY: Variable = Variable(7);
/// Namespace of that identity; empty on a host.
pub const SOURCE_NAMESPACE: Variable = Variable(8);
/// Service account of that identity, on a host its service.
pub const SOURCE_SERVICE: Variable = Variable(9);
/// Address of the caller, or of the client that a load balancer has named.
pub const SOURCE_ADDRESS: Variable = Variable(10);
/// SPIFFE id of this sidecar.
pub const DESTINATION_IDENTITY: Variable = Variable(11);
/// Service that is called.
pub const DESTINATION_SERVICE: Variable = Variable(12);
/// Its port.
pub const DESTINATION_PORT: Variable = Variable(13);
/// Claims of the token that came with the request: a map, empty where none came.
pub const CLAIMS: Variable = Variable(14);
/// Status of the response.
pub const RESPONSE_CODE: Variable = Variable(15);
/// The reason why Tulle itself answered; empty: it did not.
pub const RESPONSE_REASON: Variable = Variable(16);
/// Time from the first byte of the request to the last of the response in milliseconds.
pub const RESPONSE_DURATION: Variable = Variable(17);
/// Length of the response's body in bytes.
pub const RESPONSE_SIZE: Variable = Variable(18);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_constant_is_the_place_of_its_name() {
        for (constant, name) in [
            (METHOD, "request.method"),
            (PATH, "request.path"),
            (QUERY, "request.query"),
            (HOST, "request.host"),
            (PROTOCOL, "request.protocol"),
            (SIZE, "request.size"),
            (HEADERS, "request.headers"),
            (SOURCE_IDENTITY, "source.identity"),
            (SOURCE_NAMESPACE, "source.namespace"),
            (SOURCE_SERVICE, "source.service"),
            (SOURCE_ADDRESS, "source.address"),
            (DESTINATION_IDENTITY, "destination.identity"),
            (DESTINATION_SERVICE, "destination.service"),
            (DESTINATION_PORT, "destination.port"),
            (CLAIMS, "jwt.claims"),
            (RESPONSE_CODE, "response.code"),
            (RESPONSE_REASON, "response.reason"),
            (RESPONSE_DURATION, "response.duration"),
            (RESPONSE_SIZE, "response.size"),
        ] {
            let path: Vec<&str> = name.split('.').collect();
            assert_eq!(log_scope().find(&path).unwrap().0, constant, "{name}");
        }
    }
}
