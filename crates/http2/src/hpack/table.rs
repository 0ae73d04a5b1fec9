//! The static table of RFC 7541, appendix A, and the dynamic one.

use std::collections::VecDeque;

/// Entries of the static table; index 1 is the first.
#[rustfmt::skip]
pub(super) const STATIC: [(&[u8], &[u8]); 61] = [
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"),
    (b":path", b"/index.html"), (b":scheme", b"http"), (b":scheme", b"https"),
    (b":status", b"200"), (b":status", b"204"), (b":status", b"206"), (b":status", b"304"),
    (b":status", b"400"), (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"), (b"accept-language", b""), (b"accept-ranges", b""),
    (b"accept", b""), (b"access-control-allow-origin", b""), (b"age", b""), (b"allow", b""),
    (b"authorization", b""), (b"cache-control", b""), (b"content-disposition", b""),
    (b"content-encoding", b""), (b"content-language", b""), (b"content-length", b""),
    (b"content-location", b""), (b"content-range", b""), (b"content-type", b""), (b"cookie", b""),
    (b"date", b""), (b"etag", b""), (b"expect", b""), (b"expires", b""), (b"from", b""),
    (b"host", b""), (b"if-match", b""), (b"if-modified-since", b""), (b"if-none-match", b""),
    (b"if-range", b""), (b"if-unmodified-since", b""), (b"last-modified", b""), (b"link", b""),
    (b"location", b""), (b"max-forwards", b""), (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""), (b"range", b""), (b"referer", b""), (b"refresh", b""),
    (b"retry-after", b""), (b"server", b""), (b"set-cookie", b""),
    (b"strict-transport-security", b""), (b"transfer-encoding", b""), (b"user-agent", b""),
    (b"vary", b""), (b"via", b""), (b"www-authenticate", b""),
];

/// Bytes that the size of an entry counts beside its name and value (RFC 7541, section 4.1).
const ENTRY_OVERHEAD: usize = 32;

/// Entries that the peer's encoder has put in the table. The texts lie end to end in one buffer, so
/// that an entry costs no allocation.
#[derive(Debug)]
pub(super) struct Dynamic {
    texts: Vec<u8>,
    /// Where the oldest entry's text begins.
    start: usize,
    /// Bytes ever removed from the front of `texts`; may wrap around, as the buffer is far shorter.
    moved: u32,
    /// Oldest first.
    entries: VecDeque<Entry>,
    size: usize,
    max: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Start of its text, counted from the first byte ever in `texts`.
    start: u32,
    /// Lengths of its name and value, which fit, as they are below `max`.
    name: u16,
    value: u16,
}

impl Entry {
    fn len(self) -> usize {
        usize::from(self.name) + usize::from(self.value)
    }
}

impl Dynamic {
    /// A table of at most `max` bytes, which is below 64 KiB.
    pub(super) fn new(max: usize) -> Self {
        Self {
            texts: Vec::new(),
            start: 0,
            moved: 0,
            entries: VecDeque::new(),
            size: 0,
            max,
        }
    }

    pub(super) fn resize(&mut self, max: usize) {
        self.max = max;
        self.evict(0);
    }

    fn evict(&mut self, room: usize) {
        while self.size + room > self.max {
            let Some(oldest) = self.entries.pop_front() else {
                return;
            };
            self.start += oldest.len();
            self.size -= oldest.len() + ENTRY_OVERHEAD;
        }
    }

    /// Appends an entry with this name and value.
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        self.evict(size);
        if size > self.max {
            return; // It has emptied the table, which is no error (section 4.4).
        }
        // Moving the rest to the front once per `max` bytes keeps the buffer below twice that.
        if self.start > self.max || self.entries.is_empty() {
            self.texts.drain(..self.start);
            self.moved = self.moved.wrapping_add(self.start as u32);
            self.start = 0;
        }
        self.entries.push_back(Entry {
            start: self.moved.wrapping_add(self.texts.len() as u32),
            name: name.len() as u16,
            value: value.len() as u16,
        });
        self.texts.extend_from_slice(name);
        self.texts.extend_from_slice(value);
        self.size += size;
    }

    /// Name and value at an index counted from the newest entry, 0 first.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let place = self.entries.len().checked_sub(index.checked_add(1)?)?;
        let entry = self.entries.get(place)?;
        let start = entry.start.wrapping_sub(self.moved) as usize;
        let text = self.texts.get(start..start + entry.len())?;
        text.split_at_checked(usize::from(entry.name))
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room_and_the_buffer_stays_bounded() {
        let mut table = Dynamic::new(200);
        table.moved = u32::MAX - 1000; // as after 4 GiB
        for i in 0..1000_u32 {
            let value = i.to_string();
            table.insert(b"name", value.as_bytes());
            assert_eq!(table.get(0), Some((&b"name"[..], value.as_bytes())));
            let oldest = i.saturating_sub(4).to_string();
            assert_eq!(
                table.get(i.min(4) as usize),
                Some((&b"name"[..], oldest.as_bytes()))
            );
            assert!(table.size() <= 200);
            assert!(table.texts.len() <= 2 * 200 + 40);
        }
        assert_eq!(table.get(3), Some((&b"name"[..], &b"996"[..])));
        assert_eq!(table.get(5), None);
        assert_eq!(table.get(usize::MAX), None);
        table.insert(&[b'x'; 300], b"");
        assert_eq!((table.size(), table.get(0)), (0, None));
        table.insert(b"a", b"b");
        assert_eq!(table.get(0), Some((&b"a"[..], &b"b"[..])));
        table.resize(0);
        assert_eq!(table.get(0), None);
    }
}
