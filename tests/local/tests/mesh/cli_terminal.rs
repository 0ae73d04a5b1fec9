//! `tulle up` on a terminal: progress, the proof, a live view that fits, Ctrl-C.
//!
//! The terminal is a real one of the kernel's; what it would show is worked out by a small screen
//! that knows the few sequences the command uses and panics at any other.

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tests_local::{Demo, PATIENCE, holds_within};

/// Rows of text, the last `height` of which are on the screen.
struct Screen {
    height: usize,
    rows: Vec<Vec<char>>,
    at: (usize, usize),
    coloured: bool,
}

impl Screen {
    fn new(height: usize) -> Self {
        Self {
            height,
            rows: vec![Vec::new()],
            at: (0, 0),
            coloured: false,
        }
    }

    fn text(&self) -> String {
        let rows = self.rows.iter().map(|row| row.iter().collect::<String>());
        rows.map(|r| r.trim_end().to_owned())
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Returns the visible rows.
    fn visible(&self) -> String {
        let from = self.rows.len().saturating_sub(self.height);
        let text = self.text();
        text.lines().skip(from).collect::<Vec<_>>().join("\n")
    }

    fn put(&mut self, c: char) {
        let (row, column) = self.at;
        let line = &mut self.rows[row];
        if line.len() <= column {
            line.resize(column + 1, ' ');
        }
        line[column] = c;
        self.at.1 += 1;
    }

    fn feed(&mut self, text: &str) {
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match c {
                '\r' => self.at.1 = 0,
                '\n' => {
                    self.at.0 += 1;
                    if self.at.0 == self.rows.len() {
                        self.rows.push(Vec::new());
                    }
                }
                '\x1b' => {
                    assert_eq!(chars.next(), Some('['));
                    let mut number = String::new();
                    let end = loop {
                        match chars.next().unwrap() {
                            c if c.is_ascii_digit() || c == ';' => number.push(c),
                            c => break c,
                        }
                    };
                    let (row, column) = self.at;
                    match (end, number.as_str()) {
                        ('m', _) => self.coloured = true,
                        ('A', up) => {
                            self.at.0 = row.checked_sub(up.parse().unwrap()).expect("above the top")
                        }
                        ('K', "") => self.rows[row].truncate(column),
                        ('J', "") => {
                            self.rows.truncate(row + 1);
                            self.rows[row].truncate(column);
                        }
                        other => panic!("unexpected sequence {other:?}"),
                    }
                    assert!(
                        self.at.0 + self.height >= self.rows.len(),
                        "what scrolled away is not drawn over"
                    );
                }
                c => self.put(c),
            }
        }
    }
}

/// `tulle` on a terminal of its own.
struct Terminal {
    child: Child,
    keyboard: File,
    /// Kept open, to ask for its settings after the command has ended.
    far: OwnedFd,
    before: Termios,
    screen: Arc<Mutex<Screen>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    fn start(command: Command, width: u16, height: u16) -> Self {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&near).unwrap();
        unlockpt(&near).unwrap();
        let name = ptsname(&near, Vec::new()).unwrap().into_bytes();
        let path = std::ffi::OsString::from_vec(name);
        let size = Winsize {
            ws_row: height,
            ws_col: width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&near, size).unwrap();
        let open = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .unwrap()
        };
        let far = open();
        // Makes it the controlling terminal, so that Ctrl-C is a signal.
        let program = command.get_program().to_owned();
        let mut session = Command::new("setsid");
        session
            .args(["--ctty", "--wait"])
            .arg(program)
            .args(command.get_args());
        if let Some(directory) = command.get_current_dir() {
            session.current_dir(directory);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        session
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .process_group(0);
        let before = tcgetattr(&far).unwrap();
        let child = session.spawn().unwrap();
        let screen = Arc::new(Mutex::new(Screen::new(height.into())));
        let mut from = File::from(near.try_clone().unwrap());
        let shown = Arc::clone(&screen);
        let reader = std::thread::spawn(move || {
            let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                bytes.extend_from_slice(&buffer[..count]);
                // A character or a sequence may come in two parts.
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let whole = text.rfind('\n').map_or(0, |at| at + 1);
                let (now, later) = text.split_at(whole);
                shown.lock().unwrap().feed(now);
                bytes = later.as_bytes().to_vec();
            }
        });
        Self {
            child,
            keyboard: File::from(near),
            far: far.into(),
            before,
            screen,
            reader: Some(reader),
        }
    }

    fn shows(&self, text: &str) -> bool {
        self.screen.lock().unwrap().visible().contains(text)
    }

    /// Waits until all of this is shown; says what is shown instead.
    fn await_shown(&self, parts: &[&str]) {
        // A whole mesh starts before the first part is shown.
        let shown = holds_within(PATIENCE * 3, "the terminal shows it", || {
            parts.iter().all(|part| self.shows(part))
        });
        let text = self.screen.lock().unwrap().text();
        assert!(shown, "{parts:?} is never shown:\n{text}");
    }

    /// Presses Ctrl-C and waits for the end: exit code, everything shown, colours.
    fn interrupt(mut self) -> (i32, String, bool) {
        self.keyboard.write_all(b"\x03").unwrap();
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        let after = tcgetattr(&self.far).unwrap();
        assert_eq!(
            format!("{after:?}"),
            format!("{:?}", self.before),
            "settings are as before"
        );
        drop(self.far);
        self.reader.take().unwrap().join().unwrap();
        let screen = self.screen.lock().unwrap();
        (code, screen.text(), screen.coloured)
    }
}

fn up(demo: &Demo, more: &[&str]) -> Command {
    let mut command = demo.interruptible();
    command
        .arg("up")
        .arg(&demo.manifest)
        .args(["--loopback", "--listen", "127.0.0.1:0"]);
    command
        .args(more)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    command
}

const PROOF: &str = "each mutual TLS between the two identities shown";

#[test]
fn the_view_appears_stays_in_place_and_ctrl_c_ends_the_mesh() {
    for (width, height) in [(80, 24), (120, 40)] {
        let demo = Demo::prepare(true, |text| text);
        let terminal = Terminal::start(up(&demo, &["--verify"]), width, height);
        terminal.await_shown(&["Ctrl-C stops the mesh."]);
        for part in [
            "every service answers",
            "WORKLOAD           READY  CERTIFICATE",
            "ingress (gateway)  yes",
            "below spiffe://tulle.local/svc/",
            "ingress      ratings      mutual_tls",
            PROOF,
        ] {
            assert!(terminal.shows(part), "{part} at {width}×{height}");
        }
        // It is alive: what happens now is seen without another line being used.
        let rows = terminal.screen.lock().unwrap().rows.len();
        for _ in 0..40 {
            assert_eq!(demo.get("/productpage").status(), 200);
        }
        terminal.await_shown(&["mutual_tls  41"]);
        assert_eq!(terminal.screen.lock().unwrap().rows.len(), rows);

        let (code, text, coloured) = terminal.interrupt();
        assert_eq!(code, 0, "{text}");
        assert!(
            text.contains("stopping") && text.contains("nothing is left of it"),
            "{text}"
        );
        assert!(!text.contains("^C"), "{text}");
        assert!(
            text.contains("/productpage") && text.contains(PROOF),
            "the proof stays: {text}"
        );
        assert!(coloured, "{text}");
        // Lines that are overwritten must not break into two.
        let view = text.split("\nmesh ").nth(1).unwrap();
        assert!(
            view.lines().all(|l| l.chars().count() <= width.into()),
            "{text}"
        );
        assert_eq!(demo.left(), Vec::<String>::new());
    }
}

#[test]
fn a_low_and_narrow_terminal_keeps_what_matters() {
    let demo = Demo::prepare(true, |text| text);
    let mut command = up(&demo, &["--verify"]);
    command.env("NO_COLOR", "1");
    let terminal = Terminal::start(command, 60, 10);
    terminal.await_shown(&["Ctrl-C stops the mesh."]);
    for part in [
        "more lines: `tulle status` shows all",
        "hops, each mutual TLS",
    ] {
        assert!(terminal.shows(part), "{part}");
    }
    let (code, text, coloured) = terminal.interrupt();
    assert_eq!(code, 0, "{text}");
    assert!(!coloured, "{text}");
    assert_eq!(demo.left(), Vec::<String>::new());
}

#[test]
fn a_dumb_terminal_gets_plain_lines() {
    let demo = Demo::prepare(true, |text| text);
    let mut command = up(&demo, &["--verify"]);
    command.env("TERM", "dumb");
    let terminal = Terminal::start(command, 80, 24);
    terminal.await_shown(&["the mesh is up; Ctrl-C stops it"]);
    let (code, text, coloured) = terminal.interrupt();
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("workload ratings is ready") && text.contains(PROOF),
        "{text}"
    );
    assert!(!coloured, "{text}");
    assert_eq!(demo.left(), Vec::<String>::new());
}

#[test]
fn progress_names_what_is_not_ready_and_ctrl_c_ends_it_too() {
    let demo = Demo::prepare(true, |_| {
        "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {name: slow}\nspec:\n  \
         command: [sleep, '1000']\n  readinessProbe: {exec: {command: ['false']}}\n"
            .into()
    });
    let terminal = Terminal::start(up(&demo, &[]), 80, 24);
    terminal.await_shown(&[
        "starting: 0 of 1 ready",
        "· workload slow  its probe ends with",
    ]);
    let (code, text, ..) = terminal.interrupt();
    assert_eq!(code, 0, "{text}");
    assert_eq!(demo.left(), Vec::<String>::new());
}

#[test]
fn a_terminal_is_told_which_mesh_is_asked() {
    let demo = Demo::start_on_loopback(|text| text);
    let mut command = demo.interruptible();
    command
        .args(["proxy", "list"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    let terminal = Terminal::start(command, 160, 40);
    let mesh = format!("mesh {} of this host", demo.name());
    terminal.await_shown(&[&mesh, "gateway.ingress"]);
    let (_, text, _) = terminal.interrupt();
    assert!(text.starts_with(&mesh), "{text}");
    // A program reads the result alone.
    let answer = demo.tulle(&["proxy", "list"]);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{answer:?}");
}
