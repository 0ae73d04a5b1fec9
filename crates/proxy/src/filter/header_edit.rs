//! Edits heads before they are sent: sets, adds and removes header fields.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::answered;
use tulle_http1::{edit_head, is_field_name, is_field_value, request_line};
use tulle_model::resource::{self, is_protected_header};
use tulle_net::Buf;

/// Edits of a head, compiled.
pub struct HeaderEdit {
    /// Names of fields to drop: those removed and those set anew.
    drop: Vec<String>,
    /// Fields to add: those set, then those added.
    add: Vec<(String, Vec<u8>)>,
}

impl HeaderEdit {
    /// Checks and compiles edits.
    ///
    /// # Errors
    /// A field may not be edited, or is invalid.
    pub fn compile(edit: &resource::HeaderEdit) -> Result<Self, String> {
        let mut drop = Vec::new();
        for name in edit.remove.iter().chain(edit.set.iter().map(|h| &h.name)) {
            drop.push(name_of(name)?);
        }
        let add: Result<_, String> = edit.set.iter().chain(&edit.add).map(line).collect();
        Ok(Self { drop, add: add? })
    }

    /// Changes a head.
    pub fn apply(&self, draft: &mut Draft<'_>) {
        let add: Vec<_> = self
            .add
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_slice()))
            .collect();
        let keep = |name: &[u8]| {
            !self
                .drop
                .iter()
                .any(|d| name.eq_ignore_ascii_case(d.as_bytes()))
        };
        draft.edit(None, keep, &add);
    }
}

/// Checks a field to be added.
///
/// # Errors
/// It may not be edited, or is invalid.
pub fn line(header: &resource::Header) -> Result<(String, Vec<u8>), String> {
    if !is_field_value(header.value.as_bytes()) {
        return Err(format!(
            "header {:?} has control characters in its value",
            header.name
        ));
    }
    Ok((name_of(&header.name)?, header.value.clone().into_bytes()))
}

/// Checks the name of a field to be edited.
///
/// # Errors
/// It may not be edited, or is invalid.
pub(super) fn name_of(name: &str) -> Result<String, String> {
    if !is_field_name(name.as_bytes()) {
        return Err(format!("{name:?} is no header name"));
    }
    if is_protected_header(name) {
        return Err(format!(
            "header {name:?} cannot be edited: it frames the message, belongs to one connection \
             or is the proxy's own"
        ));
    }
    Ok(name.to_ascii_lowercase())
}

/// A head that is to be sent, followed by the part of its body that is at hand.
pub struct Draft<'a> {
    message: &'a mut Buf,
    head: usize,
}

impl<'a> Draft<'a> {
    /// `message` begins with a head of `head` bytes.
    pub fn new(message: &'a mut Buf, head: usize) -> Self {
        Self { message, head }
    }

    /// The head.
    pub fn head(&self) -> &[u8] {
        self.message.as_slice().get(..self.head).unwrap_or_default()
    }

    /// Returns the part of the body that is at hand.
    pub fn body(&self) -> &[u8] {
        self.message.as_slice().get(self.head..).unwrap_or_default()
    }

    /// Returns the content of the body that is at hand, without what frames it.
    pub fn content(&self) -> Vec<u8> {
        match self.field("transfer-encoding") {
            Some(_) => answered::unchunk(self.body()).0,
            None => self.body().to_vec(),
        }
    }

    /// Puts other content in place of a body that is whole. A chunked one stays chunked, with its trailers.
    pub fn replace_content(&mut self, content: &[u8]) {
        let mut new = Buf::new();
        let length = content.len().to_string();
        let add = [("content-length", length.as_bytes())];
        let chunked = self.field("transfer-encoding").is_some();
        let room = self.message.len() + content.len() + 64;
        let out = new.storage_for(room);
        match chunked {
            true => out.extend_from_slice(self.head()),
            false => {
                let keep = |name: &[u8]| !name.eq_ignore_ascii_case(b"content-length");
                edit_head(self.head(), None, keep, &add, out);
            }
        }
        let head = new.len();
        if chunked {
            let (_, trailers) = answered::unchunk(self.body());
            let line_end = memchr::memchr(b'\n', &trailers).map_or(0, |at| at + 1);
            if !content.is_empty() {
                new.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
                new.extend_from_slice(content);
                new.extend_from_slice(b"\r\n");
            }
            new.extend_from_slice(b"0\r\n");
            new.extend_from_slice(trailers.get(line_end..).unwrap_or_default());
        } else {
            new.extend_from_slice(content);
        }
        *self.message = new;
        self.head = head;
    }

    /// Head and body.
    pub fn message(&self) -> &[u8] {
        self.message.as_slice()
    }

    /// Method of a request.
    pub fn method(&self) -> &[u8] {
        request_line(self.head()).0
    }

    /// Status of a response.
    pub fn status(&self) -> u16 {
        let digits = self.head().get(9..12).unwrap_or_default();
        let status = std::str::from_utf8(digits)
            .ok()
            .and_then(|d| d.parse().ok());
        status.unwrap_or_default()
    }

    /// Path, and query with its question mark, of a request.
    pub fn path_and_query(&self) -> (&[u8], &[u8]) {
        let target = request_line(self.head()).1;
        target.split_at(memchr::memchr(b'?', target).unwrap_or(target.len()))
    }

    /// The first field of that name.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        tulle_http1::headers(self.head())
            .find(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// Replaces the first line (without its end), drops some fields, and adds others.
    pub fn edit(
        &mut self,
        first: Option<&[u8]>,
        keep: impl FnMut(&[u8]) -> bool,
        add: &[(&str, &[u8])],
    ) {
        let added: usize = add.iter().map(|(n, v)| n.len() + v.len() + 4).sum();
        let room = self.message.len() + added + first.map_or(0, |f| f.len() + 2);
        let mut new = Buf::new();
        edit_head(self.head(), first, keep, add, new.storage_for(room));
        let head = new.len();
        new.extend_from_slice(self.body());
        *self.message = new;
        self.head = head;
    }

    /// Bytes of the head.
    pub fn head_len(&self) -> usize {
        self.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::resource::Header;

    fn header(name: &str, value: &str) -> Header {
        Header {
            name: name.into(),
            value: value.into(),
        }
    }

    #[test]
    fn set_replaces_all_and_add_appends() {
        let edit = HeaderEdit::compile(&resource::HeaderEdit {
            set: vec![header("x-a", "new")],
            add: vec![header("x-b", "more")],
            remove: vec!["x-c".into()],
        })
        .unwrap();
        let mut message = Buf::new();
        message.extend_from_slice(
            b"GET / HTTP/1.1\r\nhost: h\r\nX-A: 1\r\nx-a: 2\r\nx-b: 1\r\nX-C: 1\r\n\r\nbody",
        );
        let head = message.len() - 4;
        let mut draft = Draft::new(&mut message, head);
        edit.apply(&mut draft);
        assert_eq!(draft.body(), b"body");
        assert_eq!(
            String::from_utf8_lossy(draft.head()),
            "GET / HTTP/1.1\r\nhost: h\r\nx-b: 1\r\nx-a: new\r\nx-b: more\r\n\r\n"
        );
    }

    #[test]
    fn what_frames_a_message_cannot_be_edited() {
        for name in [
            "Content-Length",
            "transfer_encoding",
            "host",
            "connection",
            "x-tulle-reason",
            "X-Forwarded-Client-Cert",
            "a b",
            "",
            ":path",
        ] {
            let edit = resource::HeaderEdit {
                remove: vec![name.into()],
                ..Default::default()
            };
            assert!(HeaderEdit::compile(&edit).is_err(), "{name}");
        }
        let edit = resource::HeaderEdit {
            add: vec![header("x-a", "1\r\nx-b: 2")],
            ..Default::default()
        };
        assert!(HeaderEdit::compile(&edit).is_err());
    }
}
