//! Reply bodies that are sent while they are written.

use std::io::{self, Write};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::thread;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::Frame;
use tokio::sync::mpsc;

use crate::problem::{Problem, Result};

/// Bytes of a chunk.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// Most chunks that wait for a slow reader.
const MAX_WAITING_CHUNKS: usize = 2;

/// Bytes of a body, or `None` for its end: a channel that closes without it is that of a thread that panicked.
type Chunk = Result<Option<Bytes>>;

/// Starts a thread that calls `write`, and returns a body that streams the written bytes. The thread waits while the
/// client reads slowly. This function waits for the first chunk, so that it can still return an error of `write`; a
/// later error or a panic breaks off the connection. Fails as overloaded if no thread can be started.
pub(crate) async fn stream_body(
    write: impl FnOnce(&mut dyn Write) -> Result<()> + Send + 'static,
) -> Result<Body> {
    let (sender, mut chunks) = mpsc::channel(MAX_WAITING_CHUNKS);
    let thread = thread::Builder::new().name("body".to_owned());
    let started = thread.spawn(move || {
        let mut out = ChunkWriter {
            chunk: Vec::with_capacity(CHUNK_BYTES),
            sender,
        };
        let written = write(&mut out).and_then(|()| out.flush().map_err(write_error));
        if out.sender.blocking_send(written.map(|()| None)).is_err() {
            log::debug!("a reader left before the end");
        }
    });
    started.map_err(|error| Problem::overloaded(format!("no thread for the reply: {error}")))?;
    let first = chunks.recv().await.unwrap_or_else(|| Err(panic_error()))?;
    Ok(Body::new(ChunkBody {
        has_ended: first.is_none(),
        first,
        chunks,
    }))
}

/// Returns the error for a thread that ended without the end of its body.
fn panic_error() -> Problem {
    Problem::internal("the work ended early: it panicked")
}

/// Returns the error for a failed write to the body.
fn write_error(error: io::Error) -> Problem {
    Problem::internal(error.to_string())
}

/// Writing end of a body.
struct ChunkWriter {
    chunk: Vec<u8>,
    sender: mpsc::Sender<Chunk>,
}

impl Write for ChunkWriter {
    /// Buffers the bytes, after it has sent the buffered ones if the chunk would get longer than `CHUNK_BYTES`. A
    /// longer write becomes one longer chunk.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.chunk.len() + bytes.len() > CHUNK_BYTES {
            self.flush()?;
        }
        self.chunk.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Sends the buffered chunk. Blocks while the client reads slowly; fails if the client has left.
    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_BYTES));
        let sent = self.sender.blocking_send(Ok(Some(chunk.into())));
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the reader left"))
    }
}

/// Reading end of a body.
struct ChunkBody {
    first: Option<Bytes>,
    chunks: mpsc::Receiver<Chunk>,
    has_ended: bool,
}

impl HttpBody for ChunkBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if self.has_ended {
            return Poll::Ready(None);
        }
        let chunk = ready!(self.chunks.poll_recv(context));
        let chunk = chunk.unwrap_or_else(|| Err(panic_error()));
        self.has_ended = !matches!(chunk, Ok(Some(_)));
        let frame = chunk.map(|chunk| chunk.map(Frame::data));
        let frame = frame.map_err(|problem| io::Error::other(problem.error.message));
        Poll::Ready(frame.transpose())
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    fn run(future: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future);
    }

    #[test]
    fn body_has_all_written_bytes() {
        run(async {
            let lines = || (0..100_000).map(|number| format!("{number}\n"));
            let body = stream_body(move |out| {
                lines()
                    .try_for_each(|line| out.write_all(line.as_bytes()))
                    .map_err(write_error)
            });
            let bytes = to_bytes(body.await.unwrap(), usize::MAX).await.unwrap();
            assert_eq!(bytes, lines().collect::<String>());
        });
    }

    #[test]
    fn error_before_first_chunk_is_returned_later_one_breaks_off() {
        run(async {
            let fails = |after: usize| {
                stream_body(move |out| {
                    let piece = vec![b'x'; CHUNK_BYTES];
                    (0..after)
                        .try_for_each(|_| out.write_all(&piece))
                        .map_err(write_error)?;
                    Err(Problem::invalid("it is cut"))
                })
            };
            assert_eq!(fails(0).await.unwrap_err().error.message, "it is cut");
            let body = fails(3).await.unwrap();
            assert!(to_bytes(body, usize::MAX).await.is_err());
        });
    }

    #[test]
    fn panic_is_no_end_of_a_body() {
        run(async {
            let panics = |after: usize| {
                stream_body(move |out| {
                    let piece = vec![b'x'; CHUNK_BYTES];
                    (0..after)
                        .try_for_each(|_| out.write_all(&piece))
                        .map_err(write_error)?;
                    panic!("of a test");
                })
            };
            assert_eq!(panics(0).await.unwrap_err().kind(), "internal");
            let body = panics(3).await.unwrap();
            assert!(to_bytes(body, usize::MAX).await.is_err());
        });
    }

    #[test]
    fn body_may_be_empty() {
        run(async {
            let body = stream_body(|_| Ok(())).await.unwrap();
            assert!(to_bytes(body, usize::MAX).await.unwrap().is_empty());
        });
    }
}
