//! Messages over a Unix socket, each with its length before it, in four bytes (big-endian).

use futures_util::SinkExt;
use std::io;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio_stream::StreamExt;
use tokio_util::bytes::{Bytes, BytesMut};
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

/// The incoming messages.
#[derive(Debug)]
pub struct Incoming(FramedRead<OwnedReadHalf, LengthDelimitedCodec>);

/// The way out for messages.
#[derive(Debug)]
pub struct Outgoing(FramedWrite<OwnedWriteHalf, LengthDelimitedCodec>);

/// Sends messages over a socket, and receives such of up to `longest` bytes.
pub fn over(socket: UnixStream, longest: usize) -> (Incoming, Outgoing) {
    let (read, write) = socket.into_split();
    let codec = |most| {
        LengthDelimitedCodec::builder()
            .max_frame_length(most)
            .new_codec()
    };
    let incoming = FramedRead::new(read, codec(longest));
    // The other end says what it takes.
    let outgoing = FramedWrite::new(write, codec(u32::MAX as usize));
    (Incoming(incoming), Outgoing(outgoing))
}

impl Incoming {
    /// Waits for the next message; `None`: the other end is gone. Nothing is lost when the wait is given up.
    ///
    /// # Errors
    /// The socket fails, or the message is too long: nothing more can be read.
    pub async fn next(&mut self) -> io::Result<Option<BytesMut>> {
        self.0.next().await.transpose()
    }
}

impl Outgoing {
    /// Sends a message.
    ///
    /// # Errors
    /// The other end is gone.
    pub async fn send(&mut self, message: Vec<u8>) -> io::Result<()> {
        let sent = self.0.send(Bytes::from(message)).await;
        // It would keep room for the longest message for as long as it lives.
        if self.0.write_buffer().is_empty() {
            *self.0.write_buffer_mut() = BytesMut::new();
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has messages go one way over a pair of sockets.
    fn over_a_pair(test: impl AsyncFnOnce(Incoming, Outgoing)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let (near, far) = UnixStream::pair().unwrap();
            let (incoming, _open) = over(near, 1 << 20);
            let (_open, outgoing) = over(far, 0);
            test(incoming, outgoing).await;
        });
    }

    #[test]
    fn a_message_of_several_pieces_is_one_and_one_that_is_too_long_ends_it() {
        over_a_pair(async |mut incoming, mut outgoing| {
            // More than the kernel takes at once.
            let long = vec![7; 1 << 20];
            let sent = long.clone();
            let sending = async {
                for message in [vec![1], sent, Vec::new()] {
                    outgoing.send(message).await.unwrap();
                }
                outgoing.send(vec![0; (1 << 20) + 1]).await
            };
            let receiving = async {
                for expected in [&[1][..], &long, &[]] {
                    assert_eq!(incoming.next().await.unwrap().unwrap(), expected);
                }
                incoming.next().await.unwrap_err()
            };
            tokio::select! {
                sent = sending => panic!("{sent:?}: nobody reads so much"),
                refused = receiving => assert_eq!(refused.kind(), io::ErrorKind::InvalidData),
            }
        });
    }

    #[test]
    fn a_long_message_leaves_no_room_taken() {
        over_a_pair(async |mut incoming, mut outgoing| {
            let (sent, received) = tokio::join!(outgoing.send(vec![7; 1 << 20]), incoming.next());
            sent.unwrap();
            assert_eq!(received.unwrap().unwrap().len(), 1 << 20);
            let buffer = outgoing.0.write_buffer_mut();
            assert!(!buffer.try_reclaim(1 << 20), "it has room for another");
        });
    }
}
