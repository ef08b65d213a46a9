//! One connection: its requests, one after the other, and a watch over how long its client takes.

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

/// The longest head of a request.
const HEAD: usize = 64 << 10;
/// Bytes of a body that are read though nobody wants them.
const PASSED_OVER: usize = 128 << 20;
/// Bytes of a reply that are sent at a time.
const PIECE: usize = 256 << 10;

/// Serves a connection until either side has enough of it.
pub(crate) async fn serve_connection<S>(
    stream: S,
    peer: Peer,
    place: ConnectionSlot,
    router: Router,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let place = Arc::new(place);
    let client = Arc::clone(&place.client);
    client.start_request(peer.is_same_user_or_root());
    let service = service_fn(|request| {
        client.request_complete();
        answer(request, peer, Arc::clone(&place), router.clone())
    });
    let watched = WatchedStream {
        stream,
        client: Arc::clone(&client),
    };
    let served = http1::Builder::new()
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(watched), service);
    tokio::select! {
        served = served => match served {
            Ok(()) => {}
            // A client that leaves is no news.
            Err(error) => log::debug!("a connection ended: {error}"),
        },
        () = client.until_timeout() => log::debug!("a client was too slow"),
    }
}

async fn answer(
    request: hyper::Request<Incoming>,
    peer: Peer,
    place: Arc<ConnectionSlot>,
    router: Router,
) -> Result<Response, Infallible> {
    let mut reply = if place.client.is_surplus {
        let close = [(CONNECTION, "close")];
        (close, Problem::overloaded("all connections are in use")).into_response()
    } else {
        let taken = Arc::new(Mutex::new(RequestBytes {
            held: place.empty_reservation(),
            is_too_much: false,
            rest: None,
        }));
        let request = request.map(|body| RequestBody {
            body: Some(body),
            client: Arc::clone(&place.client),
            taken: Arc::clone(&taken),
        });
        let expects = request.headers().contains_key(EXPECT);
        let (mut head, body) = request.into_parts();
        head.extensions.insert(peer);
        let request = Request::from_parts(head, Body::new(body));
        let reply = TowerToHyperService::new(router).call(request).await?;
        let (rest, is_too_much) = {
            let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
            (taken.rest.take(), taken.is_too_much)
        };
        // Whoever is told to wait before it sends has not sent it yet.
        if let Some(rest) = rest.filter(|_| !expects) {
            drain_body(rest, &place.client).await;
        }
        if is_too_much {
            overloaded_response()
        } else {
            reply
        }
    };
    let mut held = place.empty_reservation();
    let size = reply.body().size_hint().exact().unwrap_or_default();
    if !held.grow(usize::try_from(size).unwrap_or(usize::MAX)) {
        reply = overloaded_response();
    }
    Ok(reply.map(|body| {
        Body::new(ReservedBody {
            body,
            rest: Bytes::new(),
            place,
            _held: held,
        })
    }))
}

/// Reads what nobody wants: a client that still sends when the connection ends misses the reply.
async fn drain_body(mut body: Incoming, client: &ConnectionState) {
    let mut left = PASSED_OVER;
    client.await_body();
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if left == 0 {
            break;
        }
    }
    client.request_complete();
}

fn overloaded_response() -> Response {
    Problem::overloaded("too many large requests and replies are on their way").into_response()
}

/// What arrived of a request's body. It is held until the reply is made.
#[derive(Debug)]
struct RequestBytes {
    held: MemoryReservation,
    is_too_much: bool,
    /// What nobody has read.
    rest: Option<Incoming>,
}

/// A request's body.
struct RequestBody {
    /// None when all of it is read.
    body: Option<Incoming>,
    client: Arc<ConnectionState>,
    taken: Arc<Mutex<RequestBytes>>,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else {
            self.client.await_body();
            return Poll::Pending;
        };
        let Some(frame) = frame.transpose().map_err(axum::Error::new)? else {
            self.body = None;
            self.client.request_complete();
            return Poll::Ready(None);
        };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if !taken.held.grow(frame.data_ref().map_or(0, Bytes::len)) {
            taken.is_too_much = true;
            let error = io::Error::from(io::ErrorKind::OutOfMemory);
            return Poll::Ready(Some(Err(axum::Error::new(error))));
        }
        drop(taken);
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.body.as_ref().map(Incoming::size_hint);
        left.unwrap_or_else(|| SizeHint::with_exact(0))
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let rest = self.body.take().filter(|body| !body.is_end_stream());
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.rest = rest;
    }
}

/// A reply's body, in pieces: so it is held until its end is taken.
struct ReservedBody {
    body: Body,
    /// What of the body's last frame was not sent yet.
    rest: Bytes,
    place: Arc<ConnectionSlot>,
    _held: MemoryReservation,
}

impl ReservedBody {
    fn piece(&mut self) -> Frame<Bytes> {
        let length = self.rest.len().min(PIECE);
        Frame::data(self.rest.split_to(length))
    }
}

impl HttpBody for ReservedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.piece())));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(match frame.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => {
                self.rest = data;
                Some(Ok(self.piece()))
            }
            Some(Ok(Err(other))) => Some(Ok(other)),
            Some(Err(error)) => Some(Err(error)),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let behind = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(behind.lower() + rest);
        if let Some(upper) = behind.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

impl Drop for ReservedBody {
    fn drop(&mut self) {
        self.place.client.response_started();
    }
}

/// A connection's bytes; notes whether the client takes what is written.
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
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.client.record_write(written.is_ready());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
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
