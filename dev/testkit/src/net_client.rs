//! Clients of the servers: TCP, HTTP, and client programs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::server::SERVER_TIMEOUT;

/// Connects to a port of 127.0.0.1; reads and writes time out after [`SERVER_TIMEOUT`].
pub(crate) fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(SERVER_TIMEOUT))?;
    stream.set_write_timeout(Some(SERVER_TIMEOUT))?;
    Ok(stream)
}

/// Sends a request to a port of 127.0.0.1, and returns all that the server sends until it closes the connection. Fails
/// if it sends nothing.
pub(crate) fn exchange(port: u16, request: &[u8]) -> Result<Vec<u8>> {
    let mut stream = connect(port)?;
    stream.write_all(request)?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    ensure!(!reply.is_empty(), "the connection was closed");
    Ok(reply)
}

/// Requests a path by GET from a port of 127.0.0.1. Returns the status line and the body, without the headers, because
/// they have dates.
///
/// # Errors
/// The status is not 200.
pub(crate) fn http_get(port: u16, path: &str) -> Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let reply = String::from_utf8(exchange(port, request.as_bytes())?)?;
    let (head, body) = reply.split_once("\r\n\r\n").context("no whole reply")?;
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200"), "{path}: {status}");
    Ok(format!("{status}: {body}"))
}

/// Runs a client program and returns its standard output. Fails, with its standard error, unless it succeeds.
pub(crate) fn run_client(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("failed to start {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}
