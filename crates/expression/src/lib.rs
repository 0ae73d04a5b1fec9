//! Conditions and values that users write in CEL, the [Common Expression Language](https://cel.dev).
//!
//! An expression is parsed, checked and compiled once, when it is applied ([`Expression::compile`]): a
//! wrong type or an unknown name is an error with line and column. Evaluating it then allocates nothing
//! for the common operators, and takes a time that its length bounds, because there are no loops:
//! the macros `all`, `exists`, `exists_one`, `map` and `filter` are not offered.
//!
//! ```
//! use tulle_expression::{Expression, NoValue, Input, Scope, Type, Value, Variable};
//!
//! struct Get;
//! impl Input for Get {
//!     fn read(&self, _: Variable) -> Result<Value<'_>, NoValue> {
//!         Ok(Value::string("/ratings/7"))
//!     }
//! }
//! let variables = [("request.path", Type::String)];
//! let scope = Scope::new(&variables);
//! let expression = Expression::compile("request.path.startsWith('/ratings/')", &scope, &Type::Bool).unwrap();
//! assert_eq!(expression.condition(&Get), Ok(true));
//!
//! let error = Expression::compile("request.path + 1 == 2", &scope, &Type::Bool).unwrap_err();
//! assert_eq!(error.to_string(), "line 1, column 14: `+` does not take string and int");
//! ```
//!
//! The folders in the order of their use: `syntax` (text to tree), `check` (tree to program), `program`
//! (evaluation), `request` (the variables of Tulle's own expressions).

#![cfg_attr(not(test), deny(clippy::indexing_slicing))] // nothing from the network may panic

mod check;
mod error;
mod functions;
mod program;
pub mod request;
mod scope;
mod syntax;
mod types;
mod value;

pub use error::{Error, NoValue};
pub use program::{Expression, Input};
pub use scope::{Scope, Variable};
pub use types::Type;
pub use value::{List, Value};

/// Longest source of an expression in bytes.
pub const MAX_SOURCE_BYTES: usize = 4096;
/// Deepest nesting: of parentheses, operators and calls.
pub const MAX_DEPTH: usize = 48;
/// Longest text or list that an expression may make, in bytes or items.
pub const MAX_RESULT: usize = 64 * 1024;
