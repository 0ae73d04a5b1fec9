//! Which lines of the access log are written, and the text of one whose format is not JSON.

use super::access_log::{ExchangeEnd, LogEntry};
use crate::codec::host::Host;
use crate::codec::request_values::RequestValues;
use std::fmt::{self, Write};
use std::sync::Arc;
use tulle_expression::{Error, Expression, Input, NoValue, Value, Variable, request};
use tulle_model::condition;
use tulle_model::log_format::{LogField, LogFormat, Piece};
use tulle_model::resource::{EVERY_REQUEST_PPM, MeshSettings};

/// The settings of the access log, compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRules {
    sampling_ppm: u32,
    only_errors: bool,
    /// Lines go to standard output.
    pub(super) written: bool,
    /// Lines go to a collector.
    pub(super) exported: bool,
    /// `None`: JSON.
    pub(super) format: Option<LogFormat>,
    when: Option<Compiled>,
    fields: Vec<(String, Compiled)>,
}

/// An expression, equal to those of the same source.
#[derive(Debug, Clone)]
struct Compiled {
    source: String,
    expression: Arc<Expression>,
}

impl PartialEq for Compiled {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Compiled {}

impl Compiled {
    fn new(source: &str, compile: fn(&str) -> Result<Expression, Error>) -> Result<Self, String> {
        let expression = Arc::new(compile(source).map_err(|e| e.to_string())?);
        let source = source.to_owned();
        Ok(Self { source, expression })
    }
}

impl LogRules {
    /// Compiles the settings; `None`: lines go nowhere.
    ///
    /// # Errors
    /// The format cannot be read.
    pub fn compile(mesh: &MeshSettings) -> Result<Option<Self>, String> {
        let lines = &mesh.access_log_lines;
        let format = Some(lines.format.as_str()).filter(|format| !format.is_empty());
        let format = format.map(LogFormat::parse).transpose();
        let when = Some(lines.when.as_str()).filter(|source| !source.is_empty());
        let when = when
            .map(|source| Compiled::new(source, condition::log))
            .transpose();
        let fields = lines.fields.iter().map(|field| {
            let compiled = Compiled::new(&field.expression, condition::text);
            let compiled =
                compiled.map_err(|e| format!("accessLogLines.fields: {}: {e}", field.name))?;
            Ok((field.name.clone(), compiled))
        });
        let compiled = Self {
            when: when.map_err(|e| format!("accessLogLines.when: {e}"))?,
            fields: fields.collect::<Result<_, String>>()?,
            sampling_ppm: lines.sampling_ppm,
            only_errors: lines.only_errors,
            written: mesh.access_log,
            exported: mesh.otlp.as_ref().is_some_and(|otlp| otlp.access_log),
            format: format.map_err(|e| format!("accessLogLines.format: {e}"))?,
        };
        Ok(Some(compiled).filter(|lines| lines.written || lines.exported))
    }

    /// Whether a request with this id is logged. All proxies answer alike, so that the lines of both sides of a hop are
    /// there, or neither.
    pub fn samples(&self, id: &[u8]) -> bool {
        self.sampling_ppm >= EVERY_REQUEST_PPM || self.samples_number(spread(id))
    }

    /// Whether something without an id is logged.
    pub fn samples_number(&self, number: u64) -> bool {
        number % u64::from(EVERY_REQUEST_PPM) < u64::from(self.sampling_ppm)
    }

    /// Whether the end of an exchange is logged. A condition without a value does not hold.
    pub(super) fn has(&self, ended: &ExchangeEnd, entry: &LogEntry<'_>) -> bool {
        let failed = !ended.reason.is_response() || ended.answer.as_http() >= 500;
        let mut when = self.when.iter();
        (failed || !self.only_errors)
            && when.all(|w| w.expression.condition(&Logged(entry)) == Ok(true))
    }

    /// The further fields of a request's line. One without a value is left out.
    pub fn fields(&self, request: &RequestValues<'_>) -> Vec<(String, String)> {
        let value = |(name, compiled): &(String, Compiled)| {
            Some((name.clone(), compiled.expression.text(request).ok()?))
        };
        self.fields.iter().filter_map(value).collect()
    }
}

/// A line of the log as conditions read it.
struct Logged<'a>(&'a LogEntry<'a>);

impl Input for Logged<'_> {
    fn read(&self, variable: Variable) -> Result<Value<'_>, NoValue> {
        let entry = self.0;
        let count = |number: u64| {
            i64::try_from(number)
                .map(Value::Int)
                .map_err(|_| NoValue::Overflow)
        };
        let text = |text| Value::string(if text == "-" { "" } else { text });
        let (path, query) = entry.path.split_once('?').unwrap_or((entry.path, ""));
        Ok(match variable {
            request::METHOD => text(entry.method),
            request::PATH => text(path),
            request::QUERY => Value::string(query),
            request::HOST => {
                let host = Host::from_authority(entry.authority.as_bytes());
                Value::String(host.to_text().into())
            }
            request::PROTOCOL => Value::string(match entry.grpc_status {
                Some(_) => "grpc",
                None => "http",
            }),
            request::SIZE => count(entry.bytes_received)?,
            request::SOURCE_IDENTITY => text(entry.source_principal),
            request::DESTINATION_IDENTITY => text(entry.destination_principal),
            request::DESTINATION_SERVICE => text(entry.upstream_cluster),
            request::RESPONSE_CODE => Value::Int(entry.response_code.into()),
            request::RESPONSE_REASON => text(entry.response_flags),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "milliseconds of a request fit"
            )]
            request::RESPONSE_DURATION => Value::Int(entry.duration as i64),
            request::RESPONSE_SIZE => count(entry.bytes_sent)?,
            _ => return Err(NoValue::Absent),
        })
    }
}

/// Makes a number of an id, by FNV-1a: proxies of other versions and machines make the same.
fn spread(id: &[u8]) -> u64 {
    let hash = id.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The low bits of FNV depend on the low bits of the bytes alone.
    hash ^ (hash >> 32)
}

/// Writes a line. Values that a client has chosen cannot end it, or a field in quotes.
pub(super) fn line(format: &LogFormat, entry: &LogEntry<'_>) -> String {
    let mut line = Line(String::with_capacity(256));
    for piece in format.pieces() {
        // Writing to memory does not fail.
        let _ = match piece {
            Piece::Text(text) => line.0.write_str(text),
            Piece::Field(field) => write_field(&mut line, *field, entry),
        };
    }
    line.0.push('\n');
    line.0
}

/// A line under way, into which values are written with escapes.
struct Line(String);

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '"' | '\\' => write!(self.0, "\\x{:02X}", u32::from(c))?,
                c if c.is_control() => write!(self.0, "\\x{:02X}", u32::from(c))?,
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

fn write_field(line: &mut Line, field: LogField, entry: &LogEntry<'_>) -> fmt::Result {
    let number = |line: &mut Line, number: u64| write!(line, "{number}");
    let ms = |line: &mut Line, ms: f64| write!(line, "{ms:.3}");
    let text =
        |line: &mut Line, text: &str| line.write_str(if text.is_empty() { "-" } else { text });
    match field {
        LogField::StartTime => text(line, &entry.start_time),
        LogField::Method => text(line, entry.method),
        LogField::Path => text(line, entry.path),
        LogField::Authority => text(line, entry.authority),
        LogField::Protocol => text(line, entry.protocol),
        LogField::ResponseCode => number(line, entry.response_code.into()),
        LogField::GrpcStatus => match entry.grpc_status {
            Some(status) => number(line, status.into()),
            None => text(line, ""),
        },
        LogField::ResponseFlags => text(line, entry.response_flags),
        LogField::Duration => ms(line, entry.duration),
        LogField::TimeToFirstByte => ms(line, entry.time_to_first_byte),
        LogField::UpstreamServiceTime => match entry.upstream_service_time {
            Some(time) => ms(line, time),
            None => text(line, ""),
        },
        LogField::UpstreamCluster => text(line, entry.upstream_cluster),
        LogField::UpstreamHost => text(line, &entry.upstream_host),
        LogField::BytesReceived => number(line, entry.bytes_received),
        LogField::BytesSent => number(line, entry.bytes_sent),
        LogField::ForwardedFor => text(line, entry.x_forwarded_for),
        LogField::UserAgent => text(line, entry.user_agent),
        LogField::RequestId => text(line, entry.request_id),
        LogField::RequestedServerName => text(line, entry.requested_server_name),
        LogField::SourcePrincipal => text(line, entry.source_principal),
        LogField::DestinationPrincipal => text(line, entry.destination_principal),
        LogField::ConnectionSecurityPolicy => text(line, entry.connection_security_policy),
        LogField::PolicyAudit => text(line, entry.policy_audit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(ppm: u32) -> LogRules {
        let mut mesh = MeshSettings {
            access_log: true,
            ..MeshSettings::default()
        };
        mesh.access_log_lines.sampling_ppm = ppm;
        LogRules::compile(&mesh).unwrap().unwrap()
    }

    #[test]
    fn a_share_of_ids_is_sampled_and_each_id_always_or_never() {
        let id = |n: u32| format!("0f1e2d3c-4b5a-4978-8123-{n:012x}");
        let count = |lines: &LogRules| {
            (0..10_000)
                .filter(|n| lines.samples(id(*n).as_bytes()))
                .count()
        };
        let tenth = sampled(100_000);
        let found = count(&tenth);
        assert!((800..1200).contains(&found), "{found}");
        assert_eq!(count(&tenth), found);
        assert_eq!(count(&sampled(0)), 0);
        assert_eq!(count(&sampled(1_000_000)), 10_000);
    }

    #[test]
    fn what_a_client_chooses_ends_neither_a_line_nor_a_field() {
        let mut written = Line(String::new());
        written.write_str("a\"b\\c\nd\u{7f}é").unwrap();
        assert_eq!(written.0, "a\\x22b\\x5Cc\\x0Ad\\x7Fé");
    }
}
