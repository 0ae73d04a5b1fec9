//! Generator and server as processes of their own, seen from the study that started them.

use super::client::{Load, Report};
use crate::failure::{Failure, OrFail, Result};
use crate::peer::http;
use crate::process::Process;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long the server may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server, running.
pub struct Server {
    /// The process, for its CPU time.
    pub process: Process,
}

/// Starts the server in the foreground.
///
/// # Errors
/// This program does not know where it is.
pub fn server_command(listen: SocketAddr) -> Result<Command> {
    let mut command = this_program()?;
    command.args(["internal", "server", "--listen", &listen.to_string()]);
    Ok(command)
}

impl Server {
    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// It does not.
    pub fn start(listen: SocketAddr, cpus: &[usize], log: &Path) -> Result<Self> {
        let mut process = Process::start("the server", server_command(listen)?, cpus, log)?;
        let end = Instant::now() + PATIENCE;
        loop {
            match http::get(listen.port(), "/bytes/0") {
                Ok(_) => return Ok(Self { process }),
                Err(why) => {
                    if let Some(ended) = process.ended() {
                        return Err(Failure::failed(ended));
                    }
                    if Instant::now() > end {
                        return Err(Failure::failed(format!("the server did not start: {why}")));
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// An event that the generator reports while it works.
#[derive(Debug)]
pub enum Event {
    /// The measurement begins.
    Begin,
    /// It is over; what was under way is waited for.
    End,
    /// All connections are open and idle.
    Holding,
    /// It has done everything.
    Done(Report),
}

/// The generator, running.
pub struct Generator {
    process: Process,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Generator {
    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(load: &Load, cpus: &[usize], log: &Path) -> Result<Self> {
        let mut command = this_program()?;
        let text = serde_json::to_string(load).or_fail(|| "cannot encode the load".to_owned())?;
        command.args(["internal", "load", &text]);
        let (process, input, output) =
            Process::start_piped("the load generator", command, cpus, log)?;
        let (say, lines) = channel();
        std::thread::spawn(move || {
            let read = BufReader::new(output)
                .lines()
                .map_while(std::io::Result::ok);
            for line in read {
                if say.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            process,
            input: Some(input),
            lines,
        })
    }

    /// Waits for the next event; none if there was none in this time.
    ///
    /// # Errors
    /// It has ended without its report.
    pub fn next(&mut self, time: Duration) -> Result<Option<Event>> {
        let line = match self.lines.recv_timeout(time) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                let tail = self.process.tail();
                let why = format!("the load generator ended without a report: {tail}");
                return Err(Failure::failed(why));
            }
        };
        let event = match line.as_str() {
            "begin" => Event::Begin,
            "end" => Event::End,
            "holding" => Event::Holding,
            report => {
                let report = serde_json::from_str(report)
                    .or_fail(|| format!("the load generator said {report:?}"))?;
                Event::Done(report)
            }
        };
        Ok(Some(event))
    }

    /// Connections need no longer be held.
    pub fn release(&mut self) {
        self.input = None;
    }
}

/// Load and server are internal commands of the program that runs the study.
fn this_program() -> Result<Command> {
    std::env::current_exe()
        .map(Command::new)
        .or_fail(|| "cannot find this program".to_owned())
}
