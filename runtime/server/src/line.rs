//! A connection whose answer may be written from elsewhere: whoever has the text of an answer puts it on the socket at once,
//! while the task that serves the connection sleeps. A write is what a token costs most; to wake a task for each would cost as much
//! again.
//!
//! The task has the socket until it has written all that it was given ([`Line::holds`]); from then on [`Line::send`] writes chunks
//! of HTTP/1.1, until the task is given something again. What a socket does not take is left to the task.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The end of a connection that is written to.
#[derive(Debug)]
pub(crate) struct Line {
    out: Mutex<Out>,
    /// A stream is to say a sign of life.
    wants_sign: AtomicBool,
}

#[derive(Debug)]
struct Out {
    socket: OwnedWriteHalf,
    /// Whether the task has, or is about to have, something to write.
    is_held: bool,
    /// What the socket did not take, from `done` on.
    rest: Vec<u8>,
    done: usize,
}

/// What became of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is on its way.
    All,
    /// The socket is full, or broken: the connection's task has to go on with it.
    Part,
}

impl Line {
    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task is given something to write: nobody else writes until it has.
    pub fn holds(&self) {
        self.out().is_held = true;
    }

    /// A stream that is spoken here is to say a sign of life when its body is asked next.
    pub fn ask_sign(&self) {
        self.wants_sign.store(true, Ordering::Relaxed);
    }

    /// Whether a sign was asked for since this was asked last.
    pub fn is_sign_due(&self) -> bool {
        self.wants_sign.swap(false, Ordering::Relaxed)
    }

    /// Whether a text can be sent now. It stays so until the task is given something.
    pub fn is_free(&self) -> bool {
        let out = self.out();
        !out.is_held && out.rest.is_empty()
    }

    /// Writes a text as one chunk; `frame` is memory that is kept between calls.
    pub fn send(&self, text: &str, frame: &mut Vec<u8>) -> Sent {
        frame.clear();
        // Writing to memory cannot fail.
        let _ = write!(frame, "{:x}\r\n{text}\r\n", text.len());
        let mut out = self.out();
        // An error is the task's to find, as it closes the connection.
        let taken = if out.rest.is_empty() { out.socket.try_write(frame).unwrap_or(0) } else { 0 };
        match frame.get(taken..) {
            None | Some([]) => Sent::All,
            Some(rest) => {
                out.rest.extend_from_slice(rest);
                Sent::Part
            }
        }
    }
}

impl Out {
    /// Writes what the socket did not take before.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.rest.get(self.done..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.socket).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.done += n,
            }
        }
        self.rest.clear();
        self.done = 0;
        Poll::Ready(Ok(()))
    }
}

/// The socket as the connection's task has it.
pub(crate) struct Wire {
    socket: OwnedReadHalf,
    line: Arc<Line>,
}

impl Wire {
    /// A socket, and the line that others write to.
    pub fn new(socket: TcpStream) -> (Wire, Arc<Line>) {
        let (socket, out) = socket.into_split();
        let out = Mutex::new(Out { socket: out, is_held: true, rest: Vec::new(), done: 0 });
        let line = Arc::new(Line { out, wants_sign: AtomicBool::new(false) });
        (Wire { socket, line: line.clone() }, line)
    }

    /// An error that the socket has met since it was asked last.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.as_ref().take_error()
    }

    /// Writes what the socket takes at once, of text that the task has to write; nothing while older text waits.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let out = self.line.out();
        if out.rest.is_empty() { out.socket.try_write(bytes) } else { Ok(0) }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, to)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut out = self.line.out();
        ready!(out.poll_rest(context))?;
        Pin::new(&mut out.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut out = self.line.out();
        ready!(out.poll_rest(context))?;
        Pin::new(&mut out.socket).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The task asks for this when nothing of what it was given is left.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut out = self.line.out();
        ready!(out.poll_rest(context))?;
        out.is_held = false;
        Pin::new(&mut out.socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut out = self.line.out();
        ready!(out.poll_rest(context))?;
        Pin::new(&mut out.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// What a full socket does not take is written by the task, in order, before what the task is given.
    #[tokio::test]
    async fn what_a_socket_does_not_take_is_the_tasks() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut reader = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut wire, line) = Wire::new(listener.accept().await.unwrap().0);
        // The task has it first.
        assert!(!line.is_free());
        wire.flush().await.unwrap();
        assert!(line.is_free());
        let (mut frame, mut expected) = (Vec::new(), String::new());
        let text = "x".repeat(100_000);
        while line.send(&text, &mut frame) == Sent::All {
            expected += &format!("186a0\r\n{text}\r\n");
            assert!(expected.len() < 1 << 30);
        }
        expected += &format!("186a0\r\n{text}\r\n");
        assert!(!line.is_free());
        // More of it waits behind.
        assert_eq!(line.send("é", &mut frame), Sent::Part);
        expected += "2\r\né\r\nthe end";
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).await.unwrap();
            all
        });
        line.holds();
        wire.write_all(b"the end").await.unwrap();
        assert!(!line.is_free());
        wire.flush().await.unwrap();
        assert!(line.is_free());
        wire.shutdown().await.unwrap();
        assert!(reading.await.unwrap() == expected.as_bytes());
        assert_eq!(line.send("nobody reads", &mut frame), Sent::Part);
        assert!(wire.flush().await.is_err());
    }
}
