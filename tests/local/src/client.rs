//! A client that sends exactly what a test says and reads exactly what comes.

use crate::{Message, PATIENCE, read_message};
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// A connection.
pub struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).unwrap_or_else(|e| panic!("connect to {address}: {e}"))
    }

    /// Connects if somebody listens.
    ///
    /// # Errors
    /// Nobody does.
    pub fn try_connect(address: SocketAddr) -> io::Result<Self> {
        Self::over(TcpStream::connect_timeout(&address, PATIENCE)?)
    }

    /// Connects from one of this host's IPv4 addresses.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn try_connect_from(source: Ipv4Addr, address: SocketAddr) -> io::Result<Self> {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddr::from((source, 0)))?;
        connect(&socket, &address)?;
        Self::over(socket.into())
    }

    fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    /// Whether a connection is ended, orderly or not, without an answer to these bytes. On a busy machine
    /// the end may come before the bytes are sent, and even before this side knows that it is connected.
    pub fn is_cut(address: SocketAddr, bytes: impl AsRef<[u8]>) -> bool {
        Self::try_connect(address).map_or(true, |mut client| {
            let _ = client.try_send(bytes);
            client.is_ended()
        })
    }

    /// Whether a connection is reset, not orderly ended, after these bytes. As with [`Self::is_cut`] the
    /// reset may come early; a socket tells of it once, to whoever asks first.
    pub fn is_reset(address: SocketAddr, bytes: impl AsRef<[u8]>) -> bool {
        let end = Self::try_connect(address).and_then(|mut client| {
            client.try_send(bytes)?;
            client.read_to_end()
        });
        end.is_err_and(|e| {
            !matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            )
        })
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the proxy takes what is sent");
    }

    /// Sends bytes to somebody who may have gone.
    ///
    /// # Errors
    /// It has gone.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes.as_ref())
    }

    /// Nothing more will be sent. The other side may have cut the connection by now.
    pub fn half_close(&self) {
        match self.stream().shutdown(Shutdown::Write) {
            Err(e) if e.kind() == io::ErrorKind::NotConnected => {}
            done => done.unwrap(),
        }
    }

    /// Reads the response to a request with this method.
    ///
    /// # Errors
    /// There was no complete response.
    pub fn try_response(&mut self, method: &str) -> io::Result<Message> {
        read_message(&mut self.reader, Some(method))
    }

    /// Reads a response that must be complete.
    pub fn response(&mut self, method: &str) -> Message {
        self.try_response(method)
            .unwrap_or_else(|e| panic!("no complete response: {e}"))
    }

    /// Sends a request without a body and reads its response.
    pub fn get(&mut self, target: &str) -> Message {
        self.send(get(target));
        self.response("GET")
    }

    /// Reads exactly this many bytes.
    pub fn read_exact(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes).expect("more bytes");
        bytes
    }

    /// Reads until the peer ends; the error if it was a reset.
    ///
    /// # Errors
    /// The connection was reset, or nothing came for too long.
    pub fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.reader.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Whether the peer ends the connection, orderly or not, without sending anything.
    pub fn is_ended(&mut self) -> bool {
        match self.reader.read(&mut [0]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => !matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ),
        }
    }

    /// Whether nothing comes for this long and the connection is still there.
    pub fn is_silent(&mut self, time: Duration) -> bool {
        self.stream().set_read_timeout(Some(time)).unwrap();
        let result = self.reader.read(&mut [0]);
        self.stream().set_read_timeout(Some(PATIENCE)).unwrap();
        matches!(
            result.map_err(|e| e.kind()),
            Err(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
        )
    }
}

/// A GET request.
pub fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: ratings\r\n\r\n")
}

/// A POST request with a length.
pub fn post(target: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut request =
        format!("POST {target} HTTP/1.1\r\nHost: ratings\r\nContent-Length: {length}\r\n\r\n")
            .into_bytes();
    request.extend_from_slice(body);
    request
}

/// One GET on a connection of its own.
pub fn one(address: SocketAddr, target: &str) -> Message {
    Client::connect(address).get(target)
}
