//! The language as its users meet it: values, errors with their place, bounds, and what never happens.

#![allow(clippy::unwrap_used)] // helpers of tests

use proptest::prelude::*;
use std::fmt::Write;
use tulle_expression::{Expression, Input, NoValue, Type, Value, Variable, request};

/// A request whose variables are these.
struct Request;

impl Input for Request {
    fn read(&self, variable: Variable) -> Result<Value<'_>, NoValue> {
        Ok(match variable {
            request::METHOD => Value::string("GET"),
            request::PATH => Value::string("/ratings/7"),
            request::HOST => Value::string("ratings.example"),
            request::SIZE => Value::Int(-1),
            request::SOURCE_ADDRESS => Value::string("10.1.2.3"),
            request::DESTINATION_PORT => Value::Int(9080),
            _ => return Err(NoValue::Absent),
        })
    }

    fn entry(&self, _: Variable, key: &str) -> Result<Option<Value<'_>>, NoValue> {
        match key.to_ascii_lowercase().as_str() {
            "x-team" => Ok(Some(Value::string("books"))),
            "twice" => Err(NoValue::Ambiguous),
            _ => Ok(None),
        }
    }
}

fn condition(source: &str) -> Result<bool, NoValue> {
    let expression = Expression::compile(source, &request::scope(), &Type::Bool);
    expression
        .unwrap_or_else(|e| panic!("{source}: {e}"))
        .condition(&Request)
}

fn refused(source: &str) -> String {
    let compiled = Expression::compile(source, &request::scope(), &Type::Bool);
    compiled.expect_err(source).to_string()
}

#[test]
fn conditions_about_requests() {
    for (source, expected) in [
        (
            "request.method == 'GET' && request.path.startsWith('/ratings/')",
            Ok(true),
        ),
        ("request.method in ['PUT', 'POST']", Ok(false)),
        ("request.headers['X-Team'] == 'books'", Ok(true)),
        ("request.headers.`x-team` != 'books'", Ok(false)),
        (
            "'x-team' in request.headers && !('x-other' in request.headers)",
            Ok(true),
        ),
        ("has(request.headers.cookie)", Ok(false)),
        (
            "request.headers[request.method] == ''",
            Err(NoValue::NoSuchKey),
        ),
        ("request.headers['cookie'] == ''", Err(NoValue::NoSuchKey)),
        (
            "request.headers['cookie'] == '' || request.method == 'GET'",
            Ok(true),
        ),
        ("request.headers['twice'] == 'a'", Err(NoValue::Ambiguous)),
        ("has(request.headers.twice)", Ok(true)),
        (
            "has(request.headers.cookie) && request.headers.cookie == ''",
            Ok(false),
        ),
        ("request.path.matches('^/ratings/[0-9]+$')", Ok(true)),
        ("cidr('10.0.0.0/8').containsIP(source.address)", Ok(true)),
        ("cidr('10.2.0.0/16').containsIP(source.address)", Ok(false)),
        ("cidr('::/0').containsIP(source.address)", Ok(false)),
        (
            "destination.port == 9080 ? request.size < 0 : false",
            Ok(true),
        ),
        ("source.identity == ''", Err(NoValue::Absent)),
        ("request.host.split('.')[1] == 'example'", Ok(true)),
        (
            "int(request.path.substring(9)) % 2 == 1 // every other",
            Ok(true),
        ),
    ] {
        assert_eq!(condition(source), expected, "{source}");
    }
}

#[test]
fn errors_say_where_and_what() {
    for (source, expected) in [
        (
            "request.methd == 'GET'",
            "line 1, column 1: `request.methd` is not known; there are request.method, request.path, ",
        ),
        (
            "header['a'] == 'b'",
            "line 1, column 1: `header` is not known; names begin with destination, request, source",
        ),
        (
            "request.path == 1",
            "line 1, column 14: `==` does not take string and int",
        ),
        (
            "request.path = '/a'",
            "line 1, column 14: `=` is no operator; equality is `==`",
        ),
        (
            "true &&\n  request.size",
            "line 2, column 11: `&&` takes bool, and this is int",
        ),
        (
            "request.path",
            "line 1, column 9: the value is string, and bool is needed here",
        ),
        (
            "request.headers == {}",
            "line 1, column 9: this is asked for one entry at a time",
        ),
        (
            "['a'].exists(x, x == 'a')",
            "line 1, column 7: `exists` would be a loop",
        ),
        (
            "request.path.startWith('/a')",
            "line 1, column 14: there is no function `startWith`",
        ),
        (
            "startsWith(request.path, '/a')",
            "line 1, column 1: `startsWith` is written `text.startsWith(…)`",
        ),
        (
            "request.path.contains(1)",
            "line 1, column 14: `contains` does not take string and int",
        ),
        (
            "request.path.matches(request.host)",
            "line 1, column 14: `matches` takes a text and a pattern that is written out",
        ),
        (
            "request.path.matches('(')",
            "line 1, column 22: the pattern is no regular expression",
        ),
        (
            "cidr('10.0.0.0/33').containsIP(source.address)",
            "line 1, column 1: \"10.0.0.0/33\" is no network",
        ),
        (
            "request.method == 'GET",
            "line 1, column 19: the text has no ' at its end",
        ),
        (
            "request.method == 'G\\ET'",
            "line 1, column 21: `\\E` is no escape",
        ),
        (
            "(true",
            "line 1, column 6: the end stands where `)` is expected",
        ),
        (
            "true true",
            "line 1, column 6: a literal stands where an operator or the end is expected",
        ),
        (
            "",
            "line 1, column 1: the end stands where a value is expected",
        ),
        (
            "9223372036854775808 > 0",
            "line 1, column 1: the integer is out of its range",
        ),
        ("if == 1", "line 1, column 1: `if` is a reserved word"),
        (
            "request.method == \u{201c}GET\u{201d}",
            "line 1, column 19: '\u{201c}' is not expected here",
        ),
    ] {
        let error = refused(source);
        assert!(error.starts_with(expected), "{source}: {error}");
    }
}

#[test]
fn length_and_depth_are_bounded() {
    let long = format!("request.path == '{}'", "a".repeat(4096));
    assert!(refused(&long).contains("at most 4096 are allowed"));
    let deep = [
        format!("{}true{}", "(".repeat(60), ")".repeat(60)),
        format!("{}true", "!".repeat(60)),
        format!("{}1 > 0", "- ".repeat(60)),
        format!("true{}", " && true".repeat(60)),
        format!("{}{}", "true ? true : ".repeat(60), "true"),
        format!("request.headers{}", "['a']".repeat(60)),
        format!("request.path{} == ''", ".trim()".repeat(60)),
        format!("{}{}", "[".repeat(60), "]".repeat(60)),
    ];
    // Short rows, each the first operand of another.
    let mut rows = "1".to_owned();
    for _ in 0..20 {
        rows = format!("({rows} + 1 + 1 + 1 + 1)");
    }
    let deep = deep.into_iter().chain([format!("{rows} > 0")]);
    for source in deep {
        let error = refused(&source);
        assert!(error.contains("more than 48"), "{source}: {error}");
    }
}

#[test]
fn results_are_bounded() {
    // Each `+` doubles what there is.
    let mut source = "request.path".to_owned();
    for _ in 0..16 {
        source = format!("({source}).replace('', 'xxxxxxxxxxxxxxxx')");
    }
    assert_eq!(
        condition(&format!("size({source}) > 0")),
        Err(NoValue::TooLong)
    );
    let mut double = "'0123456789abcdef'".to_owned();
    for _ in 0..7 {
        double = format!("({double} + {double})");
    }
    assert_eq!(condition(&format!("size({double}) == 2048")), Ok(true));
}

/// A source of tokens that do not always fit.
fn sources() -> impl Strategy<Value = String> {
    let token = prop_oneof![
        Just("request.path"),
        Just("request.headers"),
        Just("request.size"),
        Just("'a'"),
        Just("b'\\xff'"),
        Just("1"),
        Just("-9223372036854775808"),
        Just("2u"),
        Just("1.5"),
        Just("null"),
        Just("true"),
        Just("["),
        Just("]"),
        Just("("),
        Just(")"),
        Just("{"),
        Just("}"),
        Just("'a': 1"),
        Just(","),
        Just("."),
        Just("size"),
        Just("int("),
        Just("string("),
        Just("has(request.headers.a)"),
        Just("+"),
        Just("-"),
        Just("*"),
        Just("/"),
        Just("%"),
        Just("=="),
        Just("<"),
        Just("in"),
        Just("&&"),
        Just("||"),
        Just("!"),
        Just("?"),
        Just(":"),
        Just(".trim()"),
        Just(".split('')"),
        Just(".substring(1)"),
        Just(".replace('a', 'b')"),
        Just("['a']"),
        Just("[0]"),
        Just("dyn("),
    ];
    prop::collection::vec(token, 1..12).prop_map(|tokens| tokens.join(" "))
}

proptest! {
    #[test]
    fn nothing_panics(source in prop_oneof![sources(), ".{0,40}"]) {
        if let Ok(expression) = Expression::compile(&source, &request::log_scope(), &Type::Dyn) {
            let mut shown = String::new();
            let _ = write!(shown, "{:?}", expression.value(&Request));
        }
    }

    /// The checker promises no type that the value does not have.
    #[test]
    fn a_value_has_the_type_that_was_promised(source in sources()) {
        let Ok(expression) = Expression::compile(&source, &request::scope(), &Type::Dyn) else { return Ok(()) };
        let Ok(value) = expression.value(&Request) else { return Ok(()) };
        let fits = matches!((expression.kind(), &value),
            (Type::Dyn, _) | (Type::Null, Value::Null) | (Type::Bool, Value::Bool(_)) | (Type::Int, Value::Int(_))
            | (Type::Uint, Value::Uint(_)) | (Type::Double, Value::Double(_)) | (Type::String, Value::String(_))
            | (Type::Bytes, Value::Bytes(_)) | (Type::List(_), Value::List(_)) | (Type::Map(..), Value::Map(_))
            | (Type::Type, Value::Type(_)));
        prop_assert!(fits, "{source}: {:?} is no {}", value, expression.kind());
    }
}
