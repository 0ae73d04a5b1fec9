//! Tokens to tree, by descent: one function for each level of the grammar.

use super::lexer::{Token, tokens};
use super::{Binary, Kind, Literal, Tree, Unary};
use crate::error::Error;
use crate::{MAX_DEPTH, MAX_SOURCE_BYTES};

/// Names that the language keeps for other languages that it is embedded in.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

const LOOPS: [&str; 5] = ["all", "exists", "exists_one", "filter", "map"];

/// Reads one expression.
pub(crate) fn parse(source: &str) -> Result<Tree, Error> {
    if source.len() > MAX_SOURCE_BYTES {
        let what = format!(
            "the expression has {} bytes; at most {MAX_SOURCE_BYTES} are allowed",
            source.len()
        );
        return Err(Error::at(source, 0, what));
    }
    let tokens = tokens(source)?;
    let mut parser = Parser {
        source,
        tokens: tokens.into_iter().peekable(),
        depth: 0,
    };
    let tree = parser.expression()?;
    match parser.peek() {
        (_, Token::End) => Ok(tree),
        _ => Err(parser.unexpected("an operator or the end")),
    }
}

struct Parser<'s> {
    source: &'s str,
    tokens: std::iter::Peekable<std::vec::IntoIter<(usize, Token)>>,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&mut self) -> (usize, &Token) {
        let end = self.source.len();
        self.tokens
            .peek()
            .map_or((end, &Token::End), |(at, token)| (*at, token))
    }

    fn next(&mut self) -> (usize, Token) {
        self.tokens
            .next()
            .unwrap_or((self.source.len(), Token::End))
    }

    /// Takes a sign if it is the next token.
    fn takes(&mut self, sign: &str) -> Option<usize> {
        match self.peek() {
            (at, Token::Sign(next)) if *next == sign => {
                self.next();
                Some(at)
            }
            _ => None,
        }
    }

    fn expect(&mut self, sign: &str) -> Result<usize, Error> {
        match self.takes(sign) {
            Some(at) => Ok(at),
            None => Err(self.unexpected(&format!("`{sign}`"))),
        }
    }

    fn error(&self, at: usize, what: impl Into<String>) -> Error {
        Error::at(self.source, at, what)
    }

    fn unexpected(&mut self, wanted: &str) -> Error {
        let (at, token) = self.peek();
        let found = match token {
            Token::End => "the end".to_owned(),
            Token::Sign(sign) => format!("`{sign}`"),
            Token::Name(name) | Token::QuotedName(name) => format!("`{name}`"),
            Token::Literal(_) | Token::Integer { .. } => "a literal".to_owned(),
        };
        self.error(at, format!("{found} stands where {wanted} is expected"))
    }

    /// A part of the tree, which is walked by functions that call themselves.
    fn node(&self, at: usize, kind: Kind) -> Result<Tree, Error> {
        let tree = Tree::new(at, kind);
        match tree.depth > MAX_DEPTH {
            true => Err(self.too_deep(at)),
            false => Ok(tree),
        }
    }

    fn too_deep(&self, at: usize) -> Error {
        let what = format!("the expression has more than {MAX_DEPTH} levels, or parts in a row");
        self.error(at, what)
    }

    /// Does something one level deeper.
    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let (at, _) = self.peek();
            return Err(self.too_deep(at));
        }
        let done = work(self);
        self.depth -= 1;
        done
    }

    fn expression(&mut self) -> Result<Tree, Error> {
        self.deeper(|p| {
            let condition = p.operators(0)?;
            let Some(at) = p.takes("?") else {
                return Ok(condition);
            };
            let then = p.operators(0)?;
            p.expect(":")?;
            let otherwise = p.expression()?;
            let kind = Kind::Conditional(Box::new([condition, then, otherwise]));
            p.node(at, kind)
        })
    }

    /// Operators of two sides, from this level of the grammar on; the lowest binds least.
    fn operators(&mut self, level: usize) -> Result<Tree, Error> {
        const LEVELS: [&[Binary]; 5] = [
            &[Binary::Or],
            &[Binary::And],
            &[
                Binary::Less,
                Binary::LessOrEqual,
                Binary::Greater,
                Binary::GreaterOrEqual,
                Binary::Equal,
                Binary::NotEqual,
                Binary::In,
            ],
            &[Binary::Add, Binary::Subtract],
            &[Binary::Multiply, Binary::Divide, Binary::Remainder],
        ];
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.operators(level + 1)?;
        loop {
            let found = operators
                .iter()
                .find_map(|o| Some((*o, self.takes(o.text())?)));
            let Some((operator, at)) = found else {
                return Ok(left);
            };
            let right = self.operators(level + 1)?;
            // A row of operators is a tree as deep as it is long.
            left = self.node(at, Kind::Binary(operator, Box::new([left, right])))?;
        }
    }

    fn unary(&mut self) -> Result<Tree, Error> {
        if let Some(at) = self.takes("!") {
            let operand = self.deeper(Self::unary)?;
            return self.node(at, Kind::Unary(Unary::Not, Box::new(operand)));
        }
        let Some(at) = self.takes("-") else {
            return self.member(None);
        };
        // The least integer exists only with its sign.
        match self.peek() {
            (_, Token::Integer { .. } | Token::Literal(Literal::Double(_))) => {
                self.member(Some(at))
            }
            _ => {
                let operand = self.deeper(Self::unary)?;
                self.node(at, Kind::Unary(Unary::Negate, Box::new(operand)))
            }
        }
    }

    /// A primary with what follows it: `.name`, `.name(…)`, `[…]`.
    fn member(&mut self, minus: Option<usize>) -> Result<Tree, Error> {
        let mut operand = self.primary(minus)?;
        loop {
            if let Some(at) = self.takes("[") {
                let index = self.expression()?;
                self.expect("]")?;
                operand = self.node(at, Kind::Index(Box::new([operand, index])))?;
            } else if self.takes(".").is_some() {
                let (at, name) = self.name(false)?;
                let kind = match self.takes("(") {
                    None => Kind::Select(Box::new(operand), name),
                    Some(_) => {
                        let arguments = self.list(")")?;
                        if LOOPS.contains(&name.as_str()) {
                            let what = format!(
                                "`{name}` would be a loop, which expressions do not have; compare with `in`"
                            );
                            return Err(self.error(at, what));
                        }
                        Kind::Call(Some(Box::new(operand)), name, arguments)
                    }
                };
                operand = self.node(at, kind)?;
            } else {
                if let (at, Token::Sign("{")) = self.peek() {
                    return Err(self.error(at, "messages are not offered"));
                }
                return Ok(operand);
            }
        }
    }

    fn primary(&mut self, minus: Option<usize>) -> Result<Tree, Error> {
        let begins = |token: &Token| match token {
            Token::Sign(sign) => ["(", "[", "{", "."].contains(sign),
            Token::End | Token::QuotedName(_) => false,
            _ => true,
        };
        if !begins(self.peek().1) {
            return Err(self.unexpected("a value"));
        }
        let (at, token) = self.next();
        let kind = match token {
            Token::Literal(Literal::Double(value)) if minus.is_some() => {
                Kind::Literal(Literal::Double(-value))
            }
            Token::Literal(literal) => Kind::Literal(literal),
            Token::Integer {
                magnitude,
                unsigned: true,
            } if minus.is_none() => Kind::Literal(Literal::Uint(magnitude)),
            Token::Integer { unsigned: true, .. } => {
                return Err(self.error(at, "an unsigned integer has no minus"));
            }
            Token::Integer { magnitude, .. } => {
                let value = match minus {
                    None => i64::try_from(magnitude).ok(),
                    Some(_) => 0_i64.checked_sub_unsigned(magnitude),
                };
                let value =
                    value.ok_or_else(|| self.error(at, "the integer is out of its range"))?;
                Kind::Literal(Literal::Int(value))
            }
            Token::Sign("(") => {
                let inside = self.expression()?;
                self.expect(")")?;
                return Ok(inside);
            }
            Token::Sign("[") => Kind::List(self.list("]")?),
            Token::Sign("{") => Kind::Map(self.entries()?),
            Token::Name(name) => {
                self.allowed(at, &name)?;
                self.named(at, name)?
            }
            // A dot: the name is one of the outermost scope, and there is no other.
            Token::Sign(_) | Token::QuotedName(_) | Token::End => {
                let (_, name) = self.name(true)?;
                self.named(at, name)?
            }
        };
        self.node(minus.unwrap_or(at), kind)
    }

    /// A name, or a call of a function.
    fn named(&mut self, at: usize, name: String) -> Result<Kind, Error> {
        if self.takes("(").is_none() {
            return Ok(Kind::Name(name));
        }
        let mut arguments = self.list(")")?;
        if name != "has" {
            return Ok(Kind::Call(None, name, arguments));
        }
        match (arguments.pop(), arguments.is_empty()) {
            (
                Some(Tree {
                    kind: Kind::Select(operand, name),
                    ..
                }),
                true,
            ) => Ok(Kind::Has(operand, name)),
            _ => Err(self.error(
                at,
                "`has` takes a field, as in `has(request.headers.cookie)`",
            )),
        }
    }

    /// The name of a variable or function, or of a field, which may be a reserved word.
    fn name(&mut self, reserved: bool) -> Result<(usize, String), Error> {
        match self.peek() {
            (_, Token::Name(_)) => {}
            (_, Token::QuotedName(_)) if !reserved => {}
            _ => return Err(self.unexpected("a name")),
        }
        match self.next() {
            (at, Token::Name(name)) => {
                if reserved {
                    self.allowed(at, &name)?;
                }
                Ok((at, name))
            }
            (at, Token::QuotedName(name)) => Ok((at, name)),
            (at, _) => Err(self.error(at, "a name is expected")),
        }
    }

    fn allowed(&self, at: usize, name: &str) -> Result<(), Error> {
        match RESERVED.contains(&name) {
            true => Err(self.error(at, format!("`{name}` is a reserved word"))),
            false => Ok(()),
        }
    }

    /// Expressions up to a closing bracket. A list may end with a comma, arguments may not.
    fn list(&mut self, close: &str) -> Result<Vec<Tree>, Error> {
        let mut items = Vec::new();
        if self.takes(close).is_some() {
            return Ok(items);
        }
        loop {
            items.push(self.expression()?);
            let comma = self.takes(",").is_some();
            if (!comma || close == "]") && self.takes(close).is_some() {
                return Ok(items);
            }
            if !comma {
                return Err(self.unexpected(&format!("`,` or `{close}`")));
            }
        }
    }

    fn entries(&mut self) -> Result<Vec<(Tree, Tree)>, Error> {
        let mut entries = Vec::new();
        loop {
            if self.takes("}").is_some() {
                return Ok(entries);
            }
            let key = self.expression()?;
            self.expect(":")?;
            entries.push((key, self.expression()?));
            if self.takes(",").is_none() {
                self.expect("}")?;
                return Ok(entries);
            }
        }
    }
}
