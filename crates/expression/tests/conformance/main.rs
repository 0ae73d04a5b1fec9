//! The conformance tests of CEL's specification (`scripts/fetch-cel-spec.sh`): those of what is offered pass,
//! and what is not offered is refused when it is compiled.

#![allow(clippy::unwrap_used)] // helpers of tests

mod textproto;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use textproto::{Field, Message};
use tulle_expression::{Expression, Input, List, NoValue, Scope, Type, Value, Variable};

/// Files with the least number of tests that have the specified result. The others of a file are refused.
const FILES: [(&str, usize); 12] = [
    ("basic", 41),
    ("comparisons", 448),
    ("conversions", 106),
    ("fields", 60),
    ("fp_math", 30),
    ("integer_math", 64),
    ("lists", 39),
    ("logic", 25),
    ("parse", 176),
    ("plumbing", 5),
    ("string", 51),
    ("string_ext", 109),
];

/// Parts of messages about what is not offered (docs/features/expressions.md).
const NOT_OFFERED: [&str; 4] = [
    "would be a loop",
    "messages are not offered",
    "there is no function",
    "is not known",
];

struct Bindings(Vec<Value<'static>>);

impl Input for Bindings {
    fn read(&self, variable: Variable) -> Result<Value<'_>, NoValue> {
        self.0
            .get(usize::from(variable.0))
            .cloned()
            .ok_or(NoValue::Absent)
    }
}

#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    /// Their number by the reason.
    refused: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

#[test]
fn what_is_offered_means_what_the_specification_says() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/fetch-cel-spec.sh");
    let found = Command::new(script).output().unwrap();
    if !found.status.success() {
        let why = String::from_utf8_lossy(&found.stderr);
        return println!("skipped: {}", why.trim());
    }
    let directory = String::from_utf8(found.stdout).unwrap();
    let directory = Path::new(directory.trim());
    let mut wrong = Vec::new();
    for (name, least) in FILES {
        let source =
            std::fs::read_to_string(directory.join(name).with_extension("textproto")).unwrap();
        let file = Message::read(&source);
        let mut tally = Tally::default();
        for section in file.messages("section") {
            for test in section.messages("test") {
                let name = format!(
                    "{name}/{}/{}",
                    section.text("name").unwrap(),
                    test.text("name").unwrap()
                );
                run(&name, test, &mut tally);
            }
        }
        let refused: usize = tally.refused.values().sum();
        println!(
            "{name}: {} as specified, {refused} refused {:?}",
            tally.passed, tally.refused
        );
        if tally.passed < least {
            wrong.push(format!("{name}: {} of {least}", tally.passed));
        }
        wrong.extend(tally.wrong);
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn run(name: &str, test: &Message, tally: &mut Tally) {
    let source = test.text("expr").unwrap();
    let mut variables: Vec<(String, Type)> = Vec::new();
    for declared in test.messages("type_env") {
        let kind = declared
            .message("ident")
            .and_then(|i| i.message("type"))
            .map_or(Type::Dyn, kind);
        variables.push((declared.text("name").unwrap(), kind));
    }
    let mut bound = BTreeMap::new();
    for binding in test.messages("bindings") {
        let key = binding.text("key").unwrap();
        let Some(value) = binding
            .message("value")
            .and_then(|v| v.message("value"))
            .and_then(value)
        else {
            *tally
                .refused
                .entry("a message is bound".into())
                .or_default() += 1;
            return;
        };
        if !variables.iter().any(|(n, _)| *n == key) {
            variables.push((key.clone(), Type::Dyn));
        }
        bound.insert(key, value);
    }
    let values = variables.iter().map(|(n, _)| bound.get(n).cloned());
    let Some(values) = values.collect::<Option<Vec<_>>>() else {
        // Unbound on purpose: an error, or a short circuit.
        *tally
            .refused
            .entry("a variable has no value".into())
            .or_default() += 1;
        return;
    };
    let names: Vec<(&str, Type)> = variables
        .iter()
        .map(|(n, t)| (n.as_str(), t.clone()))
        .collect();
    let fails = test.message("eval_error").is_some() || test.message("any_eval_errors").is_some();
    let input = Bindings(values);
    let expression = match Expression::compile(&source, &Scope::new(&names), &Type::Dyn) {
        Ok(expression) => expression,
        // An error that is found earlier.
        Err(_) if fails => {
            tally.passed += 1;
            return;
        }
        Err(error) => {
            let what = error.to_string();
            let reason = NOT_OFFERED
                .iter()
                .find(|r| what.contains(**r))
                .map(|r| (*r).to_owned());
            let unchecked = test.text("disable_check").as_deref() == Some("true");
            match reason.or_else(|| unchecked.then(|| "types are always checked".to_owned())) {
                Some(reason) => *tally.refused.entry(reason).or_default() += 1,
                None => tally.wrong.push(format!("{name}: {source}: {what}")),
            }
            return;
        }
    };
    let expected = match (fails, test.message("value"), test.message("typed_result")) {
        (true, ..) => None,
        (_, Some(value), _) => Some(value.clone()),
        (_, _, Some(typed)) => typed.message("result").cloned(),
        // A test without any says that the value is true.
        _ => Some(Message(vec![(
            "bool_value".into(),
            Field::Word("true".into()),
        )])),
    };
    match (expression.value(&input), expected) {
        (Err(_), None) => tally.passed += 1,
        (Ok(found), Some(expected)) => match value(&expected) {
            Some(expected) if same(&found, &expected) => tally.passed += 1,
            Some(expected) => tally.wrong.push(format!(
                "{name}: {source}: {found:?} instead of {expected:?}"
            )),
            None => {
                *tally
                    .refused
                    .entry("its value is a message".into())
                    .or_default() += 1
            }
        },
        (found, expected) => tally.wrong.push(format!(
            "{name}: {source}: {found:?} instead of {expected:?}"
        )),
    }
}

/// Whether two values are the same, their types included.
fn same(a: &Value<'_>, b: &Value<'_>) -> bool {
    match (a, b) {
        (Value::Double(a), Value::Double(b)) => a == b || (a.is_nan() && b.is_nan()),
        (Value::List(List::Owned(a)), Value::List(List::Owned(b))) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Map(List::Owned(a)), Value::Map(List::Owned(b))) => {
            let has = |(key, value): &(Value<'_>, Value<'_>)| {
                b.iter().any(|(k, v)| same(k, key) && same(v, value))
            };
            a.len() == b.len() && a.iter().all(has)
        }
        _ => {
            format!("{a:?}").replace("Borrowed", "Owned")
                == format!("{b:?}").replace("Borrowed", "Owned")
        }
    }
}

fn kind(message: &Message) -> Type {
    let Some((name, field)) = message.0.first() else {
        return Type::Dyn;
    };
    match (name.as_str(), field) {
        ("primitive", Field::Word(word)) => match word.as_str() {
            "BOOL" => Type::Bool,
            "INT64" => Type::Int,
            "UINT64" => Type::Uint,
            "DOUBLE" => Type::Double,
            "STRING" => Type::String,
            "BYTES" => Type::Bytes,
            other => panic!("{other}"),
        },
        ("list_type", Field::Message(of)) => {
            Type::List(Box::new(of.message("elem_type").map_or(Type::Dyn, kind)))
        }
        ("map_type", Field::Message(of)) => {
            let part = |name| Box::new(of.message(name).map_or(Type::Dyn, kind));
            Type::Map(part("key_type"), part("value_type"))
        }
        _ => Type::Dyn,
    }
}

/// A value as the tests write it; `None`: a message, which is not offered.
fn value(message: &Message) -> Option<Value<'static>> {
    let (name, field) = message.0.first()?;
    let word = match field {
        Field::Word(word) => word.clone(),
        Field::Text(text) => String::from_utf8_lossy(text).into_owned(),
        Field::Message(_) => String::new(),
    };
    let leak = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    Some(match (name.as_str(), field) {
        ("null_value", _) => Value::Null,
        ("bool_value", _) => Value::Bool(word == "true"),
        ("int64_value", _) => Value::Int(word.parse().unwrap()),
        ("uint64_value", _) => Value::Uint(word.parse().unwrap()),
        ("double_value", _) => Value::Double(match word.as_str() {
            "inf" | "Infinity" => f64::INFINITY,
            "-inf" | "-Infinity" => f64::NEG_INFINITY,
            number => number.parse().unwrap(),
        }),
        ("string_value", _) => Value::String(word.into()),
        ("bytes_value", Field::Text(bytes)) => Value::Bytes(bytes.clone().into()),
        ("type_value", _) => Value::Type(leak(word)),
        ("list_value", Field::Message(list)) => {
            let items: Option<Vec<_>> = list.messages("values").map(value).collect();
            Value::List(List::Owned(items?))
        }
        ("map_value", Field::Message(map)) => {
            let entry =
                |e: &Message| Some((value(e.message("key")?)?, value(e.message("value")?)?));
            let entries: Option<Vec<_>> = map.messages("entries").map(entry).collect();
            Value::Map(List::Owned(entries?))
        }
        _ => return None,
    })
}
