//! Writes the head of a request for the next hop. Every request passes here, however it came in.
//! This is the one place where identity headers are removed and set: `x-forwarded-client-cert` and
//! `x-tulle-…` always (`tulle_http1`), and the headers of claims where tokens are checked
//! (`claims`; the filter that checks tokens adds them anew).
//!
//! Pure; it needs only `trace_context` of the proxy (the fuzz target takes these two files alone).

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::telemetry::trace_context::{self, Fields, Onward};
use tulle_http1::{Body, RequestEdit, RequestHead};

/// Fields that the proxy writes into a request, and fields that nobody else may write.
pub(super) struct Outgoing<'a> {
    /// The id for a request without one.
    pub(super) request_id: &'a [u8],
    pub(super) client_cert: Option<&'a [u8]>,
    pub(super) forwarded_for: Option<&'a [u8]>,
    /// The scheme of a client outside the mesh. The client's own fields about scheme and host are
    /// dropped.
    pub(super) scheme: Option<&'a [u8]>,
    pub(super) onward: Option<Onward>,
    /// Fields that only the filter for tokens may set.
    pub(super) claims: &'a [String],
}

impl Outgoing<'_> {
    /// Writes `head`, which was parsed from `bytes`. `storage` gets the number of added bytes and
    /// returns the buffer.
    pub(super) fn write<'o>(
        &self,
        head: &RequestHead,
        bytes: &[u8],
        storage: impl FnOnce(usize) -> &'o mut Vec<u8>,
    ) {
        let fields = self.onward.map(|onward| onward.fields());
        let mut add: [(&str, &[u8]); 5 + trace_context::FIELDS] = Default::default();
        let mut count = 0;
        let mut places = add.iter_mut();
        let mut put = |name, value| {
            if let Some(place) = places.next() {
                *place = (name, value);
                count += 1;
            }
        };
        if head.request_id.is_empty() {
            put("x-request-id", self.request_id);
        }
        if let Some(certificate) = self.client_cert {
            put("x-forwarded-client-cert", certificate);
        }
        if let Some(client) = self.forwarded_for {
            put("x-forwarded-for", client);
        }
        if let Some(scheme) = self.scheme {
            put("x-forwarded-proto", scheme);
            // A request of HTTP/1.0 may have no host.
            if !head.authority.is_empty() {
                put("x-forwarded-host", head.authority.slice(bytes));
            }
        }
        for (name, value) in fields.iter().flat_map(Fields::iter) {
            put(name, value);
        }
        let edit = RequestEdit {
            add: add.get(..count).unwrap_or_default(),
            drop_forwarded_origin: self.scheme.is_some(),
            drop: self.onward.map_or(&[], |onward| onward.replaces()),
            forged: self.claims,
            ..Default::default()
        };
        let added = edit.add.iter().map(|(n, v)| n.len() + v.len()).sum();
        head.write(bytes, &edit, storage(added));
    }

    /// Follows the body. It may have no trailers where tokens are checked: a server that merges
    /// trailers into headers would take a client's field for the filter's.
    pub(super) fn body(&self, head: &RequestHead) -> Body {
        match self.claims {
            [] => Body::new(head.body),
            _ => Body::new(head.body).without_trailers(),
        }
    }
}
