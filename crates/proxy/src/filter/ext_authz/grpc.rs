//! The check over gRPC (`envoy.service.auth.v3.Authorization/Check`), as an exchange whose head is
//! written as HTTP/1.1's; the connection carries it as HTTP/2.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use super::{Asker, Verdict, content};
use crate::codec::answered::Answered;
use crate::filter::header_edit::Draft;
use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use prost::Message;
use std::collections::BTreeMap;
use tulle_api::ext_authz::attribute_context::{HttpRequest, Peer, Request};
use tulle_api::ext_authz::check_response::HttpResponse;
use tulle_api::ext_authz::{
    Address, AttributeContext, CheckRequest, CheckResponse, HeaderValueOption, SocketAddress,
};
use tulle_http1::{is_field_name, is_field_value};
use tulle_model::resource::is_protected_header;

const HEAD: &str = "POST /envoy.service.auth.v3.Authorization/Check HTTP/1.1\r\n\
                    content-type: application/grpc\r\nte: trailers\r\n";
/// Compressed or not, and the length.
const PREFIX: usize = 5;
/// `HeaderAppendAction.ADD_IF_ABSENT`
const ADD_IF_ABSENT: i32 = 1;

/// Builds the request of a check.
pub(super) fn request(
    service: &str,
    draft: &Draft<'_>,
    asker: &Asker,
    body_bytes: usize,
) -> Vec<u8> {
    let message = question(draft, asker, body_bytes).encode_to_vec();
    let mut out = format!(
        "{HEAD}host: {service}\r\ncontent-length: {}\r\n\r\n",
        PREFIX + message.len()
    )
    .into_bytes();
    out.push(0);
    // A head and 1 MiB of a body are far below 4 GiB.
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&message);
    out
}

fn question(draft: &Draft<'_>, asker: &Asker, body_bytes: usize) -> CheckRequest {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in tulle_http1::headers(draft.head()) {
        let value = text(value);
        headers
            .entry(text(name).to_ascii_lowercase())
            .and_modify(|known| {
                known.push(',');
                known.push_str(&value);
            })
            .or_insert(value);
    }
    let (path, query) = draft.path_and_query();
    let size = headers.get("content-length").and_then(|l| l.parse().ok());
    let body = content(draft, body_bytes);
    let (body, raw_body) = match String::from_utf8(body) {
        Ok(body) => (body, Vec::new()),
        Err(raw) => (String::new(), raw.into_bytes()),
    };
    let http = HttpRequest {
        id: headers.get("x-request-id").cloned().unwrap_or_default(),
        method: text(draft.method()),
        path: text(path) + &text(query),
        host: headers.get("host").cloned().unwrap_or_default(),
        scheme: "http".into(),
        size: size.unwrap_or(-1),
        protocol: "HTTP/1.1".into(),
        headers,
        body,
        raw_body,
    };
    let address = asker.address.map(|ip| Address {
        socket_address: Some(SocketAddress {
            address: ip.to_string(),
            // Many requests, perhaps of several clients, share the connection, so its port means
            // nothing.
            port_value: 0,
        }),
    });
    CheckRequest {
        attributes: Some(AttributeContext {
            source: Some(Peer {
                address,
                principal: asker.identity.clone().unwrap_or_default(),
            }),
            destination: Some(Peer {
                address: None,
                principal: asker.destination.clone(),
            }),
            request: Some(Request { http: Some(http) }),
        }),
    }
}

fn bad(text: impl Into<String>) -> Failure {
    Failure::new(Reason::BadResponse, text)
}

/// Reads the verdict in an answer.
///
/// # Errors
/// The answer is not a verdict.
pub(super) fn verdict(answer: &Answered) -> Result<Verdict, Failure> {
    if answer.status != 200 {
        return Err(bad(format!("it answered {} to gRPC", answer.status)));
    }
    // The status follows the content, or is in the head when there is none.
    let fields =
        || tulle_http1::headers(&answer.trailers).chain(tulle_http1::headers(&answer.head));
    let status = fields().find(|(name, _)| name.eq_ignore_ascii_case(b"grpc-status"));
    match status {
        Some((_, b"0")) => {}
        Some((_, code)) => {
            let code = String::from_utf8_lossy(code);
            return Err(bad(format!("gRPC status {code}")));
        }
        None => return Err(bad("it answered without a gRPC status")),
    }
    let message = match answer.body.as_slice() {
        [0, a, b, c, d, message @ ..]
            if u32::from_be_bytes([*a, *b, *c, *d]) as usize == message.len() =>
        {
            message
        }
        _ => return Err(bad("its answer is not one uncompressed gRPC message")),
    };
    let message = CheckResponse::decode(message).map_err(|e| bad(e.to_string()))?;
    let code = message.status.map_or(0, |s| s.code);
    match (code, message.http_response) {
        (0, Some(HttpResponse::OkResponse(ok))) => {
            if !(ok.query_parameters_to_set.is_empty() && ok.query_parameters_to_remove.is_empty())
            {
                return Err(bad("it changes the query, which is not supported"));
            }
            let mut verdict = Edits::default();
            for option in &ok.headers {
                verdict.add(option)?;
            }
            let remove = ok.headers_to_remove.into_iter().map(|name| usable(&name));
            let response = ok.response_headers_to_add.iter().map(field);
            Ok(Verdict::Allowed {
                set: verdict.set,
                append: verdict.append,
                if_absent: verdict.if_absent,
                remove: remove.collect::<Result<_, _>>()?,
                response: response.collect::<Result<_, _>>()?,
            })
        }
        (0, _) => Ok(Verdict::pass()),
        (_, Some(HttpResponse::DeniedResponse(denied))) => {
            let status = denied.status.map_or(403, |s| s.code);
            let mut headers: Vec<(String, Vec<u8>)> = Vec::new();
            for option in &denied.headers {
                headers.push(field(option)?);
            }
            let kind = headers.iter().position(|(name, _)| name == "content-type");
            let kind = kind.map(|at| headers.remove(at).1);
            let kind = kind.and_then(|kind| String::from_utf8(kind).ok());
            let kind = kind.unwrap_or_else(|| "text/plain; charset=utf-8".into());
            Ok(Verdict::Denied(LocalResponse {
                status: u16::try_from(status)
                    .ok()
                    .filter(|s| matches!(s, 300..=599))
                    .unwrap_or(403),
                headers,
                body: (!denied.body.is_empty()).then(|| (kind, denied.body.into_bytes())),
            }))
        }
        (_, _) => Ok(Verdict::Denied(LocalResponse {
            status: 403,
            ..Default::default()
        })),
    }
}

#[derive(Default)]
struct Edits {
    set: Vec<(String, Vec<u8>)>,
    append: Vec<(String, Vec<u8>)>,
    if_absent: Vec<(String, Vec<u8>)>,
}

impl Edits {
    fn add(&mut self, option: &HeaderValueOption) -> Result<(), Failure> {
        let list = match (
            option.append.as_ref().map(|a| a.value),
            option.append_action,
        ) {
            (Some(true), _) => &mut self.append,
            (_, ADD_IF_ABSENT) => &mut self.if_absent,
            _ => &mut self.set,
        };
        list.push(field(option)?);
        Ok(())
    }
}

fn usable(name: &str) -> Result<String, Failure> {
    match is_field_name(name.as_bytes()) && !is_protected_header(name) {
        true => Ok(name.to_ascii_lowercase()),
        false => Err(bad(format!(
            "it wants to change {name:?}, which it may not"
        ))),
    }
}

fn field(option: &HeaderValueOption) -> Result<(String, Vec<u8>), Failure> {
    let header = option.header.clone().unwrap_or_default();
    let value = match header.raw_value.is_empty() {
        true => header.value.into_bytes(),
        false => header.raw_value,
    };
    if !is_field_value(&value) {
        return Err(bad(format!(
            "its header {:?} has control characters",
            header.key
        )));
    }
    Ok((usable(&header.key)?, value))
}
