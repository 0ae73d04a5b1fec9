//! No source makes the compiler of expressions panic, and no expression that it accepts panics when it is evaluated,
//! whatever the request is; a value has the type that was promised.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tulle_expression::{Expression, Input, NoValue, Type, Value, Variable, request};

struct Request<'a>(&'a [u8]);

impl Input for Request<'_> {
    fn read(&self, variable: Variable) -> Result<Value<'_>, NoValue> {
        match variable {
            request::SIZE | request::DESTINATION_PORT => Ok(Value::Int(self.0.len() as i64)),
            request::SOURCE_ADDRESS => Ok(Value::string("10.1.2.3")),
            _ => Value::text(self.0),
        }
    }

    fn entry(&self, _: Variable, key: &str) -> Result<Option<Value<'_>>, NoValue> {
        match key.len() % 3 {
            0 => Ok(None),
            1 => Err(NoValue::Ambiguous),
            _ => Value::text(self.0).map(Some),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    // The request comes after the first zero.
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let source = parts.next().unwrap_or_default();
    let request = Request(parts.next().unwrap_or_default());
    let Ok(source) = std::str::from_utf8(source) else {
        return;
    };
    let Ok(expression) = Expression::compile(source, &request::scope(), &Type::Dyn) else {
        return;
    };
    let Ok(value) = expression.value(&request) else {
        return;
    };
    let kept = match expression.kind() {
        Type::Bool => matches!(value, Value::Bool(_)),
        Type::Int => matches!(value, Value::Int(_)),
        Type::Uint => matches!(value, Value::Uint(_)),
        Type::Double => matches!(value, Value::Double(_)),
        Type::String => matches!(value, Value::String(_)),
        _ => true,
    };
    assert!(kept, "{source}: {value:?} is no {}", expression.kind());
});
