//! Shows the URL of a page, such as one that opens a session of the console: in a browser where there is a screen, else as text.

use crate::args::console::Dashboard;
use crate::failure::Result;
use crate::output::{self, line};
use serde::Serialize;
use std::process::{Command, Stdio};

/// The program that knows the user's browser.
const OPENER: &str = "xdg-open";
/// Variables that name a screen.
const SCREENS: [&str; 2] = ["DISPLAY", "WAYLAND_DISPLAY"];

#[derive(Serialize)]
struct Opened<'u> {
    url: &'u str,
    /// The URL opens one session, within this time.
    ttl_seconds: u32,
}

/// Opens or prints it, as the options say.
pub(crate) fn present(url: &str, ttl_seconds: u32, args: &Dashboard) -> Result<()> {
    if output::structured(&Opened { url, ttl_seconds }, args.format.output)? {
        return Ok(());
    }
    if args.print_url {
        line(url);
        return Ok(());
    }
    let opened = !args.no_open && has_screen() && open(url);
    line(&match opened {
        true => format!("the dashboard opens in your browser: {url}"),
        false => format!("open the dashboard within {ttl_seconds} s: {url}"),
    });
    Ok(())
}

/// Opens a page of files, or prints its URL.
pub(crate) fn show(url: &str, print_url: bool) {
    let opened = !print_url && has_screen() && open(url);
    match opened {
        true => line(&format!("the documentation opens in your browser: {url}")),
        false => line(url),
    }
}

/// The name that the console shows for whoever runs this command.
pub(crate) fn user() -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"].into_iter();
    let mut named = named.filter_map(|variable| std::env::var(variable).ok());
    let found = named.find(|name| !name.is_empty());
    let uid = rustix::process::getuid();
    found.unwrap_or_else(|| match uid.is_root() {
        true => "root".to_owned(),
        false => format!("user {}", uid.as_raw()),
    })
}

fn has_screen() -> bool {
    let set = |variable| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    SCREENS.into_iter().any(set)
}

/// Starts the browser and leaves it alone.
fn open(url: &str) -> bool {
    let mut command = Command::new(OPENER);
    command
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().is_ok()
}
