//! JavaScript plugins: an engine that runs the hooks of one plugin on heads of requests and responses, within bounds of time and
//! memory.
//!
//! It knows no network and no clock that waits: where a plugin awaits something, a turn ends with what it wishes for, and
//! whoever called settles that later ([`ScriptEngine::settle`]). What a plugin changes is an edit in the call's [`Head`]; nothing
//! is changed behind its caller's back.
//!
//! ```
//! use tulle_script::{ScriptEngine, Head, Hook, ScriptLimits, Program, Subject, Turn};
//!
//! let source = "export function onRequest(request) { request.headers.set('x-tenant', 'a') }";
//! let program = Program::read("tenant.js", source).unwrap();
//! let engine = ScriptEngine::start(&program, "null", &ScriptLimits::default()).unwrap();
//! let head = Head::request("GET", "/", "ratings");
//! let call = engine.begin(Subject::new(head)).unwrap();
//! assert!(matches!(engine.run(call, Hook::Request), Turn::Done(None)));
//! let subject = engine.end(call).unwrap();
//! assert_eq!(subject.request.field("x-tenant").as_deref(), Some("a"));
//! ```

mod bounds;
mod call;
mod engine;
mod failure;
mod head;
mod host;
mod program;
mod sandbox;

pub use bounds::ScriptLimits;
pub use call::{CallId, Party, ScriptAnswer, Subject, Wish, WishId, WishKind};
pub use engine::{Fetched, Hook, ScriptEngine, Turn};
pub use failure::{FailureCause, ScriptFailure};
pub use head::{Head, HeadEdit};
pub use program::{Program, SourceError};
