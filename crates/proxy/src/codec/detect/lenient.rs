//! Readers of request lines modelled on what HTTP servers accept, each as lenient as the server is
//! in any of its modes. They are slow and obvious: the detector must never let pass a line that one
//! of them reads. (The fuzz target uses this file, too.)

/// A server's way to read.
pub(super) type Reader = fn(&[u8]) -> bool;

/// All of them, by the server they are modelled on.
pub(super) const READERS: [(&str, Reader); 5] = [
    ("llhttp of Node.js, lenient", node),
    ("net/http of Go", go),
    ("http.server of Python", python),
    ("nginx", nginx),
    ("Netty", netty),
];

/// Returns the first reader that sees a complete request line at the beginning of the client's
/// bytes; also behind the header of a load balancer, which some servers are configured to expect.
pub(super) fn read_by(bytes: &[u8]) -> Option<&'static str> {
    let mut starts = vec![bytes];
    if bytes.starts_with(b"PROXY ")
        && let Some(end) = bytes.iter().position(|&b| b == b'\n')
    {
        starts.push(&bytes[end + 1..]);
    }
    if bytes.starts_with(b"\r\n\r\n\0\r\nQUIT\n") && bytes.len() >= 16 {
        let length = usize::from(bytes[14]) << 8 | usize::from(bytes[15]);
        starts.extend(bytes.get(16 + length..));
    }
    let reads = |reader: Reader| starts.iter().any(|start| reader(start));
    let found = READERS.into_iter().find(|(_, reader)| reads(*reader));
    found.map(|(name, _)| name)
}

/// The text before the first LF, without a CR before it.
fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|&b| b == b'\n')?;
    let line = &bytes[..end];
    Some(line.strip_suffix(b"\r").unwrap_or(line))
}

fn skip(bytes: &[u8], skipped: impl Fn(u8) -> bool) -> &[u8] {
    let start = bytes.iter().position(|&b| !skipped(b));
    &bytes[start.unwrap_or(bytes.len())..]
}

/// `1.1` and the like.
fn is_number(text: &[u8]) -> bool {
    let mut parts = text.split(|&b| b == b'.');
    let digits = |part: Option<&[u8]>| {
        part.is_some_and(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit))
    };
    digits(parts.next()) && digits(parts.next()) && parts.next().is_none()
}

/// Empty lines before; a method it knows; a line may end with CR alone; other protocols' names.
fn node(bytes: &[u8]) -> bool {
    let bytes = skip(bytes, |b| matches!(b, b'\r' | b'\n'));
    let Some(end) = bytes.iter().position(|&b| matches!(b, b'\r' | b'\n')) else {
        return false;
    };
    let mut words = bytes[..end].split(|&b| b == b' ').filter(|w| !w.is_empty());
    let (Some(method), Some(_), Some(version)) = (words.next(), words.next(), words.next()) else {
        return false;
    };
    let named = [&b"HTTP/"[..], b"RTSP/", b"ICE/"];
    let mut numbers = named.iter().filter_map(|name| version.strip_prefix(*name));
    let known: [&[u8]; 8] = [
        b"GET",
        b"POST",
        b"PUT",
        b"DELETE",
        b"OPTIONS",
        b"CONNECT",
        b"M-SEARCH",
        b"PRI",
    ];
    // Methods of RTSP need its target; those of HTTP, with another name, a path.
    known.contains(&method)
        && words.next().is_none()
        && numbers.any(is_number)
        && (version.starts_with(b"HTTP/") || bytes.contains(&b'/'))
        && (version.starts_with(b"HTTP/") || is_path(&bytes[..end]))
}

fn is_path(line: &[u8]) -> bool {
    let target = line.split(|&b| b == b' ').filter(|w| !w.is_empty()).nth(1);
    target.is_some_and(|t| {
        t.starts_with(b"/") || t.starts_with(b"*") || t.windows(3).any(|w| w == b"://")
    })
}

/// Three words, any token as the method, one version's name.
fn go(bytes: &[u8]) -> bool {
    let Some(line) = line(bytes) else {
        return false;
    };
    let mut words = line.splitn(3, |&b| b == b' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    method.is_some_and(|m| !m.is_empty() && m.iter().all(|b| b.is_ascii_graphic()))
        && target.is_some_and(|t| !t.is_empty())
        && version
            .and_then(|v| v.strip_prefix(b"HTTP/"))
            .is_some_and(is_number)
}

/// Any white space of its character set between words, anything as a word; HTTP/0.9 for GET.
fn python(bytes: &[u8]) -> bool {
    let Some(line) = line(bytes) else {
        return false;
    };
    let space = |b: &u8| matches!(*b, 9..=13 | 0x1c..=0x20 | 0x85 | 0xa0);
    let words: Vec<&[u8]> = line.split(space).filter(|w| !w.is_empty()).collect();
    match words.as_slice() {
        [method, _] => *method == b"GET",
        [_, .., version] if words.len() >= 3 => {
            version.strip_prefix(b"HTTP/").is_some_and(is_number)
        }
        _ => false,
    }
}

/// Empty lines before, several spaces, lines that end with LF; HTTP/0.9 for any method.
fn nginx(bytes: &[u8]) -> bool {
    let bytes = skip(bytes, |b| matches!(b, b'\r' | b'\n'));
    let Some(line) = line(bytes) else {
        return false;
    };
    let mut words = line.split(|&b| b == b' ').filter(|w| !w.is_empty());
    let method = |m: &[u8]| {
        m.iter()
            .all(|b| b.is_ascii_uppercase() || matches!(b, b'_' | b'-'))
            && line.starts_with(m)
    };
    let target = |t: &[u8]| t.starts_with(b"/") || t.windows(3).any(|w| w == b"://");
    words.next().is_some_and(method)
        && words.next().is_some_and(target)
        && words
            .next()
            .is_none_or(|v| v.strip_prefix(b"HTTP/").is_some_and(is_number))
}

/// Control characters and white space before; any word as the method, the name of the version in
/// any case, and any name.
fn netty(bytes: &[u8]) -> bool {
    let bytes = skip(bytes, |b| b <= b' ' || (0x7f..=0xa0).contains(&b));
    let Some(line) = line(bytes) else {
        return false;
    };
    let space = |b: &u8| matches!(*b, b' ' | b'\t' | 0x0b | 0x0c | b'\r');
    let words: Vec<&[u8]> = line.split(space).filter(|w| !w.is_empty()).collect();
    let [method, target, version] = words.as_slice() else {
        return false;
    };
    let slash = version.iter().position(|&b| b == b'/');
    !method.is_empty()
        && !target.is_empty()
        && slash.is_some_and(|at| at > 0 && is_number(&version[at + 1..]))
}
