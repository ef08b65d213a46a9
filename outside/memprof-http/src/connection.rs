//! Serves one connection: its requests, one after the other, with timeouts for a slow client.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::{CONNECTION, EXPECT};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connections::{ConnectionSlot, ConnectionState, MemoryReservation};
use crate::peer::Peer;
use crate::problem::Problem;

/// Most bytes of a request's head.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Most bytes of an unread body that are discarded before a connection closes.
const MAX_DISCARDED_BYTES: usize = 128 << 20;
/// Most bytes of a reply that are handed to the connection at a time.
const MAX_PART_BYTES: usize = 256 << 10;

/// Serves the requests of a connection until either side ends it, the client exceeds a timeout, or the connection is
/// evicted in favour of another one. `slot` is the connection's place among all connections.
pub(crate) async fn serve_connection<S>(stream: S, peer: Peer, slot: ConnectionSlot, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let slot = Arc::new(slot);
    let client = Arc::clone(&slot.client);
    client.record_head_wait(peer.is_same_user_or_root());
    let service = service_fn(|request| {
        client.record_wait_end();
        handle_request(request, peer, Arc::clone(&slot), router.clone())
    });
    let watched = WatchedStream {
        stream,
        client: Arc::clone(&client),
    };
    let served = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        // Scripts that pipe a request into nc(1) close their side before they read the reply.
        .half_close(true)
        .serve_connection(TokioIo::new(watched), service);
    tokio::select! {
        result = served => match result {
            Ok(()) => {}
            // A client that leaves is not an error of the server.
            Err(error) => log::debug!("a connection ended: {error}"),
        },
        () = client.wait_for_timeout_or_eviction() => log::debug!("a client was too slow"),
    }
}

/// Passes one request to the router, and reserves memory for its body and its reply. Before the reply, discards the
/// part of the body that the handler did not read. Replies with status 503 if the connection is a surplus one, which
/// exists only for that reply, or too many bytes are reserved.
async fn handle_request(
    request: hyper::Request<Incoming>,
    peer: Peer,
    slot: Arc<ConnectionSlot>,
    router: Router,
) -> Result<Response, Infallible> {
    let mut reply = if slot.client.is_surplus {
        let close = [(CONNECTION, "close")];
        (close, Problem::overloaded("all connections are in use")).into_response()
    } else {
        let bytes = Arc::new(Mutex::new(RequestBytes {
            reservation: slot.empty_reservation(),
            is_over_limit: false,
            unread: None,
        }));
        let request = request.map(|body| RequestBody {
            body: Some(body),
            client: Arc::clone(&slot.client),
            bytes: Arc::clone(&bytes),
        });
        let expects = request.headers().contains_key(EXPECT);
        let (mut head, body) = request.into_parts();
        head.extensions.insert(peer);
        let request = Request::from_parts(head, Body::new(body));
        let reply = TowerToHyperService::new(router).call(request).await?;
        let (unread, is_over_limit) = {
            let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
            (bytes.unread.take(), bytes.is_over_limit)
        };
        // A client that sent `Expect: 100-continue` was not asked to send its body.
        if let Some(unread) = unread.filter(|_| !expects) {
            discard_body(unread, &slot.client).await;
        }
        if is_over_limit {
            overloaded_response()
        } else {
            reply
        }
    };
    let mut reservation = slot.empty_reservation();
    // A streamed body has no exact size and reserves nothing: only a few of its chunks wait at a time.
    let size = reply.body().size_hint().exact().unwrap_or_default();
    if !reservation.grow(usize::try_from(size).unwrap_or(usize::MAX)) {
        reply = overloaded_response();
    }
    Ok(reply.map(|body| {
        Body::new(ReservedBody {
            body,
            pending: Bytes::new(),
            slot,
            _reservation: reservation,
        })
    }))
}

/// Reads and discards the rest of a body, up to [`MAX_DISCARDED_BYTES`] (128 MiB): a client that still sends when the
/// connection closes would miss the reply. The wait counts for the body's timeout.
async fn discard_body(mut body: Incoming, client: &ConnectionState) {
    let mut remaining = MAX_DISCARDED_BYTES;
    client.record_body_wait();
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        remaining = remaining.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if remaining == 0 {
            break;
        }
    }
    client.record_wait_end();
}

/// Returns the reply 503 for the case that requests and replies need more memory than the server reserves.
fn overloaded_response() -> Response {
    Problem::overloaded("too many large requests and replies are on their way").into_response()
}

/// State of a request's body, shared until the reply is made.
#[derive(Debug)]
struct RequestBytes {
    reservation: MemoryReservation,
    is_over_limit: bool,
    /// Part of the body that the handler did not read.
    unread: Option<Incoming>,
}

/// A request's body, with a reservation for what was read.
struct RequestBody {
    /// `None` once all of it is read.
    body: Option<Incoming>,
    client: Arc<ConnectionState>,
    bytes: Arc<Mutex<RequestBytes>>,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = axum::Error;

    /// Passes on the next frame once its bytes are reserved, and records whether the server waits for the client to
    /// send more. If the bytes cannot be reserved, marks the request as over the limit, and fails.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else {
            self.client.record_body_wait();
            return Poll::Pending;
        };
        let Some(frame) = frame.transpose().map_err(axum::Error::new)? else {
            self.body = None;
            self.client.record_wait_end();
            return Poll::Ready(None);
        };
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if !bytes
            .reservation
            .grow(frame.data_ref().map_or(0, Bytes::len))
        {
            bytes.is_over_limit = true;
            let error = io::Error::from(io::ErrorKind::OutOfMemory);
            return Poll::Ready(Some(Err(axum::Error::new(error))));
        }
        drop(bytes);
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let remaining = self.body.as_ref().map(Incoming::size_hint);
        remaining.unwrap_or_else(|| SizeHint::with_exact(0))
    }
}

impl Drop for RequestBody {
    /// Passes the unread part of the body to [`handle_request`], which discards it.
    fn drop(&mut self) {
        let unread = self.body.take().filter(|body| !body.is_end_stream());
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.unread = unread;
    }
}

/// A reply's body in parts, with its memory reserved until the client has taken the last one.
struct ReservedBody {
    body: Body,
    /// Part of the last frame that was not sent yet.
    pending: Bytes,
    slot: Arc<ConnectionSlot>,
    _reservation: MemoryReservation,
}

impl ReservedBody {
    /// Removes and returns the next part of the pending frame, up to `MAX_PART_BYTES`.
    fn next_part(&mut self) -> Frame<Bytes> {
        let length = self.pending.len().min(MAX_PART_BYTES);
        Frame::data(self.pending.split_to(length))
    }
}

impl HttpBody for ReservedBody {
    type Data = Bytes;
    type Error = axum::Error;

    /// Passes on the frames of the body in parts of up to `MAX_PART_BYTES` (256 KiB).
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.pending.is_empty() {
            return Poll::Ready(Some(Ok(self.next_part())));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(match frame.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => {
                self.pending = data;
                Some(Ok(self.next_part()))
            }
            Some(Ok(Err(other))) => Some(Ok(other)),
            Some(Err(error)) => Some(Err(error)),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.pending.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let pending = self.pending.len() as u64;
        let later = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(later.lower() + pending);
        if let Some(upper) = later.upper() {
            hint.set_upper(upper + pending);
        }
        hint
    }
}

impl Drop for ReservedBody {
    /// Records that the reply was handed to the connection, so that the client may send its next request.
    fn drop(&mut self) {
        self.slot.client.record_next_head_wait();
    }
}

/// The connection's stream, which records whether the client reads what is written.
struct WatchedStream<S> {
    stream: S,
    client: Arc<ConnectionState>,
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    /// Also records whether the client's socket accepted bytes, for the write timeout.
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.client.record_write(written.is_ready());
        written
    }

    /// Also records whether the client's socket accepted bytes, for the write timeout.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.client.record_write(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
