//! The other end of a command that asks a cluster's controller: runs in the controller's pod and
//! passes on what goes between its own input and output and the controller's socket.

use crate::failure::{OrFail, Result};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use tokio::fs::File;
use tokio::io::copy;
use tokio::net::UnixStream;
use tulle_kube::install::RUN_DIRECTORY;

/// First word of its command line.
pub(crate) const SUBCOMMAND: &str = "control-stream";

/// Runs until either side ends.
pub(crate) async fn main() -> Result<()> {
    let socket = Path::new(RUN_DIRECTORY).join("private/control.sock");
    let what = || format!("cannot reach the controller at {}", socket.display());
    let stream = UnixStream::connect(&socket).await.or_fail(what)?;
    let (mut from, mut to) = stream.into_split();
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let (mut input, mut output) = (file(input.as_fd())?, file(output.as_fd())?);
    tokio::select! {
        done = copy(&mut input, &mut to) => done,
        done = copy(&mut from, &mut output) => done,
    }
    .or_fail(what)?;
    Ok(())
}

/// Unbuffered: what has come goes on at once.
fn file(descriptor: BorrowedFd<'_>) -> Result<File> {
    let own = descriptor.try_clone_to_owned();
    let own = own.or_fail(|| "cannot use input and output".to_owned())?;
    Ok(File::from_std(own.into()))
}
