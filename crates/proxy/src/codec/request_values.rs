//! A request as expressions read it: the bytes that are forwarded, its caller and its destination.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::host::Host;
use std::borrow::Cow;
use std::net::IpAddr;
use tulle_expression::{Input, NoValue, Value, Variable, request};
use tulle_model::condition;
use tulle_model::identity::SpiffeId;

/// The parties of a request, as far as a proxy knows them.
pub trait Parties {
    /// The caller's verified identity; `None`: it has shown no certificate.
    fn source(&self) -> Option<&SpiffeId>;
    /// The caller's address; `None`: it is of this workload.
    fn address(&self) -> Option<IpAddr>;
    /// The identity of who is called; `None`: that is not decided yet.
    fn destination(&self) -> Option<&SpiffeId>;
    /// The service or gateway that is called.
    fn service(&self) -> &str;
    /// The port that is called, as policies know it.
    fn port(&self) -> u16;
}

/// The tokens of a request, for who asks for their claims.
pub trait Claims {
    /// The claims as a map; empty: no token came.
    ///
    /// # Errors
    /// They cannot be told: a token is not valid, or more than one came.
    fn claims(&self) -> Result<Value<'_>, NoValue>;
}

/// A request with one reading of its path.
#[derive(Clone, Copy)]
pub struct RequestValues<'a> {
    /// Method, as sent.
    pub method: &'a [u8],
    /// Path without query.
    pub path: &'a [u8],
    /// Host, with or without port.
    pub authority: &'a [u8],
    /// The whole head.
    pub head: &'a [u8],
    /// Caller and destination; `None`: they are not known here.
    pub parties: Option<&'a dyn Parties>,
    /// Its tokens; `None`: they are not known here.
    pub claims: Option<&'a dyn Claims>,
}

impl Input for RequestValues<'_> {
    fn read(&self, variable: Variable) -> Result<Value<'_>, NoValue> {
        let parties = || self.parties.ok_or(NoValue::Absent);
        Ok(match variable {
            request::METHOD => Value::text(self.method)?,
            request::PATH => Value::text(self.path)?,
            request::QUERY => Value::text(query(self.head))?,
            request::HOST => match Host::from_authority(self.authority).to_lower() {
                Cow::Borrowed(name) => Value::text(name)?,
                Cow::Owned(name) => Value::String(
                    String::from_utf8(name)
                        .map_err(|_| NoValue::NotText)?
                        .into(),
                ),
            },
            request::PROTOCOL => Value::string(match self.field("content-type")? {
                Some(kind) if kind.starts_with(b"application/grpc") => "grpc",
                _ => "http",
            }),
            request::SIZE => Value::Int(self.size()?),
            request::SOURCE_ADDRESS => {
                let address = parties()?.address().ok_or(NoValue::Absent)?;
                Value::String(Cow::Owned(address.to_string()))
            }
            request::DESTINATION_IDENTITY => {
                let identity = parties()?.destination().ok_or(NoValue::Absent)?;
                Value::string(identity.as_str())
            }
            request::DESTINATION_SERVICE => Value::string(parties()?.service()),
            request::DESTINATION_PORT => Value::Int(parties()?.port().into()),
            request::CLAIMS => self.claims.ok_or(NoValue::Absent)?.claims()?,
            other => {
                let value = condition::of_source(other, parties()?.source());
                return value.ok_or(NoValue::Absent);
            }
        })
    }

    fn entry(&self, _: Variable, key: &str) -> Result<Option<Value<'_>>, NoValue> {
        self.field(key)?.map(Value::text).transpose()
    }
}

impl RequestValues<'_> {
    /// The value of a header that came at most once, `_` taken for `-`: applications differ in which of
    /// several they read.
    fn field(&self, name: &str) -> Result<Option<&[u8]>, NoValue> {
        let fields = tulle_http1::headers(self.head);
        let mut same = fields.filter(|(field, _)| tulle_http1::is_same_name(field, name));
        match (same.next(), same.next()) {
            (found, None) => Ok(found.map(|(_, value)| value)),
            (_, Some(_)) => Err(NoValue::Ambiguous),
        }
    }

    fn size(&self) -> Result<i64, NoValue> {
        if let Some(length) = self.field("content-length")? {
            let text = std::str::from_utf8(length).map_err(|_| NoValue::NotText)?;
            return text.trim().parse().map_err(|_| NoValue::NotConvertible);
        }
        Ok(match self.field("transfer-encoding")? {
            Some(_) => -1,
            None => 0,
        })
    }
}

/// The query of the request line, without the `?`.
fn query(head: &[u8]) -> &[u8] {
    let target = tulle_http1::request_line(head).1;
    let mark = memchr::memchr(b'?', target);
    mark.and_then(|at| target.get(at + 1..)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_expression::{Expression, Type};

    struct Between;

    impl Parties for Between {
        fn source(&self) -> Option<&SpiffeId> {
            static ID: std::sync::OnceLock<SpiffeId> = std::sync::OnceLock::new();
            Some(
                ID.get_or_init(|| {
                    SpiffeId::parse("spiffe://cluster.local/ns/shop/sa/cart").unwrap()
                }),
            )
        }

        fn address(&self) -> Option<IpAddr> {
            Some([10, 1, 2, 3].into())
        }

        fn destination(&self) -> Option<&SpiffeId> {
            None
        }

        fn service(&self) -> &str {
            "ratings"
        }

        fn port(&self) -> u16 {
            9080
        }
    }

    fn value(source: &str, head: &str) -> Result<String, NoValue> {
        let expression = Expression::compile(source, &request::scope(), &Type::Dyn).unwrap();
        let target = tulle_http1::request_line(head.as_bytes()).1;
        let values = RequestValues {
            method: b"POST",
            path: target.split(|b| *b == b'?').next().unwrap(),
            authority: b"Ratings.Example.:9080",
            head: head.as_bytes(),
            parties: Some(&Between),
            claims: None,
        };
        expression.value(&values).map(|value| match value {
            Value::String(text) => text.into_owned(),
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn every_variable_of_a_request_has_its_value() {
        let head = "POST /a/b?c=d&e HTTP/1.1\r\nContent-Type: application/grpc+proto\r\nContent-Length: 12\r\n\
                    X-Team: a\r\nx_other: b\r\nTwice: 1\r\ntwice: 2\r\n\r\n";
        for (source, expected) in [
            ("request.method", Ok("POST")),
            ("request.path", Ok("/a/b")),
            ("request.query", Ok("c=d&e")),
            ("request.host", Ok("ratings.example")),
            ("request.protocol", Ok("grpc")),
            ("request.size", Ok("Int(12)")),
            ("request.headers['x-TEAM']", Ok("a")),
            ("request.headers['x-other']", Ok("b")),
            ("request.headers['twice']", Err(NoValue::Ambiguous)),
            ("request.headers['none']", Err(NoValue::NoSuchKey)),
            (
                "source.identity",
                Ok("spiffe://cluster.local/ns/shop/sa/cart"),
            ),
            ("source.namespace", Ok("shop")),
            ("source.service", Ok("cart")),
            ("source.address", Ok("10.1.2.3")),
            ("destination.identity", Err(NoValue::Absent)),
            ("destination.service", Ok("ratings")),
            ("destination.port", Ok("Int(9080)")),
        ] {
            assert_eq!(value(source, head), expected.map(str::to_owned), "{source}");
        }
        let bare = "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX: \u{ff}\r\n\r\n";
        assert_eq!(value("request.size", bare), Ok("Int(-1)".into()));
        assert_eq!(
            value("request.size", "GET / HTTP/1.1\r\n\r\n"),
            Ok("Int(0)".into())
        );
        assert_eq!(
            value("request.query + request.protocol", bare),
            Ok("http".into())
        );
    }
}
