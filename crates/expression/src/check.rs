//! Tree to program: names are resolved, types checked, patterns compiled.

use crate::error::Error;
use crate::functions::{self, Function};
use crate::program::{Code, Key};
use crate::scope::{Scope, Variable};
use crate::syntax::{Binary, Kind, Literal, Tree, Unary};
use crate::types::Type;
use crate::value::{List, Value};
use regex::bytes::RegexBuilder;
use std::borrow::Cow;
use std::net::IpAddr;

/// Longest pattern in bytes, and memory for one once it is compiled.
const MAX_PATTERN_BYTES: usize = 1024;
const MAX_COMPILED_BYTES: usize = 256 * 1024;

/// Names of types, which are values, too.
const TYPES: [&str; 10] = [
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
];

/// Checks a tree. Returns the program, the type of its value, and the variables it reads.
pub(crate) fn check(
    source: &str,
    tree: &Tree,
    scope: &Scope<'_>,
) -> Result<(Code, Type, Vec<Variable>), Error> {
    let mut checker = Checker {
        source,
        scope,
        reads: Vec::new(),
    };
    let (code, kind) = checker.whole(tree)?;
    Ok((code, kind, checker.reads))
}

struct Checker<'s> {
    source: &'s str,
    scope: &'s Scope<'s>,
    reads: Vec<Variable>,
}

type Checked = Result<(Code, Type), Error>;

impl Checker<'_> {
    fn error(&self, at: usize, what: impl Into<String>) -> Error {
        Error::at(self.source, at, what)
    }

    /// A part whose value is used as a whole: a table is not.
    fn whole(&mut self, tree: &Tree) -> Checked {
        let (code, kind) = self.part(tree)?;
        if kind == Type::Table {
            let what = "this is asked for one entry at a time: `…[\"name\"]`, `\"name\" in …`, `has(….name)`";
            return Err(self.error(tree.at, what));
        }
        Ok((code, kind))
    }

    fn part(&mut self, tree: &Tree) -> Checked {
        match &tree.kind {
            Kind::Literal(literal) => Ok(constant(literal)),
            Kind::Name(_) | Kind::Select(..) => self.path(tree),
            Kind::Has(operand, name) => match self.part(operand)? {
                (Code::Variable(table), Type::Table) => {
                    Ok((Code::HasEntry(table, fixed(name)), Type::Bool))
                }
                (code, Type::Map(..) | Type::Dyn) => {
                    Ok((Code::Has(code.into(), name.as_str().into()), Type::Bool))
                }
                (_, kind) => Err(self.error(tree.at, format!("{kind} has no fields"))),
            },
            Kind::Index(sides) => self.index(tree.at, sides),
            Kind::Call(operand, name, arguments) => {
                self.call(tree.at, operand.as_deref(), name, arguments)
            }
            Kind::Unary(Unary::Not, operand) => {
                let code = self.wanted(operand, &Type::Bool, "!")?;
                Ok((Code::Not(code.into()), Type::Bool))
            }
            Kind::Unary(Unary::Negate, operand) => match self.whole(operand)? {
                (code, kind @ (Type::Int | Type::Double | Type::Dyn)) => {
                    Ok((Code::Negate(code.into()), kind))
                }
                (_, kind) => Err(self.error(tree.at, format!("`-` does not take {kind}"))),
            },
            Kind::Binary(operator, sides) => self.binary(tree.at, *operator, sides),
            Kind::Conditional(parts) => {
                let [condition, then, otherwise] = &**parts;
                let condition = self.wanted(condition, &Type::Bool, "? :")?;
                let (then, one) = self.whole(then)?;
                let (otherwise, other) = self.whole(otherwise)?;
                if !one.fits(&other) {
                    return Err(self.error(
                        tree.at,
                        format!("`? :` has {one} on one side and {other} on the other"),
                    ));
                }
                Ok((
                    Code::Conditional(Box::new([condition, then, otherwise])),
                    one.join(other),
                ))
            }
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
        }
    }

    /// A part of a certain type.
    fn wanted(&mut self, tree: &Tree, wanted: &Type, by: &str) -> Result<Code, Error> {
        let (code, kind) = self.whole(tree)?;
        match kind.fits(wanted) {
            true => Ok(code),
            false => Err(self.error(
                tree.at,
                format!("`{by}` takes {wanted}, and this is {kind}"),
            )),
        }
    }

    /// Names with dots: as many as possible are the name of a variable, the others select from it.
    fn path(&mut self, tree: &Tree) -> Checked {
        let mut names = Vec::new();
        let mut inner = tree;
        let root = loop {
            match &inner.kind {
                Kind::Select(operand, name) => {
                    names.push((inner.at, name.as_str()));
                    inner = operand;
                }
                Kind::Name(name) => {
                    names.push((inner.at, name.as_str()));
                    break None;
                }
                _ => break Some(inner),
            }
        };
        names.reverse();
        let (mut done, selected) = match root {
            Some(root) => (self.part(root)?, 0),
            None => self.variable(&names)?,
        };
        for (at, name) in names.into_iter().skip(selected) {
            done = match done {
                (Code::Variable(table), Type::Table) => {
                    (Code::Entry(table, fixed(name)), Type::String)
                }
                (code, Type::Map(_, value)) => (Code::Select(code.into(), name.into()), *value),
                (code, Type::Dyn) => (Code::Select(code.into(), name.into()), Type::Dyn),
                (_, kind) => return Err(self.error(at, format!("{kind} has no field `{name}`"))),
            };
        }
        Ok(done)
    }

    /// The variable that a path begins with; also how many names of it that are.
    fn variable(&mut self, names: &[(usize, &str)]) -> Result<((Code, Type), usize), Error> {
        let path: Vec<&str> = names.iter().map(|(_, name)| *name).collect();
        if let Some((variable, kind, used)) = self.scope.find(&path) {
            if !self.reads.contains(&variable) {
                self.reads.push(variable);
            }
            return Ok(((Code::Variable(variable), kind.clone()), used));
        }
        let (first, at) = names.first().map_or(("", 0), |(at, name)| (*name, *at));
        if let Some(name) = TYPES.iter().find(|t| **t == first) {
            return Ok(((Code::Constant(Value::Type(name)), Type::Type), 1));
        }
        let below = self.scope.below(first);
        let what = match below.is_empty() {
            false => format!(
                "`{}` is not known; there are {}",
                path.join("."),
                below.join(", ")
            ),
            true => {
                let roots = self.scope.names().filter_map(|n| n.split('.').next());
                let roots: std::collections::BTreeSet<_> = roots.collect();
                let roots: Vec<_> = roots.into_iter().collect();
                match roots.is_empty() {
                    true => format!("`{first}` is not known"),
                    false => format!(
                        "`{first}` is not known; names begin with {}",
                        roots.join(", ")
                    ),
                }
            }
        };
        Err(self.error(at, what))
    }

    fn index(&mut self, at: usize, sides: &[Tree; 2]) -> Checked {
        let [operand, index] = sides;
        let operand = self.part(operand)?;
        let (by, by_kind) = self.whole(index)?;
        let fits = |wanted: &Type| by_kind.fits(wanted);
        let kind = match &operand.1 {
            Type::Table if fits(&Type::String) => {
                let Code::Variable(table) = operand.0 else {
                    return Err(self.error(at, "only a variable is a table"));
                };
                return Ok((Code::Entry(table, key(by)), Type::String));
            }
            Type::List(item) if fits(&Type::Int) || by_kind.is_number() => (**item).clone(),
            Type::Map(key, value) if fits(key) || (by_kind.is_number() && key.is_number()) => {
                (**value).clone()
            }
            Type::Dyn => Type::Dyn,
            other => {
                return Err(self.error(at, format!("`[…]` does not take {other} and {by_kind}")));
            }
        };
        Ok((Code::Index(Box::new([operand.0, by])), kind))
    }

    fn call(
        &mut self,
        at: usize,
        operand: Option<&Tree>,
        name: &str,
        arguments: &[Tree],
    ) -> Checked {
        if name == "containsIP"
            && let Some(Tree {
                kind: Kind::Call(None, inner, network),
                at,
                ..
            }) = operand
            && inner == "cidr"
        {
            return self.in_network(*at, network, arguments);
        }
        let mut code = Vec::new();
        let mut kinds = Vec::new();
        for argument in operand.into_iter().chain(arguments) {
            let (one, kind) = self.whole(argument)?;
            code.push(one);
            kinds.push(kind);
        }
        if name == "matches" {
            return self.matches(
                at,
                code,
                &kinds,
                operand.into_iter().chain(arguments).nth(1),
            );
        }
        let (function, kind) = functions::find(name, operand.is_some(), &kinds)
            .map_err(|what| self.error(at, what))?;
        match function {
            Function::Test(test) => {
                let sides: Result<Box<[Code; 2]>, _> = code.into_boxed_slice().try_into();
                let sides = sides.map_err(|_| self.error(at, "two texts are compared"))?;
                Ok((Code::Test(test, sides), kind))
            }
            function => Ok((Code::Call(function, code.into()), kind)),
        }
    }

    /// A pattern is compiled once; one that the request makes would be compiled each time.
    fn matches(
        &self,
        at: usize,
        code: Vec<Code>,
        kinds: &[Type],
        pattern: Option<&Tree>,
    ) -> Checked {
        let mut code = code.into_iter();
        let (Some(text), Some(Code::Constant(Value::String(source))), None) =
            (code.next(), code.next(), code.next())
        else {
            return Err(self.error(
                at,
                "`matches` takes a text and a pattern that is written out",
            ));
        };
        if !kinds.first().is_some_and(|k| k.fits(&Type::String)) {
            return Err(self.error(at, "`matches` takes a text"));
        }
        let at = pattern.map_or(at, |p| p.at);
        if source.len() > MAX_PATTERN_BYTES {
            return Err(self.error(
                at,
                format!("the pattern has more than {MAX_PATTERN_BYTES} bytes"),
            ));
        }
        let mut builder = RegexBuilder::new(&source);
        builder
            .size_limit(MAX_COMPILED_BYTES)
            .dfa_size_limit(MAX_COMPILED_BYTES)
            .nest_limit(50);
        let pattern = builder.build().map_err(|e| {
            let text = e.to_string();
            self.error(
                at,
                format!(
                    "the pattern is no regular expression: {}",
                    text.lines().last().unwrap_or_default()
                ),
            )
        })?;
        Ok((Code::Matches(text.into(), pattern.into()), Type::Bool))
    }

    fn in_network(&mut self, at: usize, network: &[Tree], arguments: &[Tree]) -> Checked {
        let usage =
            "write `cidr('10.0.0.0/8').containsIP(source.address)`, with the network written out";
        let (
            [
                Tree {
                    kind: Kind::Literal(Literal::String(network)),
                    ..
                },
            ],
            [address],
        ) = (network, arguments)
        else {
            return Err(self.error(at, usage));
        };
        let parts = network.split_once('/');
        let parsed = parts.and_then(|(ip, prefix)| {
            Some((ip.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?))
        });
        let valid = parsed.filter(|(ip, prefix)| *prefix <= if ip.is_ipv4() { 32 } else { 128 });
        let (ip, prefix) =
            valid.ok_or_else(|| self.error(at, format!("{network:?} is no network; {usage}")))?;
        let address = self.wanted(address, &Type::String, "containsIP")?;
        Ok((Code::InNetwork(address.into(), ip, prefix), Type::Bool))
    }

    fn binary(&mut self, at: usize, operator: Binary, sides: &[Tree; 2]) -> Checked {
        let [left, right] = sides;
        if matches!(operator, Binary::And | Binary::Or) {
            let left = self.wanted(left, &Type::Bool, operator.text())?;
            let right = self.wanted(right, &Type::Bool, operator.text())?;
            return Ok((Code::Binary(operator, Box::new([left, right])), Type::Bool));
        }
        let (left, one) = self.whole(left)?;
        let (right, other) = match operator {
            Binary::In => self.part(right)?,
            _ => self.whole(right)?,
        };
        let numbers = one.is_number() && other.is_number();
        let kind = match operator {
            Binary::Equal | Binary::NotEqual if one.fits(&other) || numbers => Type::Bool,
            Binary::In => match (&one, &other) {
                (Type::String | Type::Dyn, Type::Table) => {
                    let Code::Variable(table) = right else {
                        return Err(self.error(at, "only a variable is a table"));
                    };
                    return Ok((Code::HasEntry(table, key(left)), Type::Bool));
                }
                (one, Type::List(item))
                    if one.fits(item) || (one.is_number() && item.is_number()) =>
                {
                    Type::Bool
                }
                (one, Type::Map(key, _))
                    if one.fits(key) || (one.is_number() && key.is_number()) =>
                {
                    Type::Bool
                }
                (_, Type::Dyn) => Type::Bool,
                _ => return Err(self.mismatch(at, operator, &one, &other)),
            },
            Binary::Less | Binary::LessOrEqual | Binary::Greater | Binary::GreaterOrEqual => {
                let ordered = |kind: &Type| {
                    kind.is_number()
                        || matches!(kind, Type::Bool | Type::String | Type::Bytes | Type::Dyn)
                };
                match ordered(&one) && ordered(&other) && (one.fits(&other) || numbers) {
                    true => Type::Bool,
                    false => return Err(self.mismatch(at, operator, &one, &other)),
                }
            }
            Binary::Add
            | Binary::Subtract
            | Binary::Multiply
            | Binary::Divide
            | Binary::Remainder => {
                let takes = |kind: &Type| match (operator, kind) {
                    (_, Type::Int | Type::Uint | Type::Dyn)
                    | (Binary::Add, Type::String | Type::Bytes | Type::List(_)) => true,
                    (_, Type::Double) => operator != Binary::Remainder,
                    _ => false,
                };
                match takes(&one) && takes(&other) && one.fits(&other) {
                    true => match (one, other) {
                        (Type::List(one), Type::List(other)) => {
                            Type::List(Box::new(one.join(*other)))
                        }
                        (Type::Dyn, known) | (known, _) => known,
                    },
                    false => return Err(self.mismatch(at, operator, &one, &other)),
                }
            }
            _ => return Err(self.mismatch(at, operator, &one, &other)),
        };
        Ok((Code::Binary(operator, Box::new([left, right])), kind))
    }

    fn mismatch(&self, at: usize, operator: Binary, one: &Type, other: &Type) -> Error {
        self.error(
            at,
            format!("`{}` does not take {one} and {other}", operator.text()),
        )
    }

    fn list(&mut self, items: &[Tree]) -> Checked {
        let mut code = Vec::new();
        let mut kind: Option<Type> = None;
        for item in items {
            let (one, one_kind) = self.whole(item)?;
            code.push(one);
            kind = Some(match kind {
                Some(kind) => kind.join(one_kind),
                None => one_kind,
            });
        }
        let kind = Type::List(Box::new(kind.unwrap_or(Type::Dyn)));
        // A list of constants is made once.
        if code.iter().all(|c| matches!(c, Code::Constant(_))) {
            let values = code.into_iter().filter_map(|c| match c {
                Code::Constant(value) => Some(value),
                _ => None,
            });
            return Ok((
                Code::Constant(Value::List(List::Owned(values.collect()))),
                kind,
            ));
        }
        Ok((Code::List(code.into()), kind))
    }

    fn map(&mut self, entries: &[(Tree, Tree)]) -> Checked {
        let mut code = Vec::new();
        let mut kinds: Option<(Type, Type)> = None;
        for (key, value) in entries {
            let (key_code, key_kind) = self.whole(key)?;
            if !matches!(
                key_kind,
                Type::Bool | Type::Int | Type::Uint | Type::String | Type::Dyn
            ) {
                return Err(self.error(
                    key.at,
                    format!("a key is a text, an integer or a bool, and this is {key_kind}"),
                ));
            }
            let (value_code, value_kind) = self.whole(value)?;
            code.push((key_code, value_code));
            kinds = Some(match kinds {
                Some((k, v)) => (k.join(key_kind), v.join(value_kind)),
                None => (key_kind, value_kind),
            });
        }
        let (key, value) = kinds.unwrap_or((Type::Dyn, Type::Dyn));
        Ok((
            Code::Map(code.into()),
            Type::Map(Box::new(key), Box::new(value)),
        ))
    }
}

/// The key of an entry. Names of headers have no case (RFC 9110, section 5.1).
fn fixed(name: &str) -> Key {
    Key::Fixed(name.to_ascii_lowercase().into())
}

fn key(code: Code) -> Key {
    match code {
        Code::Constant(Value::String(text)) => fixed(&text),
        computed => Key::Computed(computed.into()),
    }
}

fn constant(literal: &Literal) -> (Code, Type) {
    let (value, kind) = match literal {
        Literal::Null => (Value::Null, Type::Null),
        Literal::Bool(value) => (Value::Bool(*value), Type::Bool),
        Literal::Int(value) => (Value::Int(*value), Type::Int),
        Literal::Uint(value) => (Value::Uint(*value), Type::Uint),
        Literal::Double(value) => (Value::Double(*value), Type::Double),
        Literal::String(text) => (Value::String(Cow::Owned(text.clone())), Type::String),
        Literal::Bytes(bytes) => (Value::Bytes(Cow::Owned(bytes.clone())), Type::Bytes),
    };
    (Code::Constant(value), kind)
}
