//! A server that does what a test says with each connection, and remembers every byte it got.

use crate::{Message, PATIENCE, holds_within, read_message};
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The application behind a sidecar.
pub struct Server {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Vec<u8>>>>,
    stopped: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<Weak<TcpStream>>>>,
    accepting: Option<JoinHandle<()>>,
}

/// One connection of the server.
pub struct Connection {
    reader: BufReader<Recorder>,
    /// Its place in the order of acceptance, from 0.
    pub number: usize,
}

struct Recorder {
    stream: Arc<TcpStream>,
    received: Arc<Mutex<Vec<Vec<u8>>>>,
    number: usize,
}

impl Read for Recorder {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = (&*self.stream).read(buf)?;
        self.received.lock().unwrap()[self.number].extend_from_slice(&buf[..count]);
        Ok(count)
    }
}

impl Server {
    /// Serves each connection with `serve` in a thread of its own.
    pub fn start(serve: impl Fn(Connection) + Send + Sync + 'static) -> Self {
        Self::on((Ipv4Addr::LOCALHOST, 0).into(), serve)
    }

    /// Like `start`, on a given address.
    pub fn on(address: SocketAddr, serve: impl Fn(Connection) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let mut server = Self {
            address: listener.local_addr().unwrap(),
            received: Arc::default(),
            stopped: Arc::default(),
            open: Arc::default(),
            accepting: None,
        };
        let (received, stopped) = (server.received.clone(), server.stopped.clone());
        let open = server.open.clone();
        let serve = Arc::new(serve);
        let accept = move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                stream.set_nodelay(true).unwrap();
                stream.set_read_timeout(Some(PATIENCE * 3)).unwrap();
                // Weak: a handler that ends closes its connection.
                let stream = Arc::new(stream);
                open.lock().unwrap().push(Arc::downgrade(&stream));
                let mut all = received.lock().unwrap();
                let number = all.len();
                all.push(Vec::new());
                drop(all);
                let recorder = Recorder {
                    stream,
                    received: received.clone(),
                    number,
                };
                let connection = Connection {
                    reader: BufReader::new(recorder),
                    number,
                };
                let serve = serve.clone();
                std::thread::spawn(move || serve(connection));
            }
        };
        server.accepting = Some(std::thread::spawn(accept));
        server
    }

    /// An HTTP server: `answer` makes the bytes of a response from a request.
    pub fn http(answer: impl Fn(&Message) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::start(move |mut connection| {
            while let Ok(request) = connection.request() {
                if connection.try_send(answer(&request)).is_err() {
                    return;
                }
            }
        })
    }

    /// An HTTP server that answers with the request it got: head, empty line, body.
    pub fn echo() -> Self {
        Self::http(|request| {
            let mut body = request.head.clone().into_bytes();
            body.extend_from_slice(&request.body);
            ok(&body)
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the bytes that each connection has sent so far.
    pub fn received(&self) -> Vec<Vec<u8>> {
        self.received.lock().unwrap().clone()
    }

    /// All of it as text.
    pub fn received_text(&self) -> String {
        String::from_utf8_lossy(&self.received().concat()).into_owned()
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.received.lock().unwrap().len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Ends the accept loop, where this reaches it. From then on nobody is connected whom no one would accept.
        let _ = TcpStream::connect(self.address);
        holds_within(Duration::from_secs(1), "the server ends", || {
            self.accepting.as_ref().is_none_or(JoinHandle::is_finished)
        });
        for stream in self
            .open
            .lock()
            .unwrap()
            .drain(..)
            .filter_map(|s| s.upgrade())
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Connection {
    /// Sends back what comes, until no more does.
    pub fn echo(mut self) {
        while let Ok(bytes) = self.read_some() {
            if bytes.is_empty() || self.try_send(bytes).is_err() {
                return;
            }
        }
    }

    /// Reads a request.
    ///
    /// # Errors
    /// The connection ended or what came is no request.
    pub fn request(&mut self) -> io::Result<Message> {
        read_message(&mut self.reader, None)
    }

    /// Reads some bytes; empty at the end.
    ///
    /// # Errors
    /// The connection was reset.
    pub fn read_some(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 64 * 1024];
        let count = self.reader.read(&mut bytes)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Reads exactly this many bytes.
    ///
    /// # Errors
    /// The connection ended before.
    pub fn read_exact(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads up to the empty line.
    ///
    /// # Errors
    /// The connection ended before.
    pub fn head(&mut self) -> io::Result<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(self.read_exact(1)?);
        }
        Ok(String::from_utf8_lossy(&head).into_owned())
    }

    /// Sends bytes; the proxy may have gone.
    ///
    /// # Errors
    /// It has gone.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream().write_all(bytes.as_ref())
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // A test that has failed ends its proxy first; that is not this thread's to report.
        let _ = self.try_send(bytes);
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        &self.reader.get_ref().stream
    }

    /// Nothing more will be sent.
    pub fn half_close(&self) {
        let _ = self.stream().shutdown(Shutdown::Write);
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        let linger =
            rustix::net::sockopt::set_socket_linger(self.stream(), Some(std::time::Duration::ZERO));
        linger.unwrap();
    }
}

/// A 200 response with a length.
pub fn ok(body: &[u8]) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    out.extend_from_slice(body);
    out
}
