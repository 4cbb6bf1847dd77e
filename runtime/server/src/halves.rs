//! Connections whose client has said all it wants to say. It may still listen (`shutdown(SHUT_WR)`, `nc -N`), and then gets its
//! answer; or it has gone, and then its request is to end. Both look the same from here until something is sent: a client that
//! has gone refuses it. So while a request is answered, the end of what its client says is kept from the library below, which
//! would hang up; who still waits for the head of an answer is sent an interim one (100), which every client of HTTP/1.1 passes
//! over, and a stream says a sign of life.
//!
//! What a client is still sending when its answer is over is read for a moment and forgotten: a socket that is closed before
//! would make many a client miss the answer.

use crate::line::{self, Line};
use axum::body::{Body, Bytes};
use axum::http::{Request, Response, Version, header};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// The interim answer.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The sign of life of a stream.
const SIGN: &[u8] = b": ping\n\n";
/// When is looked first whether a client that says nothing more is still there; each further look comes after twice the time.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long is read what nobody wants any more.
const LINGER: Duration = Duration::from_secs(2);

/// Marks requests that came over a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire;

/// What a connection's socket and its requests know of each other.
#[derive(Debug)]
pub(crate) struct Link {
    line: Arc<Line>,
    /// A request has come whole, and its answer is not over.
    is_busy: AtomicBool,
    /// A request's body has not come whole.
    is_coming: AtomicBool,
    /// The head of its answer has not been made, and an interim one may come before it.
    awaits_head: AtomicBool,
    /// A stream is to give a sign of life.
    wants_sign: AtomicBool,
}

impl Link {
    fn of(line: Arc<Line>) -> Link {
        let [is_busy, is_coming, awaits_head, wants_sign] = Default::default();
        Link { line, is_busy, is_coming, awaits_head, wants_sign }
    }

    /// A request begins. Over HTTP/2 connections have no halves.
    pub fn arriving(self: &Arc<Link>, request: Request<Incoming>) -> Request<Body> {
        let is_one = request.version() < Version::HTTP_2;
        let link = self.clone();
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(Wire);
        if !is_one {
            return Request::from_parts(parts, Body::new(body));
        }
        link.awaits_head.store(parts.version == Version::HTTP_11, Ordering::Relaxed);
        let body = Arriving { body, link };
        body.look();
        Request::from_parts(parts, Body::new(body))
    }

    /// Its answer begins. A stream that is spoken to the line gives its signs of life itself: between what others write there.
    pub fn answering(self: &Arc<Link>, response: Response<Body>, is_spoken: bool) -> Response<Body> {
        self.awaits_head.store(false, Ordering::Relaxed);
        self.wants_sign.store(false, Ordering::Relaxed);
        self.line.is_sign_due();
        let kind = response.headers().get(header::CONTENT_TYPE);
        let is_stream = !is_spoken && kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let link = self.clone();
        response.map(|body| Body::new(Told { body, link, is_stream }))
    }
}

/// The body of a request on its way.
struct Arriving {
    body: Incoming,
    link: Arc<Link>,
}

impl Arriving {
    /// Notes whether it has come whole.
    fn look(&self) {
        let is_whole = self.body.is_end_stream();
        self.link.is_coming.store(!is_whole, Ordering::Relaxed);
        self.link.is_busy.store(is_whole, Ordering::Relaxed);
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            None => {
                self.link.is_coming.store(false, Ordering::Relaxed);
                self.link.is_busy.store(true, Ordering::Relaxed);
            }
            Some(_) => self.look(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer on its way.
struct Told {
    body: Body,
    link: Arc<Link>,
    is_stream: bool,
}

impl Drop for Told {
    fn drop(&mut self) {
        self.link.is_busy.store(false, Ordering::Relaxed);
    }
}

impl HttpBody for Told {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending if self.is_stream && self.link.wants_sign.swap(false, Ordering::Relaxed) => {
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(SIGN)))))
            }
            polled => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket, of whose halves each may end on its own.
pub(crate) struct Halves {
    socket: line::Wire,
    link: Arc<Link>,
    /// The client says nothing more; when is looked next whether it is there, and the pause before that.
    silent: Option<(Pin<Box<Sleep>>, Duration)>,
    /// An end has been held back once: a request that has just come shows only when it is looked at.
    is_deferred: bool,
    /// What is left to send of an interim answer.
    interim: &'static [u8],
    /// Not all that was to be sent could be.
    is_behind: bool,
    /// Until when what still comes is read.
    linger: Option<Pin<Box<Sleep>>>,
}

impl Halves {
    /// A socket and what it shares with its requests.
    pub fn of(socket: line::Wire, line: Arc<Line>) -> (Halves, Arc<Link>) {
        let link = Arc::new(Link::of(line));
        let halves = Halves {
            socket,
            link: link.clone(),
            silent: None,
            is_deferred: false,
            interim: &[],
            is_behind: false,
            linger: None,
        };
        (halves, link)
    }

    /// The client has said all: an end only once nothing is answered any more, or an error once it has gone.
    fn silent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let (look, pause) = self.silent.get_or_insert_with(|| (Box::pin(sleep(FIRST_LOOK)), FIRST_LOOK));
            if !self.link.is_busy.load(Ordering::Relaxed) {
                if std::mem::replace(&mut self.is_deferred, true) {
                    return Poll::Ready(Ok(()));
                }
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.is_deferred = false;
            if let Some(error) = self.socket.take_error()? {
                return Poll::Ready(Err(error));
            }
            ready!(look.as_mut().poll(context));
            *pause = (*pause * 2).min(LONGEST_PAUSE);
            look.as_mut().reset(Instant::now() + *pause);
            self.call();
        }
    }

    /// Sends something that nobody reads: who has gone refuses it.
    fn call(&mut self) {
        self.link.wants_sign.store(true, Ordering::Relaxed);
        self.link.line.ask_sign();
        if self.link.awaits_head.load(Ordering::Relaxed) && self.interim.is_empty() && !self.is_behind {
            self.interim = INTERIM;
            self.send_interim();
        }
    }

    fn send_interim(&mut self) {
        if !self.interim.is_empty() {
            // An error shows when the socket is looked at next.
            let sent = self.socket.try_write(self.interim).unwrap_or(0);
            self.interim = self.interim.get(sent..).unwrap_or_default();
        }
    }

    /// Before an answer goes on, an interim one is over.
    fn behind_interim(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.interim.is_empty() {
            let sent = ready!(Pin::new(&mut self.socket).poll_write(context, self.interim))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.interim = self.interim.get(sent..).unwrap_or_default();
        }
        Poll::Ready(Ok(()))
    }

    /// Notes whether so many bytes went out at once.
    fn sent(&mut self, bytes: usize, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.is_behind = !matches!(&polled, Poll::Ready(Ok(sent)) if *sent >= bytes);
        polled
    }
}

impl AsyncRead for Halves {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.silent.is_none() {
            let before = to.remaining();
            ready!(Pin::new(&mut self.socket).poll_read(context, to))?;
            if to.remaining() < before || before == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        self.silent(context)
    }
}

impl AsyncWrite for Halves {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.behind_interim(context))?;
        let polled = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.sent(bytes.len(), polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.behind_interim(context))?;
        let polled = Pin::new(&mut self.socket).poll_write_vectored(context, pieces);
        self.sent(pieces.iter().map(|piece| piece.len()).sum(), polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.behind_interim(context))?;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.socket).poll_shutdown(context))?;
            if self.silent.is_some() || !self.link.is_coming.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let mut space = [0; 16 << 10];
        loop {
            let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
            if linger.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut unwanted = ReadBuf::new(&mut space);
            let read = ready!(Pin::new(&mut self.socket).poll_read(context, &mut unwanted));
            if read.is_err() || unwanted.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
