//! The format of a text line of the access log, in Envoy's command operators.

use std::fmt;

/// Longest format: each proxy keeps it.
const MAX_BYTES: usize = 4096;

/// A field of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogField {
    /// `start_time`
    StartTime,
    /// `method`
    Method,
    /// `path`
    Path,
    /// `authority`
    Authority,
    /// `protocol`
    Protocol,
    /// `response_code`
    ResponseCode,
    /// `grpc_status`
    GrpcStatus,
    /// `response_flags`
    ResponseFlags,
    /// `duration`
    Duration,
    /// `time_to_first_byte`
    TimeToFirstByte,
    /// `upstream_service_time`
    UpstreamServiceTime,
    /// `upstream_cluster`
    UpstreamCluster,
    /// `upstream_host`
    UpstreamHost,
    /// `bytes_received`
    BytesReceived,
    /// `bytes_sent`
    BytesSent,
    /// `x_forwarded_for`
    ForwardedFor,
    /// `user_agent`
    UserAgent,
    /// `request_id`
    RequestId,
    /// `requested_server_name`
    RequestedServerName,
    /// `source_principal`
    SourcePrincipal,
    /// `destination_principal`
    DestinationPrincipal,
    /// `connection_security_policy`
    ConnectionSecurityPolicy,
    /// `policy_audit`
    PolicyAudit,
}

/// Envoy's names, and two that it does not have.
pub const OPERATORS: [(&str, LogField); 24] = [
    ("START_TIME", LogField::StartTime),
    ("REQ(:METHOD)", LogField::Method),
    ("REQ(:PATH)", LogField::Path),
    // In Envoy's own format. A path is logged as the client sent it.
    ("REQ(X-ENVOY-ORIGINAL-PATH?:PATH)", LogField::Path),
    ("REQ(:AUTHORITY)", LogField::Authority),
    ("PROTOCOL", LogField::Protocol),
    ("RESPONSE_CODE", LogField::ResponseCode),
    ("GRPC_STATUS_NUMBER", LogField::GrpcStatus),
    ("RESPONSE_FLAGS", LogField::ResponseFlags),
    ("DURATION", LogField::Duration),
    ("RESPONSE_DURATION", LogField::TimeToFirstByte),
    (
        "RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)",
        LogField::UpstreamServiceTime,
    ),
    ("UPSTREAM_CLUSTER", LogField::UpstreamCluster),
    ("UPSTREAM_HOST", LogField::UpstreamHost),
    ("BYTES_RECEIVED", LogField::BytesReceived),
    ("BYTES_SENT", LogField::BytesSent),
    ("REQ(X-FORWARDED-FOR)", LogField::ForwardedFor),
    ("REQ(USER-AGENT)", LogField::UserAgent),
    ("REQ(X-REQUEST-ID)", LogField::RequestId),
    ("REQUESTED_SERVER_NAME", LogField::RequestedServerName),
    ("DOWNSTREAM_PEER_URI_SAN", LogField::SourcePrincipal),
    ("UPSTREAM_PEER_URI_SAN", LogField::DestinationPrincipal),
    (
        "CONNECTION_SECURITY_POLICY",
        LogField::ConnectionSecurityPolicy,
    ),
    ("POLICY_AUDIT", LogField::PolicyAudit),
];

/// A part of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text as it is.
    Text(String),
    /// The value of a field.
    Field(LogField),
}

/// A format that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFormat(Vec<Piece>);

/// Why a format cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InvalidFormat {
    /// An operator that is none of [`OPERATORS`].
    Unknown(String),
    /// A percent sign without another one.
    Open,
    /// More than one line, or none.
    Lines,
    /// Too long.
    Long,
}

impl fmt::Display for InvalidFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => {
                write!(f, "unknown operator `%{name}%`, expected one of")?;
                let names = OPERATORS.iter().map(|(name, _)| name);
                names.enumerate().try_for_each(|(i, name)| {
                    let comma = if i == 0 { "" } else { "," };
                    write!(f, "{comma} `%{name}%`")
                })
            }
            Self::Open => f.write_str("an operator has no `%` at its end; `%%` is a percent sign"),
            Self::Lines => f.write_str("expected one line of text"),
            Self::Long => write!(f, "expected at most {MAX_BYTES} bytes"),
        }
    }
}

impl std::error::Error for InvalidFormat {}

impl LogFormat {
    /// Reads a format. A line break at its end is left out: blocks of YAML have one.
    ///
    /// # Errors
    /// An operator is unknown, or it is not one line.
    pub fn parse(text: &str) -> Result<Self, InvalidFormat> {
        let text = text.trim_end_matches(['\r', '\n']);
        if text.len() > MAX_BYTES {
            return Err(InvalidFormat::Long);
        }
        if text.is_empty() || text.contains(char::is_control) {
            return Err(InvalidFormat::Lines);
        }
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('%') {
            plain.push_str(before);
            let (name, after) = after.split_once('%').ok_or(InvalidFormat::Open)?;
            rest = after;
            if name.is_empty() {
                plain.push('%');
                continue;
            }
            let known = OPERATORS.iter().find(|(known, _)| *known == name);
            let (_, field) = known.ok_or_else(|| InvalidFormat::Unknown(shown(name)))?;
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Field(*field));
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Self(pieces))
    }

    /// The parts of a line, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }
}

/// The beginning of a name: a percent sign that is missing makes the rest of the format one.
fn shown(name: &str) -> String {
    name.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        LogFormat::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn operators_and_text_between_them() {
        let read = LogFormat::parse("%START_TIME% 100%% of \"%REQ(:PATH)%\"%PROTOCOL%\n").unwrap();
        let text = |text: &str| Piece::Text(text.to_owned());
        assert_eq!(
            read.pieces(),
            [
                Piece::Field(LogField::StartTime),
                text(" 100% of \""),
                Piece::Field(LogField::Path),
                text("\""),
                Piece::Field(LogField::Protocol),
            ]
        );
    }

    #[test]
    fn every_operator_is_documented() {
        let page = include_str!("../../../docs/access-log.md");
        for (name, _) in OPERATORS {
            assert!(page.contains(&format!("`%{name}%`")), "{name}");
        }
    }

    #[test]
    fn the_format_that_envoy_has_by_itself_is_read() {
        let envoy = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
             %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
             %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \
             \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\"";
        LogFormat::parse(envoy).unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_refused_by_name() {
        let unknown = refused("%REQ(COOKIE)% %PROTOCOL%");
        assert!(
            unknown
                .starts_with("unknown operator `%REQ(COOKIE)%`, expected one of `%START_TIME%`, "),
            "{unknown}"
        );
        assert!(unknown.ends_with(", `%POLICY_AUDIT%`"), "{unknown}");
        assert!(refused("50% of %PROTOCOL%").contains("`% of %`"));
        assert!(refused("%PROTOCOL").contains("no `%` at its end"));
        for lines in ["", "\n", "a\nb", "a\tb"] {
            assert!(refused(lines).contains("one line"), "{lines:?}");
        }
        assert!(refused(&"x".repeat(4097)).contains("4096"));
    }
}
