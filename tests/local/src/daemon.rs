//! Real servers that people put behind sidecars, as Debian packages them: each on a free port with
//! a directory of its own, as a user without privileges, ended with the test.

use crate::{PATIENCE, free_port, holds_within, runs_as_root, skip};
use rustix::process::Signal;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// `nobody`. Database servers refuse to be root, and want a user with a name.
const NOBODY: u32 = 65534;

/// A running server.
pub struct Daemon {
    child: Child,
    directory: tempfile::TempDir,
    /// The signal that makes it end at once and in order.
    farewell: Signal,
    /// Where it listens.
    pub address: SocketAddr,
}

/// The place of a program of Debian; says that a test is skipped where there is none.
pub fn installed(program: &str, package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.push("/usr/sbin".into());
    // Debian keeps the servers of several versions beside each other.
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    places.extend(versions.flatten().map(|v| v.path().join("bin")));
    let found = places
        .into_iter()
        .map(|place| place.join(program))
        .find(|file| file.is_file());
    if found.is_none() {
        skip(format_args!(
            "there is no {program} (Debian package {package})"
        ));
    }
    found
}

impl Daemon {
    /// Starts a server with the arguments made from its directory and port, after `prepare` has run
    /// (as the same user, in the same directory). `None`: it is not installed.
    pub fn start(
        program: &str,
        package: &str,
        prepare: impl FnOnce(&dyn Fn(&Path) -> Command, &Path),
        arguments: impl FnOnce(&Path, u16) -> Vec<String>,
    ) -> Option<Self> {
        let program = installed(program, package)?;
        let directory = tempfile::Builder::new()
            .prefix("tulle-test-")
            .tempdir()
            .unwrap();
        let root = runs_as_root();
        if root {
            std::os::unix::fs::chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let command = |program: &Path| {
            let mut command = Command::new(program);
            command
                .current_dir(directory.path())
                .stdin(Stdio::null())
                .stdout(log(directory.path()))
                .stderr(log(directory.path()));
            if root {
                command.uid(NOBODY).gid(NOBODY);
            }
            command
        };
        prepare(&command, directory.path());
        let port = free_port();
        let child = command(&program)
            .args(arguments(directory.path(), port))
            .spawn()
            .unwrap();
        let mut daemon = Self {
            child,
            directory,
            farewell: Signal::TERM,
            address: (Ipv4Addr::LOCALHOST, port).into(),
        };
        daemon.await_listening();
        Some(daemon)
    }

    fn await_listening(&mut self) {
        let mut ended = None;
        let listens = holds_within(PATIENCE * 3, "the server listens", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some() || TcpStream::connect(self.address).is_ok()
        });
        assert!(
            ended.is_none() && listens,
            "the server does not start: {ended:?}\n{}",
            self.log()
        );
    }

    /// PostgreSQL; with TLS of its own where a certificate and key are given.
    pub fn postgres(tls: Option<&Path>) -> Option<Self> {
        let initdb = installed("initdb", "postgresql")?;
        let prepare = |command: &dyn Fn(&Path) -> Command, directory: &Path| {
            let options = ["-A", "trust", "-U", "postgres", "--no-sync", "-D", "data"];
            let made = command(&initdb).args(options).status().unwrap();
            assert!(made.success(), "initdb: {made}");
            for name in ["cert.pem", "key.pem"] {
                let Some(from) = tls else { continue };
                let to = directory.join(name);
                fs::copy(from.join(name), &to).unwrap();
                fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
                let owner = fs::metadata(directory).unwrap();
                use std::os::unix::fs::MetadataExt;
                std::os::unix::fs::chown(&to, Some(owner.uid()), Some(owner.gid())).unwrap();
            }
        };
        let mut started = Self::start("postgres", "postgresql", prepare, |directory, port| {
            let mut settings = vec![
                format!("port={port}"),
                "listen_addresses=127.0.0.1".into(),
                "unix_socket_directories=".into(),
                "fsync=off".into(),
            ];
            if tls.is_some() {
                let file = |name: &str| directory.join(name).display().to_string();
                settings.push("ssl=on".into());
                settings.push(format!("ssl_cert_file={}", file("cert.pem")));
                settings.push(format!("ssl_key_file={}", file("key.pem")));
            }
            let settings = settings.into_iter().flat_map(|s| ["-c".to_owned(), s]);
            ["-D".to_owned(), "data".to_owned()]
                .into_iter()
                .chain(settings)
                .collect()
        })?;
        started.farewell = Signal::INT;
        Some(started)
    }

    /// MariaDB, which speaks first. Without tables of users anybody may log in.
    pub fn mariadb() -> Option<Self> {
        let prepare = |_: &dyn Fn(&Path) -> Command, directory: &Path| {
            let data = directory.join("data");
            fs::create_dir(&data).unwrap();
            fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
        };
        Self::start(
            "mariadbd",
            "mariadb-server-core",
            prepare,
            |directory, port| {
                let file = |name: &str| directory.join(name).display().to_string();
                vec![
                    "--no-defaults".into(),
                    "--skip-grant-tables".into(),
                    "--bind-address=127.0.0.1".into(),
                    "--innodb-log-file-size=4M".into(),
                    "--innodb-buffer-pool-size=8M".into(),
                    "--max-allowed-packet=64M".into(),
                    format!("--datadir={}", file("data")),
                    format!("--socket={}", file("socket")),
                    format!("--pid-file={}", file("pid")),
                    format!("--port={port}"),
                ]
            },
        )
    }

    /// Redis.
    pub fn redis() -> Option<Self> {
        let nothing = |_: &dyn Fn(&Path) -> Command, _: &Path| {};
        Self::start("redis-server", "redis-server", nothing, |_, port| {
            let port = port.to_string();
            let options = ["--port", &port, "--bind", "127.0.0.1", "--save", ""];
            options.map(str::to_owned).to_vec()
        })
    }

    /// A mail server, which speaks first; prints the messages it takes.
    pub fn smtp() -> Option<Self> {
        let nothing = |_: &dyn Fn(&Path) -> Command, _: &Path| {};
        Self::start("aiosmtpd", "python3-aiosmtpd", nothing, |_, port| {
            let listen = format!("127.0.0.1:{port}");
            let options = ["-n", "-l", &listen];
            options.map(str::to_owned).to_vec()
        })
    }

    /// Returns the output so far.
    pub fn log(&self) -> String {
        let text = fs::read(self.directory.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn log(directory: &Path) -> File {
    let file = File::options()
        .append(true)
        .create(true)
        .open(directory.join("log"));
    file.unwrap()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // PostgreSQL leaves shared memory behind when it is killed, so it ends in order.
        crate::signal(self.child.id().cast_signed(), self.farewell);
        let ended = holds_within(PATIENCE, "the server ends", || {
            !matches!(self.child.try_wait(), Ok(None))
        });
        if !ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- log of the server:\n{}", self.log());
        }
    }
}
