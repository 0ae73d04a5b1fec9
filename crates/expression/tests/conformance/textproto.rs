//! Reads protobuf's text format, as far as the specification's tests use it.

use std::iter::Peekable;
use std::str::Chars;

/// The fields of a message, in their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Message(pub(crate) Vec<(String, Field)>);

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Field {
    Message(Message),
    /// A text or bytes.
    Text(Vec<u8>),
    /// A number, a name or a boolean.
    Word(String),
}

impl Message {
    pub(crate) fn read(source: &str) -> Self {
        let mut reader = Reader {
            left: source.chars().peekable(),
        };
        reader.message(None)
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Field> {
        self.0
            .iter()
            .filter(move |(n, _)| n == name)
            .map(|(_, f)| f)
    }

    pub(crate) fn messages<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.all(name).map(|f| match f {
            Field::Message(message) => message,
            other => panic!("no message: {other:?}"),
        })
    }

    pub(crate) fn message<'a>(&'a self, name: &'a str) -> Option<&'a Self> {
        self.messages(name).next()
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.all(name).next().map(|f| match f {
            Field::Text(bytes) => String::from_utf8(bytes.clone()).unwrap(),
            Field::Word(word) => word.clone(),
            Field::Message(_) => panic!("{name} is a message"),
        })
    }
}

struct Reader<'s> {
    left: Peekable<Chars<'s>>,
}

impl Reader<'_> {
    fn blanks(&mut self) {
        while let Some(&next) = self.left.peek() {
            match next {
                '#' => while self.left.next().is_some_and(|c| c != '\n') {},
                c if c.is_whitespace() || c == ',' || c == ';' => {
                    self.left.next();
                }
                _ => return,
            }
        }
    }

    fn message(&mut self, close: Option<char>) -> Message {
        let mut fields = Vec::new();
        loop {
            self.blanks();
            match self.left.peek() {
                None => {
                    assert_eq!(close, None, "a message without its end");
                    return Message(fields);
                }
                Some(&c) if Some(c) == close => {
                    self.left.next();
                    return Message(fields);
                }
                Some(_) => {
                    let name = self.word();
                    self.blanks();
                    if self.left.peek() == Some(&':') {
                        self.left.next();
                        self.blanks();
                    }
                    self.values(&name, &mut fields);
                }
            }
        }
    }

    /// One value, or several in brackets.
    fn values(&mut self, name: &str, fields: &mut Vec<(String, Field)>) {
        if self.left.peek() != Some(&'[') {
            let value = self.value();
            fields.push((name.to_owned(), value));
            return;
        }
        self.left.next();
        loop {
            self.blanks();
            if self.left.peek() == Some(&']') {
                self.left.next();
                return;
            }
            let value = self.value();
            fields.push((name.to_owned(), value));
        }
    }

    fn value(&mut self) -> Field {
        match self.left.peek() {
            Some('{') => {
                self.left.next();
                Field::Message(self.message(Some('}')))
            }
            Some('<') => {
                self.left.next();
                Field::Message(self.message(Some('>')))
            }
            Some('"' | '\'') => {
                let mut bytes = Vec::new();
                // Texts one after another are one text.
                while let Some(&quote @ ('"' | '\'')) = self.left.peek() {
                    self.left.next();
                    self.quoted(quote, &mut bytes);
                    self.blanks();
                }
                Field::Text(bytes)
            }
            _ => Field::Word(self.word()),
        }
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        let mut bracket = false;
        while let Some(&c) = self.left.peek() {
            // An extension or type in brackets is part of a name.
            match c {
                '[' if word.is_empty() => bracket = true,
                ']' => bracket = false,
                _ if bracket => {}
                c if c.is_alphanumeric() || "_.+-".contains(c) => {}
                _ => break,
            }
            word.push(c);
            self.left.next();
            if c == ']' {
                break;
            }
        }
        assert!(
            !word.is_empty(),
            "no word at {:?}",
            self.left.clone().take(20).collect::<String>()
        );
        word
    }

    fn quoted(&mut self, quote: char, out: &mut Vec<u8>) {
        loop {
            match self.left.next().expect("a text without its end") {
                c if c == quote => return,
                '\\' => self.escape(out),
                c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }

    fn escape(&mut self, out: &mut Vec<u8>) {
        let kind = self.left.next().unwrap();
        let code = |this: &mut Self, first: Option<char>, most: usize, base: u32| {
            let mut digits: String = first.into_iter().collect();
            while digits.len() < most && this.left.peek().is_some_and(|c| c.is_digit(base)) {
                digits.push(this.left.next().unwrap());
            }
            u32::from_str_radix(&digits, base).unwrap()
        };
        let byte = match kind {
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'v' => 11,
            'x' => u8::try_from(code(self, None, 2, 16)).unwrap(),
            '0'..='7' => u8::try_from(code(self, Some(kind), 3, 8)).unwrap(),
            'u' | 'U' => {
                let most = if kind == 'u' { 4 } else { 8 };
                let code = code(self, None, most, 16);
                let c = char::from_u32(code).unwrap();
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                return;
            }
            other => u8::try_from(other).unwrap(),
        };
        out.push(byte);
    }
}
