//! A head as a plugin sees it, and what it changed.

/// The head of a request or response, with the edits that a plugin has made.
#[derive(Debug, Clone, Default)]
pub struct Head {
    /// A request's method; empty in a response.
    pub method: String,
    /// A request's path with its query; empty in a response.
    pub path: String,
    /// A request's host with its port; empty in a response.
    pub host: String,
    /// A response's status; 0 in a request.
    pub status: u16,
    /// Names and values of all fields, one behind the other.
    text: String,
    /// Ends of name and value of each field in it; a removed field has none.
    fields: Vec<Field>,
    edits: Vec<HeadEdit>,
    /// Bytes of all edits, and of what holds each.
    edited: usize,
}

/// The most bytes of a head's edits.
const EDITED: usize = 64 << 10;

#[derive(Debug, Clone, Copy)]
struct Field {
    start: usize,
    name: usize,
    end: usize,
    removed: bool,
}

/// A change of a head. Names are lower case; values are as a program would show them, one character per byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadEdit {
    /// The field has this value alone.
    Set(String, String),
    /// One more value.
    Append(String, String),
    /// The field is not there.
    Remove(String),
    /// The path with its query.
    Path(String),
    /// The status of a response.
    Status(u16),
}

impl Head {
    /// The head of a request without fields.
    pub fn request(method: &str, path: &str, host: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            host: host.to_owned(),
            ..Self::default()
        }
    }

    /// The head of a response without fields.
    pub fn response(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    /// Makes room for fields of so many bytes in all.
    pub fn reserve(&mut self, bytes: usize) {
        self.text.reserve(bytes);
        // A field seldom has fewer.
        self.fields.reserve(bytes / 32);
    }

    /// Adds a field that came, byte by byte as a character.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        fn append(text: &mut String, bytes: &[u8]) {
            match std::str::from_utf8(bytes) {
                Ok(ascii) if ascii.is_ascii() => text.push_str(ascii),
                _ => text.extend(bytes.iter().copied().map(char::from)),
            }
        }
        self.add(|text| {
            let start = text.len();
            append(text, name);
            if let Some(name) = text.get_mut(start..) {
                name.make_ascii_lowercase();
            }
            let end = text.len();
            append(text, value);
            end
        });
    }

    /// Returns name and value of each field, in their order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().filter(|field| !field.removed).map(|f| {
            let name = self.text.get(f.start..f.name).unwrap_or_default();
            (name, self.text.get(f.name..f.end).unwrap_or_default())
        })
    }

    /// Returns the values of a field, with `, ` between them. `name` is lower case.
    pub fn field(&self, name: &str) -> Option<String> {
        let mut values = self.fields().filter(|(other, _)| *other == name);
        let mut all = values.next()?.1.to_owned();
        for (_, value) in values {
            all.push_str(", ");
            all.push_str(value);
        }
        Some(all)
    }

    /// Returns the changes, in their order.
    pub fn edits(&self) -> &[HeadEdit] {
        &self.edits
    }

    /// Returns the changes since the last time.
    pub fn take_edits(&mut self) -> Vec<HeadEdit> {
        std::mem::take(&mut self.edits)
    }

    /// Notes an edit of so many bytes; false: it would be too much.
    pub(crate) fn takes(&mut self, bytes: usize) -> bool {
        let edited = self.edited + bytes + size_of::<HeadEdit>();
        let fits = edited <= EDITED;
        if fits {
            self.edited = edited;
        }
        fits
    }

    pub(crate) fn set(&mut self, name: String, value: String) {
        self.drop_field(&name);
        self.push_edited(&name, &value);
        self.edits.push(HeadEdit::Set(name, value));
    }

    pub(crate) fn append(&mut self, name: String, value: String) {
        self.push_edited(&name, &value);
        self.edits.push(HeadEdit::Append(name, value));
    }

    pub(crate) fn remove(&mut self, name: String) {
        self.drop_field(&name);
        self.edits.push(HeadEdit::Remove(name));
    }

    pub(crate) fn set_path(&mut self, path: String) {
        self.path.clone_from(&path);
        self.edits.push(HeadEdit::Path(path));
    }

    pub(crate) fn set_status(&mut self, status: u16) {
        self.status = status;
        self.edits.push(HeadEdit::Status(status));
    }

    fn push_edited(&mut self, name: &str, value: &str) {
        self.add(|text| {
            text.push_str(name);
            let end = text.len();
            text.push_str(value);
            end
        });
    }

    /// Adds a field whose name and value are appended to the text; returned is where the name ends.
    fn add(&mut self, append: impl FnOnce(&mut String) -> usize) {
        let start = self.text.len();
        let name = append(&mut self.text);
        self.fields.push(Field {
            start,
            name,
            end: self.text.len(),
            removed: false,
        });
    }

    fn drop_field(&mut self, name: &str) {
        let text = &self.text;
        for field in &mut self.fields {
            if text.get(field.start..field.name) == Some(name) {
                field.removed = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_changed_is_seen_and_told() {
        let mut head = Head::request("GET", "/", "a");
        head.push(b"Accept", b"a/b");
        head.push(b"X-Name", b"\xe9t\xe9");
        head.push(b"accept", b"c/d");
        assert_eq!(head.field("accept").as_deref(), Some("a/b, c/d"));
        assert_eq!(head.field("x-name").as_deref(), Some("été"));
        head.set("accept".into(), "*/*".into());
        head.append("accept".into(), "text/html".into());
        head.remove("x-name".into());
        assert_eq!(head.field("accept").as_deref(), Some("*/*, text/html"));
        assert_eq!(head.field("x-name"), None);
        let edits = [
            HeadEdit::Set("accept".into(), "*/*".into()),
            HeadEdit::Append("accept".into(), "text/html".into()),
            HeadEdit::Remove("x-name".into()),
        ];
        assert_eq!(head.edits(), edits);
    }
}
