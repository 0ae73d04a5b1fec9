//! A plugin's source, read and checked without running it.

use crate::sandbox::Sandbox;
use rquickjs::context::intrinsic::{Eval, RegExpCompiler};
use rquickjs::{CatchResultExt, CaughtError, Module};
use std::fmt;

/// The longest source in bytes.
const LONGEST: usize = 256 << 10;
/// Memory for reading one.
const MEMORY: usize = 32 << 20;

/// A source that compiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub(crate) name: String,
    pub(crate) source: String,
}

/// Why a source is refused, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceError {
    /// From 1 on; 0: nowhere in particular.
    pub line: u32,
    /// From 1 on; 0: nowhere in particular.
    pub column: u32,
    /// The error.
    pub message: String,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.message),
            line => write!(f, "line {line}, column {}: {}", self.column, self.message),
        }
    }
}

impl std::error::Error for SourceError {}

impl Program {
    /// Reads a source. `name` is its file's in errors.
    ///
    /// # Errors
    /// It is no module of JavaScript, or has what no plugin may have.
    pub fn read(name: &str, source: &str) -> Result<Self, SourceError> {
        let nowhere = |message: String| SourceError {
            line: 0,
            column: 0,
            message,
        };
        if source.len() > LONGEST {
            return Err(nowhere(format!("a plugin has at most {LONGEST} bytes")));
        }
        if let Some(at) = big_integer(source) {
            let (line, column) = position(source, at);
            return Err(SourceError {
                line,
                column,
                message: "there are no BigInts: one operation of them may take any time; within a string write the digits and the letter n apart".into(),
            });
        }
        let sandbox = Sandbox::new::<(Eval, RegExpCompiler)>(MEMORY);
        let sandbox = sandbox.map_err(|e| nowhere(e.to_string()))?;
        sandbox.context().with(|ctx| {
            let read = Module::declare(ctx.clone(), name, source).catch(&ctx);
            read.map(drop).map_err(|error| refused(&error))
        })?;
        Ok(Self {
            name: name.to_owned(),
            source: source.to_owned(),
        })
    }
}

fn refused(error: &CaughtError<'_>) -> SourceError {
    let CaughtError::Exception(exception) = error else {
        return SourceError {
            line: 0,
            column: 0,
            message: error.to_string(),
        };
    };
    let stack = exception.stack().unwrap_or_default();
    let (line, column) = place(&stack).unwrap_or_default();
    SourceError {
        line,
        column,
        message: exception.message().unwrap_or_default(),
    }
}

/// Line and column at the end of the first line of a stack: `    at name.js:3:7`.
fn place(stack: &str) -> Option<(u32, u32)> {
    let first = stack.lines().next()?.trim_end().trim_end_matches(')');
    let (rest, column) = first.rsplit_once(':')?;
    let (_, line) = rest.rsplit_once(':')?;
    Some((line.parse().ok()?, column.parse().ok()?))
}

/// Where a literal of a BigInt may be, in bytes. A number is nothing else anywhere in a source, but in texts and comments,
/// which are not told apart: none of it is let through by mistake.
fn big_integer(source: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$';
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        if !word(*byte) {
            at += 1;
            continue;
        }
        let rest = bytes.get(at..).unwrap_or_default();
        let length = rest.iter().take_while(|byte| word(**byte)).count();
        let run = rest.get(..length).unwrap_or_default();
        if let [digits @ .., b'n'] = run
            && is_integer(digits)
        {
            return Some(at);
        }
        at += length;
    }
    None
}

fn is_integer(digits: &[u8]) -> bool {
    let all = |digits: &[u8], is: fn(&u8) -> bool| {
        !digits.is_empty() && digits.iter().all(|d| is(d) || *d == b'_')
    };
    match digits {
        [b'0', b'x' | b'X', digits @ ..] => all(digits, u8::is_ascii_hexdigit),
        [b'0', b'o' | b'O' | b'b' | b'B', digits @ ..] => all(digits, u8::is_ascii_digit),
        [b'0'..=b'9', ..] => all(digits, u8::is_ascii_digit),
        _ => false,
    }
}

fn position(source: &str, at: usize) -> (u32, u32) {
    let before = source.get(..at).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count()
        + 1;
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    (number(line), number(column))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_does_not_compile_is_refused_with_its_place() {
        let error =
            Program::read("a.js", "let a = 1;\nexport function onRequest( {\n").unwrap_err();
        assert_eq!(error.line, 3, "{error}");
        let error = Program::read("a.js", "let a = 1;\n  let b = 'x;\n").unwrap_err();
        assert_eq!((error.line, error.column > 0), (2, true), "{error}");
        assert!(Program::read("a.js", &" ".repeat(LONGEST + 1)).is_err());
        assert!(Program::read("a.js", &"[".repeat(100_000)).is_err());
        Program::read(
            "a.js",
            "export const onRequest = async (r) => /a+/.test(r.path)",
        )
        .unwrap();
    }

    #[test]
    fn no_spelling_of_a_big_integer_passes() {
        for literal in [
            "1n",
            "0n",
            "1_000n",
            "0xfFn",
            "0b101n",
            "0O17n",
            "a=1n",
            "\u{a0}10n",
            "[2n]",
            "-3n",
            "é2n",
        ] {
            let error = Program::read("a.js", &format!("\n let x; {literal}")).unwrap_err();
            assert!(error.message.contains("BigInt"), "{literal}: {error}");
            assert_eq!(error.line, 2);
        }
        for other in [
            "let a1n = 5",
            "let n = '5min'",
            "let x = 0x1f",
            "let _1n = $1n => 1",
            "x = 1 / 2; let x",
        ] {
            let read = Program::read("a.js", other);
            assert!(
                !read.is_err_and(|e| e.message.contains("BigInt")),
                "{other}"
            );
        }
    }
}
