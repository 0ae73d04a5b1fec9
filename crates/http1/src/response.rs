//! Response heads: parsing, and writing them for the client.

use std::mem::MaybeUninit;

use crate::connection::{Named, Options};
use crate::error::{BadHead, BadResponse};
use crate::field::{Field, Lines, classify};
use crate::head::{
    Cuts, Framing, MAX_HEADERS, Slots, add_lines, copy_lines, diagnose, each_line, max_bytes,
    slice, usable,
};
use crate::{BodyLength, Limits, Method, Parsed};

/// A complete and valid response head, as offsets into the buffer it was parsed from. An interim
/// (1xx) response is a head of its own, without body; the final one follows it.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    /// Bytes of the head in the buffer; the body begins here.
    pub len: usize,
    /// Status code, 100 to 999.
    pub status: u16,
    /// x of HTTP/1.x.
    pub minor: u8,
    /// Framing of the body; [`BodyLength::UntilClose`] also for a tunnel (CONNECT answered 2xx).
    pub body: BodyLength,
    /// Whether the upstream connection may carry another request once the body has ended.
    pub keep_alive: bool,
    /// 101: the connection speaks another protocol from here on.
    pub upgrade: bool,

    /// Offset of the first header line.
    fields: u32,
    /// Whether an `Upgrade` line is kept (101 and 426).
    keeps_upgrade: bool,
    /// Whether forbidden framing fields are removed.
    strip_framing: bool,
    /// Whether there is an `x-tulle-reason`.
    has_reason: bool,
    /// Whether `cuts` lacks some of the lines to leave out.
    rescan: bool,
    /// Whether `Connection` names further fields.
    named: bool,
    cuts: Cuts,
}

/// Changes to a response head on its way.
#[derive(Copy, Clone, Debug, Default)]
pub struct ResponseEdit<'a> {
    /// Header lines to append, names in lower case. They are not compared with those present.
    pub add: &'a [(&'a str, &'a [u8])],
    /// Tell the client that the connection ends after this response. It has no effect on 1xx.
    pub close: bool,
    /// Tell a client that speaks HTTP/1.0 and asked for it that the connection stays open.
    pub keep_alive_1_0: bool,
    /// Leave out `x-tulle-reason`: the sender is no proxy of the mesh, so it is forged.
    pub strip_reason: bool,
}

/// Looks for a response head at the start of `buf`, the answer to a request with `request_method`.
pub fn parse_response(
    buf: &[u8],
    limits: &Limits,
    request_method: Method,
) -> Result<Parsed<ResponseHead>, BadResponse> {
    if matches!(buf.first(), Some(b'\r' | b'\n')) {
        return Err(BadResponse::StatusLine);
    }
    let max = max_bytes(limits);
    let mut slots: Slots<'_> = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_response_with_uninit_headers(&mut response, buf, usable(&mut slots, limits))
    {
        Ok(httparse::Status::Complete(len)) if len <= max => {
            read(buf, len, &response, request_method)
        }
        Ok(httparse::Status::Partial) if buf.len() < max => Ok(Parsed::Partial),
        Ok(_) => Err(BadHead::TooLarge.into()),
        Err(error) => Err(refuse(buf, error)),
    }
}

fn read(
    buf: &[u8],
    len: usize,
    response: &httparse::Response<'_, '_>,
    request_method: Method,
) -> Result<Parsed<ResponseHead>, BadResponse> {
    let (Some(status), Some(minor)) = (response.code, response.version) else {
        return Err(BadResponse::StatusLine);
    };
    if status < 100 {
        return Err(BadResponse::Status);
    }
    let tunnel = request_method == Method::Connect && (200..300).contains(&status);
    let bodiless = status < 200 || status == 204;
    // RFC 9110, sections 8.6 and 9.3.6, RFC 9112, section 6.1: this response must not carry framing
    // fields, and a client must not trust them.
    let strip_framing = bodiless || tunnel;
    let keeps_upgrade = status == 101 || status == 426;

    let mut framing = Framing::default();
    let mut options = Options::default();
    let mut cuts = Cuts::default();
    let mut has_upgrade = false;
    let mut has_reason = false;

    let fields = each_line(buf, len, response.headers, |header, line| {
        let cut = match classify(header.name.as_bytes()) {
            Field::ContentLength => {
                framing.content_length(header.value)?;
                strip_framing
            }
            Field::TransferEncoding => {
                framing.transfer_encoding(header.value)?;
                strip_framing
            }
            Field::Connection => {
                options.read(header.value)?;
                true
            }
            Field::KeepAlive | Field::ProxyConnection => true,
            Field::Upgrade => {
                has_upgrade = true;
                !keeps_upgrade
            }
            Field::Reason => {
                has_reason = true;
                false
            }
            _ => false,
        };
        if cut {
            cuts.push(line);
        }
        Ok::<(), BadResponse>(())
    })?;

    let framed = framing.finish(minor)?;
    let body = if tunnel {
        BodyLength::UntilClose
    } else if bodiless || status == 304 || request_method == Method::Head {
        BodyLength::None
    } else {
        framed.unwrap_or(BodyLength::UntilClose)
    };
    // A server that announces a body where none is allowed may send it: do not reuse the
    // connection.
    let announced = matches!(framed, Some(BodyLength::Chunked))
        || matches!(framed, Some(BodyLength::Length(length)) if length > 0);
    let keep_alive = !options.close
        && (minor == 1 || options.keep_alive)
        && body != BodyLength::UntilClose
        && status != 101
        && !(bodiless && announced);
    Ok(Parsed::Complete(ResponseHead {
        len,
        status,
        minor,
        body,
        keep_alive,
        upgrade: status == 101,
        fields: fields as u32,
        keeps_upgrade: keeps_upgrade && has_upgrade,
        strip_framing,
        has_reason,
        rescan: cuts.overflow() || options.named > 0,
        named: options.named > 0,
        cuts,
    }))
}

impl ResponseHead {
    /// The value of `x-tulle-reason`, if it is there. `head` is as in [`Self::write`].
    pub fn reason<'a>(&self, head: &'a [u8]) -> Option<&'a [u8]> {
        if !self.has_reason {
            return None;
        }
        let mut fields = crate::headers(head);
        let reason = fields.find(|(name, _)| matches!(classify(name), Field::Reason));
        reason.map(|(_, value)| value)
    }

    /// Writes the head for the client: version HTTP/1.1 (RFC 9112, section 2.3: a proxy sends its
    /// own), the status and reason as received, fields of the upstream connection removed, and
    /// `edit` applied.
    ///
    /// `head` is the buffer that was parsed, or its first [`len`](Self::len) bytes.
    pub fn write(&self, head: &[u8], edit: &ResponseEdit<'_>, out: &mut Vec<u8>) {
        const CODE_END: usize = "HTTP/1.1 200".len();
        let fields = self.fields as usize;
        out.extend_from_slice(b"HTTP/1.1");
        out.extend_from_slice(slice(head, "HTTP/1.1".len(), CODE_END));
        // The space after the code is required, though some servers leave it out.
        if head.get(CODE_END) == Some(&b'\r') {
            out.push(b' ');
        }
        out.extend_from_slice(slice(head, CODE_END, fields));
        let strip_reason = edit.strip_reason && self.has_reason;
        if self.rescan || strip_reason {
            let lines = slice(head, fields, self.len);
            let stripped = |name: &[u8]| strip_reason && classify(name) == Field::Reason;
            let named = match self.named {
                true => Named::from_lines(Lines::new(lines)),
                false => Named::default(),
            };
            copy_lines(
                lines,
                |name| self.keeps(&named, name) && !stripped(name),
                out,
            );
        } else {
            self.cuts.copy(head, fields, self.len - 2, out);
        }
        let close = edit.close && self.status >= 200;
        let keep_alive = edit.keep_alive_1_0 && !close && self.status >= 200;
        out.extend_from_slice(
            match (self.keeps_upgrade || self.upgrade, close, keep_alive) {
                (false, false, false) => b"",
                (false, true, _) => b"connection: close\r\n",
                (false, false, true) => b"connection: keep-alive\r\n",
                (true, true, _) => b"connection: close, upgrade\r\n",
                (true, false, true) => b"connection: keep-alive, upgrade\r\n",
                (true, false, false) => b"connection: upgrade\r\n",
            },
        );
        add_lines(edit.add, out);
        out.extend_from_slice(b"\r\n");
    }

    /// Decides on the slow path, as `read` does line by line.
    fn keeps(&self, named: &Named<'_>, name: &[u8]) -> bool {
        match classify(name) {
            Field::Connection | Field::KeepAlive | Field::ProxyConnection => false,
            Field::ContentLength | Field::TransferEncoding => !self.strip_framing,
            Field::Upgrade => self.keeps_upgrade,
            _ => !named.holds(name),
        }
    }
}

/// Names the fault of a head that `httparse` refused.
#[cold]
fn refuse(buf: &[u8], error: httparse::Error) -> BadResponse {
    use httparse::Error;
    match error {
        Error::Status => BadResponse::Status,
        Error::Version
            if buf.starts_with(b"HTTP/") && buf.get(5).is_some_and(u8::is_ascii_digit) =>
        {
            BadResponse::Version
        }
        Error::Version | Error::Token => BadResponse::StatusLine,
        _ => diagnose(buf, error).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_says_what_the_proxy_decided() {
        let ok = "200 OK\r\nContent-Length: 0\r\nConnection: x";
        let upgrade = "426 x\r\nUpgrade: y\r\nContent-Length: 0";
        let interim = "103 x\r\nLink: y";
        let cases = [
            (ok, false, false, ""),
            (ok, true, false, "connection: close\r\n"),
            (ok, true, true, "connection: close\r\n"),
            (ok, false, true, "connection: keep-alive\r\n"),
            (upgrade, false, false, "connection: upgrade\r\n"),
            (upgrade, true, false, "connection: close, upgrade\r\n"),
            (upgrade, false, true, "connection: keep-alive, upgrade\r\n"),
            (interim, true, false, ""),
            (interim, false, true, ""),
        ];
        for (lines, close, keep_alive_1_0, expected) in cases {
            let data = format!("HTTP/1.1 {lines}\r\n\r\n");
            let limits = Limits::default();
            let Ok(Parsed::Complete(head)) = parse_response(data.as_bytes(), &limits, Method::Get)
            else {
                panic!("refused");
            };
            let edit = ResponseEdit {
                add: &[("a", b"b")],
                close,
                keep_alive_1_0,
                strip_reason: close,
            };
            let mut out = Vec::new();
            head.write(data.as_bytes(), &edit, &mut out);
            let kept = data.replace("Connection: x\r\n", "");
            let kept = kept.strip_suffix("\r\n").unwrap();
            let expected = format!("{kept}{expected}a: b\r\n\r\n");
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn a_forged_reason_is_left_out_and_a_true_one_kept() {
        let data = b"HTTP/1.1 200 OK\r\nX-Tulle-Reason: a\r\nb: c\r\nx_tulle_reason: d\r\n\r\n";
        let limits = Limits::default();
        let Ok(Parsed::Complete(head)) = parse_response(data, &limits, Method::Get) else {
            panic!("refused");
        };
        for (strip_reason, expected) in [
            (false, data.as_slice()),
            (true, b"HTTP/1.1 200 OK\r\nb: c\r\n\r\n"),
        ] {
            let edit = ResponseEdit {
                strip_reason,
                ..Default::default()
            };
            let mut out = Vec::new();
            head.write(data, &edit, &mut out);
            assert_eq!(out, expected);
        }
    }
}
