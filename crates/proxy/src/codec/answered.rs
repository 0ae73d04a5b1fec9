//! A response that is held whole.

/// An answer.
pub struct Answered {
    /// Status of the final response.
    pub status: u16,
    /// Its head.
    pub head: Vec<u8>,
    /// Its content.
    pub body: Vec<u8>,
    /// Header lines after its content, as a head with some first line.
    pub trailers: Vec<u8>,
}

/// Content and trailers of a chunked body that `Body` has checked, or of its beginning.
pub fn unchunk(framed: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut content = Vec::with_capacity(framed.len());
    let mut rest = framed;
    loop {
        let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
        let (line, after) = rest.split_at(end);
        let digits = line.iter().take_while(|b| b.is_ascii_hexdigit());
        let size = digits.fold(0usize, |size, &digit| {
            let digit = char::from(digit).to_digit(16).unwrap_or_default();
            size.saturating_mul(16).saturating_add(digit as usize)
        });
        if size == 0 {
            return (content, [&b"trailers\r\n"[..], after].concat());
        }
        let size = size.min(after.len());
        let (data, after) = after.split_at(size);
        content.extend_from_slice(data);
        // CRLF after the data.
        rest = after.get(2..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::unchunk;

    #[test]
    fn chunks_are_joined() {
        let framed = b"3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\ngrpc-status: 0\r\n\r\n";
        let (content, trailers) = unchunk(framed);
        assert_eq!(content, b"abc0123456789");
        assert_eq!(trailers, b"trailers\r\ngrpc-status: 0\r\n\r\n");
        let fields: Vec<_> = tulle_http1::headers(&trailers).collect();
        assert_eq!(fields, [(&b"grpc-status"[..], &b"0"[..])]);
        assert_eq!(unchunk(b"0\r\n\r\n").0, b"");
        assert_eq!(unchunk(b"").0, b"");
        assert_eq!(unchunk(b"ffffffffffffffffffff\r\nab").0, b"ab");
    }
}
