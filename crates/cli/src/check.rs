//! stub
use crate::failure::Result;
pub(crate) async fn check(_: &crate::paths::Paths, _: &crate::args::Check) -> Result<std::process::ExitCode> { Ok(0.into()) }
