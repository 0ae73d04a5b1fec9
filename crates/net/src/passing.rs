//! Passes listening sockets to another process over a Unix socket, so that whoever may open a port need not be the one
//! who serves it.
//!
//! A message names an address and carries one listening socket for each worker. Without sockets it says that the address
//! is to be closed. The receiver answers each message with one byte when it has done so, before the next message is sent.
//! The kernel keeps sockets of two messages apart only so.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram as StdUnixDatagram, UnixStream as StdUnixStream};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Most sockets of one message: the kernel passes no more at once.
pub const MOST: usize = 253;
/// More than the text of an address has.
const LONGEST_ADDRESS: usize = 64;

/// An address with its listening sockets.
#[derive(Debug)]
pub struct PassedAddress {
    /// Where to listen, or no longer to.
    pub address: SocketAddr,
    /// A listening socket for each worker; none: the address is to be closed.
    pub sockets: Vec<TcpListener>,
    /// Answers the message when the last one who has it drops it.
    pub answer: Arc<Answer>,
}

/// Answers a message when dropped.
#[derive(Debug)]
pub struct Answer(StdUnixStream);

impl Drop for Answer {
    fn drop(&mut self) {
        // A sender that is gone needs none.
        let _ = self.0.write_all(&[0]);
    }
}

/// Returns the Unix socket that this process inherited under a number.
///
/// # Errors
/// Nothing is open under the number, or it is no Unix socket.
pub fn inherited(number: u16) -> io::Result<StdUnixStream> {
    let socket = StdUnixStream::from(copied(number)?);
    socket.local_addr()?;
    Ok(socket)
}

/// Returns the Unix socket for datagrams that this process inherited under a number.
///
/// # Errors
/// As [`inherited`].
pub fn inherited_datagrams(number: u16) -> io::Result<StdUnixDatagram> {
    let socket = StdUnixDatagram::from(copied(number)?);
    socket.local_addr()?;
    Ok(socket)
}

fn copied(number: u16) -> io::Result<OwnedFd> {
    // SAFETY: borrowed for the next call only, which fails harmlessly if nothing is open under the number.
    #[allow(unsafe_code)]
    let borrowed = unsafe { BorrowedFd::borrow_raw(number.into()) };
    // A copy: whoever else may have a handle of that number keeps it.
    borrowed.try_clone_to_owned()
}

/// Passes the sockets of an address on, or says that it is to be closed.
///
/// # Errors
/// The receiver is gone, or there are more than [`MOST`] sockets.
pub async fn pass(to: &UnixStream, address: SocketAddr, sockets: &[TcpListener]) -> io::Result<()> {
    let files: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    pass_files(to, address, &files).await
}

/// Passes sockets of any kind on, as [`pass`] does.
///
/// # Errors
/// As `pass`.
pub async fn pass_files(
    to: &UnixStream,
    address: SocketAddr,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let text = address.to_string();
    let send = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::Error::other(format!("{} sockets at once", files.len())));
        }
        let text = [IoSlice::new(text.as_bytes())];
        Ok(sendmsg(to, &text, &mut control, SendFlags::NOSIGNAL)?)
    };
    to.async_io(Interest::WRITABLE, send).await.map(drop)
}

/// Waits for the next message; none: the sender is gone.
///
/// # Errors
/// It cannot be received or is no such message, or this process may open too few files for its sockets.
pub fn receive(from: &StdUnixStream) -> io::Result<Option<PassedAddress>> {
    let Some((address, files)) = next_message(from)? else {
        return Ok(None);
    };
    Ok(Some(PassedAddress {
        address,
        sockets: files.into_iter().map(TcpListener::from).collect(),
        answer: Arc::new(Answer(from.try_clone()?)),
    }))
}

/// Waits for the next message, whose sockets may be of any kind, and answers it; none: the sender is gone.
///
/// # Errors
/// As [`receive`].
pub async fn receive_files(from: &UnixStream) -> io::Result<Option<(SocketAddr, Vec<OwnedFd>)>> {
    let received = from.async_io(Interest::READABLE, || next_message(from));
    let received = received.await?;
    if received.is_some() {
        from.writable().await?;
        from.try_write(&[0])?;
    }
    Ok(received)
}

/// Reads a message: its address, and its sockets.
fn next_message(from: impl AsFd) -> io::Result<Option<(SocketAddr, Vec<OwnedFd>)>> {
    let mut text = [0; LONGEST_ADDRESS];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut text)];
    let received = recvmsg(from, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            files.extend(passed);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("too few open files for its sockets"));
    }
    let address = text
        .get(..received.bytes)
        .and_then(|text| std::str::from_utf8(text).ok()?.parse().ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((address, files)))
}

/// Waits for the answer to the last message.
///
/// # Errors
/// The receiver is gone.
pub async fn answered(from: &UnixStream) -> io::Result<()> {
    let mut answer = [0];
    loop {
        from.readable().await?;
        match from.try_read(&mut answer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket;
    use std::net::{Ipv4Addr, TcpStream};
    use std::os::fd::AsRawFd;

    /// The supervisor's end, and that of the proxy.
    fn pair() -> (UnixStream, StdUnixStream) {
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (UnixStream::from_std(ours).unwrap(), theirs)
    }

    #[tokio::test]
    async fn clients_that_the_sender_accepted_none_of_are_served_by_the_receiver() {
        let (ours, theirs) = pair();
        let first = socket::open((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = first.local_addr().unwrap();
        let sockets = vec![first, socket::open(address).unwrap()];
        let clients: Vec<_> = (0..8)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        pass(&ours, address, &sockets).await.unwrap();
        drop(sockets);
        let passed = receive(&theirs).unwrap().unwrap();
        assert_eq!((passed.address, passed.sockets.len()), (address, 2));
        let accepted: usize = passed
            .sockets
            .iter()
            .map(|socket| std::iter::from_fn(|| socket.accept().ok()).count())
            .sum();
        assert_eq!(accepted, clients.len());

        // The receiver holds the last handle, so closing it closes the port.
        drop(passed);
        assert!(TcpStream::connect(address).is_err());
    }

    #[tokio::test]
    async fn messages_and_answers_alternate_until_one_side_is_gone() {
        let (ours, theirs) = pair();
        let address = "[fe80::1%4294967295]:65535".parse().unwrap();
        pass(&ours, address, &[]).await.unwrap();
        let passed = receive(&theirs).unwrap().unwrap();
        assert!(passed.address == address && passed.sockets.is_empty());
        let another = passed.answer.clone();
        drop(passed);
        let mut byte = [0];
        assert!(
            ours.try_read(&mut byte).is_err(),
            "not everybody has done it"
        );
        drop(another);
        answered(&ours).await.unwrap();

        ours.try_write(b"nowhere").unwrap();
        assert!(receive(&theirs).is_err());
        drop(ours);
        assert!(receive(&theirs).unwrap().is_none());
        let (ours, theirs) = pair();
        drop(theirs);
        assert!(answered(&ours).await.is_err());
        assert!(pass(&ours, address, &[]).await.is_err());
    }

    #[tokio::test]
    async fn sockets_of_any_kind_are_passed_between_two_event_loops() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let listener = socket::open((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let datagrams = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let files = [datagrams.as_fd(), listener.as_fd()];
        let send = async {
            pass_files(&ours, address, &files).await?;
            answered(&ours).await?;
            pass_files(&ours, address, &[]).await?;
            answered(&ours).await
        };
        let receive = async {
            let first = receive_files(&theirs).await.unwrap().unwrap();
            let second = receive_files(&theirs).await.unwrap().unwrap();
            (first, second)
        };
        let (sent, (first, second)) = tokio::join!(send, receive);
        sent.unwrap();
        assert!(first.0 == address && second.0 == address && second.1.is_empty());
        let [udp, tcp] = <[OwnedFd; 2]>::try_from(first.1).unwrap();
        let same = std::net::UdpSocket::from(udp).local_addr().unwrap();
        assert_eq!(same, datagrams.local_addr().unwrap());
        assert_eq!(TcpListener::from(tcp).local_addr().unwrap(), address);
        drop(ours);
        assert!(receive_files(&theirs).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn more_sockets_than_the_kernel_passes_are_refused() {
        let (ours, _theirs) = pair();
        let one = socket::open((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = one.local_addr().unwrap();
        let many = |count| -> Vec<TcpListener> {
            let copies = (0..count).map(|_| one.try_clone().unwrap());
            copies.collect()
        };
        assert!(pass(&ours, address, &many(MOST + 1)).await.is_err());
        pass(&ours, address, &many(MOST)).await.unwrap();
    }

    #[tokio::test]
    async fn only_a_unix_socket_is_inherited() {
        let (ours, theirs) = pair();
        let number = |file: i32| u16::try_from(file).unwrap();
        let copy = inherited(number(theirs.as_raw_fd())).unwrap();
        drop(theirs);
        drop(Answer(copy));
        answered(&ours).await.unwrap();
        let other = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(inherited(number(other.as_raw_fd())).is_err());
        assert!(inherited(u16::MAX).is_err());
    }
}
