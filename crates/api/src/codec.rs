//! How messages of a stream are read and written.

use prost::Message;
use std::marker::PhantomData;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// First room of a stream's buffers in bytes, for what comes and for what goes. A stream of a proxy is there as long as
/// the proxy and mostly silent; tonic's own 8 KiB each way are 16 MiB of a controller for 1,000 proxies. A message that
/// needs more gets it.
const ROOM: usize = 512;
/// Bytes after which a sender lets others run; tonic's own.
const YIELD: usize = 32 * 1024;

/// Protocol Buffers in small buffers.
#[derive(Debug, Clone)]
pub struct SmallCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(ROOM, YIELD))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(ROOM, YIELD))
    }
}
