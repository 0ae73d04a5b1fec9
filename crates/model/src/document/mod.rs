//! Reading YAML so that every complaint names its place: a tree with positions, typed values out of
//! it, and the errors. Shared by manifests and the proxy's file; knows the meaning of neither.

mod decode;
mod error;
mod node;
mod plain;
mod suggest;
mod write;

pub(crate) use decode::{decode, required};
pub use error::ManifestError;
pub(crate) use error::{Finding, Path, Report, shorten};
pub(crate) use node::{Node, Value};
pub use plain::{Booleans, Place, YamlDocument};
pub(crate) use suggest::did_you_mean;
pub use write::to_yaml;
