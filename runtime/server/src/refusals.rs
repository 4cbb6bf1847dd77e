//! Requests that are none, or whose headers are too long, never reach a route: the library below answers them, with a status
//! and nothing else. Here such an answer gets a body and a name like all others, on its way to the socket.

use crate::error::ApiError;
use crate::errors::X_REQUEST_ID;
use crate::ids;
use crate::listen::{HEADER_BYTES, MOST_HEADERS};
use axum::http::StatusCode;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How the line begins that an answer of an error begins with.
const LINE: &[u8] = b"HTTP/1.1 4";
/// How an answer's head ends.
const END: &[u8] = b"\r\n\r\n";
/// Longer than any head of the library's own.
const HEAD_BYTES: usize = 256;

/// A connection whose bare answers are given a body.
pub(crate) struct Spoken<S> {
    socket: S,
    /// What is written instead of a bare answer, and how much of it has been.
    instead: Vec<u8>,
    done: usize,
}

impl<S: AsyncWrite + Unpin> Spoken<S> {
    pub fn new(socket: S) -> Self {
        Spoken { socket, instead: Vec::new(), done: 0 }
    }

    /// Writes what is left of an answer of our own.
    fn finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.instead.get(self.done..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.socket).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.done += n,
            }
        }
        self.instead.clear();
        self.done = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Spoken<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Spoken<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.finish(context))?;
        match bare(bytes) {
            None => Pin::new(&mut self.socket).poll_write(context, bytes),
            Some((0, status)) => {
                self.instead = spoken(status);
                // It leaves with the flush that follows.
                Poll::Ready(Ok(bytes.len()))
            }
            // What stands before it is an answer of a route.
            Some((at, _)) => Pin::new(&mut self.socket).poll_write(context, bytes.get(..at).unwrap_or(bytes)),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.finish(context))?;
        let mut full = pieces.iter().filter(|piece| !piece.is_empty());
        let last = full.clone().next_back();
        match (full.next(), last.and_then(|last| bare(last))) {
            // What stands before it goes first.
            (Some(first), Some(_)) => self.poll_write(context, first),
            _ => Pin::new(&mut self.socket).poll_write_vectored(context, pieces),
        }
    }

    /// Long bodies are not copied into one piece for this.
    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.finish(context))?;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.finish(context))?;
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// Where a bare answer begins that these bytes end with, and its status. Answers of routes have names, and no body of theirs
/// holds the ends of lines that a head has, as JSON escapes them.
fn bare(bytes: &[u8]) -> Option<(usize, StatusCode)> {
    let head = bytes.strip_suffix(END)?;
    let from = head.len().saturating_sub(HEAD_BYTES);
    let at = from + head.get(from..)?.windows(LINE.len()).rposition(|window| window == LINE)?;
    let mut lines = std::str::from_utf8(head.get(at..)?).ok()?.split("\r\n");
    let status = StatusCode::from_bytes(lines.next()?.split(' ').nth(1)?.as_bytes()).ok()?;
    let mut is_empty = false;
    for line in lines {
        let (name, value) = line.split_once(':')?;
        match name.to_ascii_lowercase().as_str() {
            "content-length" if value.trim() == "0" => is_empty = true,
            "connection" | "date" => {}
            _ => return None,
        }
    }
    is_empty.then_some((at, status))
}

/// The answer that is sent instead. Nobody has read a path, so it has the form of all routes but Messages.
fn spoken(status: StatusCode) -> Vec<u8> {
    let (code, message) = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => (
            "headers_too_large",
            format!(
                "the request has more than {} headers, or more than {} bytes before its body; send fewer",
                MOST_HEADERS, HEADER_BYTES
            ),
        ),
        StatusCode::URI_TOO_LONG => ("path_too_long", "the request's path is too long; send a shorter one".to_owned()),
        _ => (
            "malformed_request",
            "what came on this connection is no request of HTTP; look at its first lines".to_owned(),
        ),
    };
    let body = ApiError::new(status, code, message).body().to_string();
    let (name, id, length) = (X_REQUEST_ID, ids::name("req_"), body.len());
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{name}: {id}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_answers_are_found() {
        let plain =
            "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert_eq!(bare(plain.as_bytes()), Some((0, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)));
        let behind = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{{}}{plain}");
        assert_eq!(
            bare(behind.as_bytes()),
            Some((behind.len() - plain.len(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE))
        );
        for other in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nx-request-id: req_1\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 5\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "HTTP/1.1 4\r\n\r\n",
            "",
        ] {
            assert_eq!(bare(other.as_bytes()), None, "{other}");
        }
        // What is sent instead is none itself.
        assert_eq!(bare(&spoken(StatusCode::BAD_REQUEST)), None);
    }
}
