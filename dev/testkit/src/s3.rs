//! An S3 server in memory in which chosen writes fail as networks and servers fail. It implements the requests of
//! the crate `object_store` and accepts any credentials.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};

/// Failure of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFault {
    /// Status 409; nothing is written.
    Conflict,
    /// Status 409, although the object is written.
    ConflictAfterWriting,
    /// The object is written, then the connection closes without a response.
    DroppedAfterWriting,
    /// The connection closes before anything is written.
    DroppedBeforeWriting,
    /// Status 500; nothing is written.
    InternalError,
    /// Status 403; nothing is written.
    Forbidden,
}

impl WriteFault {
    /// Each of them.
    pub const ALL: [Self; 6] = [
        Self::Conflict,
        Self::ConflictAfterWriting,
        Self::DroppedAfterWriting,
        Self::DroppedBeforeWriting,
        Self::InternalError,
        Self::Forbidden,
    ];
}

/// A server in a thread of this process, which runs until the process exits.
#[derive(Debug)]
pub struct S3 {
    port: u16,
    store: Arc<Mutex<Store>>,
}

#[derive(Debug, Default)]
struct Store {
    objects: BTreeMap<String, Vec<u8>>,
    faults: VecDeque<WriteFault>,
    write_count: usize,
}

/// An HTTP request for the bucket or one of its objects.
struct Request {
    method: String,
    /// Name of the object, without the bucket; empty for the bucket itself.
    name: String,
    query: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

struct S3Response {
    status: &'static str,
    headers: String,
    body: Vec<u8>,
}

/// The only bucket.
pub const BUCKET: &str = "heap";
/// Modification time of every object, in the formats of HTTP and of XML.
const MODIFIED: [&str; 2] = ["21 Nov 2026 10:00:00 GMT", "2026-11-21T10:00:00.000Z"];

impl S3 {
    /// Starts a server on a free port of 127.0.0.1. Its threads run until the process ends.
    ///
    /// # Errors
    /// No port is free.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let store = Arc::<Mutex<Store>>::default();
        let thread_store = Arc::clone(&store);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let store = Arc::clone(&thread_store);
                // A client that disconnects is no failure of the server.
                thread::spawn(move || serve_connection(stream, &store).unwrap_or_default());
            }
        });
        Ok(Self { port, store })
    }

    /// Returns the port of 127.0.0.1 on which the server listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the environment variables with which a client finds the server.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            (
                "AWS_ENDPOINT_URL",
                format!("http://127.0.0.1:{}", self.port),
            ),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "nobody".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "nothing".to_owned()),
        ]
    }

    /// Sets the faults of the next writes, one each, in this order; later writes succeed.
    pub fn set_faults(&self, faults: &[WriteFault]) {
        lock_store(&self.store).faults = faults.iter().copied().collect();
    }

    /// Returns the number of writes so far, failed ones included.
    pub fn write_count(&self) -> usize {
        lock_store(&self.store).write_count
    }

    /// Returns the names of the stored objects, sorted.
    pub fn object_names(&self) -> Vec<String> {
        lock_store(&self.store).objects.keys().cloned().collect()
    }
}

/// Locks the store, even if a thread panicked while it held the lock.
fn lock_store(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replies to the requests of a connection until either side closes it. Also closes it for a fault that drops the
/// connection.
fn serve_connection(stream: TcpStream, store: &Mutex<Store>) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some(request) = read_request(&mut reader)? {
        let is_head = request.method == "HEAD";
        let Some(response) = execute_request(&request, &mut lock_store(store)) else {
            return Ok(());
        };
        write!(
            stream,
            "HTTP/1.1 {}\r\nContent-Length: {}\r\n{}\r\n",
            response.status,
            response.body.len(),
            response.headers
        )?;
        if !is_head {
            stream.write_all(&response.body)?;
        }
    }
    Ok(())
}

/// Reads a request with its body; `None` at the end of the connection. A missing or malformed `Content-Length` counts
/// as 0.
///
/// # Errors
/// The connection ends within the request, or the first line has no method or no path.
fn read_request(reader: &mut impl BufRead) -> Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ');
    let method = words.next().context("no method")?.to_owned();
    let path = words.next().context("no path")?.to_owned();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (path, query) = path.split_once('?').unwrap_or((&path, ""));
    let name = percent_decode(path);
    let name = name.trim_start_matches('/');
    let name = name.strip_prefix(BUCKET).unwrap_or(name);
    Ok(Some(Request {
        method,
        name: name.trim_start_matches('/').to_owned(),
        query: percent_decode(query),
        headers,
        body,
    }))
}

/// Replaces percent-encoded bytes (RFC 3986, section 2.1). A digit that is missing or invalid counts as 0.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = |byte: Option<u8>| (byte? as char).to_digit(16);
        bytes.push(match byte {
            b'%' => {
                let (high, low) = (hex(rest.next()), hex(rest.next()));
                (high.unwrap_or(0) * 16 + low.unwrap_or(0)) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Executes a request, and returns the response; `None` if the connection is to close without one.
fn execute_request(request: &Request, store: &mut Store) -> Option<S3Response> {
    match &*request.method {
        "PUT" => put_object(request, store),
        "GET" if request.name.is_empty() => Some(list_objects(request, store)),
        "GET" | "HEAD" => Some(get_object(request, store)),
        "DELETE" => {
            store.objects.remove(&request.name);
            Some(S3Response::new("204 No Content", Vec::new()))
        }
        "POST" => Some(delete_objects(request, store)),
        _ => Some(S3Response::new("501 Not Implemented", Vec::new())),
    }
}

/// Stores an object, unless it exists and the request has `If-None-Match`. Counts the write, and applies the next
/// fault, if there is one; `None` if that drops the connection.
fn put_object(request: &Request, store: &mut Store) -> Option<S3Response> {
    store.write_count += 1;
    let fault = store.faults.pop_front();
    let fails = |status, code: &str| {
        let body = format!("<Error><Code>{code}</Code><Message>scripted</Message></Error>");
        Some(S3Response::new(status, body.into_bytes()))
    };
    match fault {
        Some(WriteFault::DroppedBeforeWriting) => return None,
        Some(WriteFault::Conflict) => return fails("409 Conflict", "ConditionalRequestConflict"),
        Some(WriteFault::InternalError) => {
            return fails("500 Internal Server Error", "InternalError");
        }
        Some(WriteFault::Forbidden) => return fails("403 Forbidden", "AccessDenied"),
        Some(WriteFault::ConflictAfterWriting | WriteFault::DroppedAfterWriting) | None => {}
    }
    let is_create = request
        .headers
        .iter()
        .any(|(name, _)| name == "if-none-match");
    if is_create && store.objects.contains_key(&request.name) {
        return fails("412 Precondition Failed", "PreconditionFailed");
    }
    store
        .objects
        .insert(request.name.clone(), request.body.clone());
    match fault {
        Some(WriteFault::DroppedAfterWriting) => None,
        Some(WriteFault::ConflictAfterWriting) => {
            fails("409 Conflict", "ConditionalRequestConflict")
        }
        _ => Some(S3Response::new("200 OK", Vec::new())),
    }
}

/// Returns an object, or the range of its bytes that the request has in its `Range` header; 404 without such an object,
/// and 416 for a range that holds none of its bytes. A range of another form than `bytes=FROM-TO` is ignored.
fn get_object(request: &Request, store: &Store) -> S3Response {
    let Some(bytes) = store.objects.get(&request.name) else {
        let body = "<Error><Code>NoSuchKey</Code><Message>none</Message></Error>";
        return S3Response::new("404 Not Found", body.into());
    };
    let range = request.headers.iter().find(|(name, _)| name == "range");
    let range = range.and_then(|(_, value)| value.strip_prefix("bytes=")?.split_once('-'));
    let numbers = range.and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let Some((from, to)): Option<(usize, usize)> = numbers else {
        return S3Response::new("200 OK", bytes.clone());
    };
    let all = bytes.len();
    let last = to.min(all.saturating_sub(1));
    let Some(part) = bytes.get(from..=last).filter(|part| !part.is_empty()) else {
        let body = "<Error><Code>InvalidRange</Code><Message>none</Message></Error>";
        return S3Response::new("416 Requested Range Not Satisfiable", body.into());
    };
    let mut response = S3Response::new("206 Partial Content", part.to_vec());
    response.headers += &format!("Content-Range: bytes {from}-{last}/{all}\r\n");
    response
}

/// Lists the objects whose names begin with the query's `prefix`; all if it has none.
fn list_objects(request: &Request, store: &Store) -> S3Response {
    let mut parameters = request.query.split('&');
    let prefix = parameters.find_map(|one| one.strip_prefix("prefix="));
    let prefix = prefix.unwrap_or_default();
    let mut body = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
    for (name, bytes) in &store.objects {
        if name.starts_with(prefix) {
            let (written, size) = (MODIFIED[1], bytes.len());
            write!(
                body,
                "<Contents><Key>{name}</Key><LastModified>{written}</LastModified><ETag>\"1\"</ETag>\
                 <Size>{size}</Size></Contents>"
            )
            .expect("writing to a String cannot fail");
        }
    }
    S3Response::new("200 OK", (body + "</ListBucketResult>").into_bytes())
}

/// Deletes the objects whose names the body has as XML (`DeleteObjects` of S3's API).
fn delete_objects(request: &Request, store: &mut Store) -> S3Response {
    let text = String::from_utf8_lossy(&request.body);
    let names = text.split("<Key>").skip(1);
    let mut body = "<DeleteResult>".to_owned();
    for name in names.filter_map(|rest| Some(rest.split_once("</Key>")?.0)) {
        store.objects.remove(name);
        body += &format!("<Deleted><Key>{name}</Key></Deleted>");
    }
    S3Response::new("200 OK", (body + "</DeleteResult>").into_bytes())
}

impl S3Response {
    /// Builds a response with the headers `ETag` and `Last-Modified`, which clients expect of each object.
    fn new(status: &'static str, body: Vec<u8>) -> Self {
        let headers = format!("ETag: \"1\"\r\nLast-Modified: {}\r\n", MODIFIED[0]);
        Self {
            status,
            headers,
            body,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_returns_existing_bytes_or_416() {
        let check = |object: &str, range: &str, status: &str, header: &str, body: &str| {
            let mut store = Store::default();
            store.objects.insert("a".to_owned(), object.into());
            let request = Request {
                method: "GET".to_owned(),
                name: "a".to_owned(),
                query: String::new(),
                headers: vec![("range".to_owned(), format!("bytes={range}"))],
                body: Vec::new(),
            };
            let response = get_object(&request, &store);
            assert_eq!(response.status, status, "{range} of {object:?}");
            assert!(response.headers.contains(header), "{}", response.headers);
            assert!(String::from_utf8_lossy(&response.body).contains(body));
        };
        let partial = "206 Partial Content";
        check("hello", "1-3", partial, "Content-Range: bytes 1-3/5", "ell");
        check("hello", "3-9", partial, "Content-Range: bytes 3-4/5", "lo");
        let none = "416 Requested Range Not Satisfiable";
        check("hello", "5-9", none, "", "InvalidRange");
        check("", "0-9", none, "", "InvalidRange");
    }
}
