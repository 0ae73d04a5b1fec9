//! Text to tree: CEL's grammar (cel-spec, `doc/langdef.md`, Syntax), without messages and loops.

mod lexer;
mod parser;
mod text;

pub(crate) use parser::parse;

/// A part of the source, with the byte where it begins.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tree {
    pub at: usize,
    pub kind: Kind,
    /// Levels of the tree: whoever walks it calls itself as often.
    depth: usize,
}

impl Tree {
    fn new(at: usize, kind: Kind) -> Self {
        let depth = 1 + kind.depth();
        Self { at, kind, depth }
    }
}

impl Kind {
    /// The deepest of its parts.
    fn depth(&self) -> usize {
        fn deepest<'t>(parts: impl IntoIterator<Item = &'t Tree>) -> usize {
            parts.into_iter().map(|tree| tree.depth).max().unwrap_or(0)
        }
        match self {
            Self::Literal(_) | Self::Name(_) => 0,
            Self::Select(operand, _) | Self::Has(operand, _) | Self::Unary(_, operand) => {
                operand.depth
            }
            Self::Index(sides) | Self::Binary(_, sides) => deepest(&**sides),
            Self::Conditional(parts) => deepest(&**parts),
            Self::List(items) => deepest(items),
            Self::Call(operand, _, arguments) => {
                deepest(operand.as_deref().into_iter().chain(arguments))
            }
            Self::Map(entries) => deepest(entries.iter().flat_map(|(key, value)| [key, value])),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Literal(Literal),
    /// A name, without the dot that may stand before it.
    Name(String),
    /// `operand.name`
    Select(Box<Tree>, String),
    /// `has(operand.name)`
    Has(Box<Tree>, String),
    /// `operand[index]`
    Index(Box<[Tree; 2]>),
    /// `name(arguments)`, or `operand.name(arguments)`.
    Call(Option<Box<Tree>>, String, Vec<Tree>),
    Unary(Unary, Box<Tree>),
    Binary(Binary, Box<[Tree; 2]>),
    /// `condition ? then : otherwise`
    Conditional(Box<[Tree; 3]>),
    List(Vec<Tree>),
    Map(Vec<(Tree, Tree)>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unary {
    Not,
    Negate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binary {
    Or,
    And,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Binary {
    pub(crate) fn is_calculation(self) -> bool {
        matches!(
            self,
            Self::Add | Self::Subtract | Self::Multiply | Self::Divide | Self::Remainder
        )
    }

    pub(crate) fn is_comparison(self) -> bool {
        !self.is_calculation() && !matches!(self, Self::And | Self::Or)
    }

    /// How it is written.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Or => "||",
            Self::And => "&&",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::In => "in",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
        }
    }
}
