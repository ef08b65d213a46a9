//! An S3 server in memory that does to chosen writes what networks and servers do. It knows what
//! `object_store` asks for, and nobody's credentials.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};

/// What is done to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFault {
    /// 409, and nothing is written.
    Conflict,
    /// 409, though it is written.
    ConflictAfterWriting,
    /// It is written, and the connection closes without an answer.
    LostAnswer,
    /// The connection closes before anything is written.
    Refused,
    /// 500, and nothing is written.
    Broken,
    /// 403, and nothing is written.
    Forbidden,
}

/// A server, which ends with the process.
#[derive(Debug)]
pub struct S3 {
    port: u16,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    objects: BTreeMap<String, Vec<u8>>,
    faults: VecDeque<WriteFault>,
    writes: usize,
}

struct Request {
    method: String,
    /// The object's name, without the bucket's.
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

/// Its one bucket.
pub const BUCKET: &str = "heap";
/// When everything was written, by its clock.
const WRITTEN: [&str; 2] = ["21 Nov 2026 10:00:00 GMT", "2026-11-21T10:00:00.000Z"];

impl S3 {
    /// Starts one.
    ///
    /// # Errors
    /// No port is free.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::<Mutex<Shared>>::default();
        let of_threads = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&of_threads);
                // A client that goes away is its own business.
                thread::spawn(move || serve_connection(stream, &shared).unwrap_or_default());
            }
        });
        Ok(Self { port, shared })
    }

    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What a client of it has in its environment.
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

    /// Does this to the next writes, one after the other.
    pub fn fail(&self, faults: &[WriteFault]) {
        lock(&self.shared).faults = faults.iter().copied().collect();
    }

    /// How many writes were tried.
    pub fn writes(&self) -> usize {
        lock(&self.shared).writes
    }

    /// What it holds.
    pub fn names(&self) -> Vec<String> {
        lock(&self.shared).objects.keys().cloned().collect()
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve_connection(stream: TcpStream, shared: &Mutex<Shared>) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some(request) = read(&mut reader)? {
        let is_head = request.method == "HEAD";
        let Some(reply) = answer(&request, &mut lock(shared)) else {
            return Ok(());
        };
        write!(
            stream,
            "HTTP/1.1 {}\r\nContent-Length: {}\r\n{}\r\n",
            reply.status,
            reply.body.len(),
            reply.headers
        )?;
        if !is_head {
            stream.write_all(&reply.body)?;
        }
    }
    Ok(())
}

/// None at the end of the connection.
fn read(reader: &mut impl BufRead) -> Result<Option<Request>> {
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
    let name = decoded(path);
    let name = name.trim_start_matches('/');
    let name = name.strip_prefix(BUCKET).unwrap_or(name);
    Ok(Some(Request {
        method,
        name: name.trim_start_matches('/').to_owned(),
        query: decoded(query),
        headers,
        body,
    }))
}

/// Without percent signs.
fn decoded(text: &str) -> String {
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

/// None closes the connection.
fn answer(request: &Request, shared: &mut Shared) -> Option<S3Response> {
    match &*request.method {
        "PUT" => put(request, shared),
        "GET" if request.name.is_empty() => Some(list(request, shared)),
        "GET" | "HEAD" => Some(get(request, shared)),
        "DELETE" => {
            shared.objects.remove(&request.name);
            Some(S3Response::new("204 No Content", Vec::new()))
        }
        "POST" => Some(delete(request, shared)),
        _ => Some(S3Response::new("501 Not Implemented", Vec::new())),
    }
}

fn put(request: &Request, shared: &mut Shared) -> Option<S3Response> {
    shared.writes += 1;
    let fault = shared.faults.pop_front();
    let fails = |status, code: &str| {
        let body = format!("<Error><Code>{code}</Code><Message>scripted</Message></Error>");
        Some(S3Response::new(status, body.into_bytes()))
    };
    match fault {
        Some(WriteFault::Refused) => return None,
        Some(WriteFault::Conflict) => return fails("409 Conflict", "ConditionalRequestConflict"),
        Some(WriteFault::Broken) => return fails("500 Internal Server Error", "InternalError"),
        Some(WriteFault::Forbidden) => return fails("403 Forbidden", "AccessDenied"),
        Some(WriteFault::ConflictAfterWriting | WriteFault::LostAnswer) | None => {}
    }
    let is_create = request
        .headers
        .iter()
        .any(|(name, _)| name == "if-none-match");
    if is_create && shared.objects.contains_key(&request.name) {
        return fails("412 Precondition Failed", "PreconditionFailed");
    }
    shared
        .objects
        .insert(request.name.clone(), request.body.clone());
    match fault {
        Some(WriteFault::LostAnswer) => None,
        Some(WriteFault::ConflictAfterWriting) => {
            fails("409 Conflict", "ConditionalRequestConflict")
        }
        _ => Some(S3Response::new("200 OK", Vec::new())),
    }
}

fn get(request: &Request, shared: &Shared) -> S3Response {
    let Some(bytes) = shared.objects.get(&request.name) else {
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
    let mut reply = S3Response::new("206 Partial Content", part.to_vec());
    reply.headers += &format!("Content-Range: bytes {from}-{last}/{all}\r\n");
    reply
}

fn list(request: &Request, shared: &Shared) -> S3Response {
    let mut parameters = request.query.split('&');
    let prefix = parameters.find_map(|one| one.strip_prefix("prefix="));
    let prefix = prefix.unwrap_or_default();
    let mut body = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
    for (name, bytes) in &shared.objects {
        if name.starts_with(prefix) {
            let (written, size) = (WRITTEN[1], bytes.len());
            write!(
                body,
                "<Contents><Key>{name}</Key><LastModified>{written}</LastModified><ETag>\"1\"</ETag>\
                 <Size>{size}</Size></Contents>"
            )
            .expect("memory takes it");
        }
    }
    S3Response::new("200 OK", (body + "</ListBucketResult>").into_bytes())
}

/// Several at once, as their names stand in XML.
fn delete(request: &Request, shared: &mut Shared) -> S3Response {
    let text = String::from_utf8_lossy(&request.body);
    let names = text.split("<Key>").skip(1);
    let mut body = "<DeleteResult>".to_owned();
    for name in names.filter_map(|rest| Some(rest.split_once("</Key>")?.0)) {
        shared.objects.remove(name);
        body += &format!("<Deleted><Key>{name}</Key></Deleted>");
    }
    S3Response::new("200 OK", (body + "</DeleteResult>").into_bytes())
}

impl S3Response {
    fn new(status: &'static str, body: Vec<u8>) -> Self {
        let headers = format!("ETag: \"1\"\r\nLast-Modified: {}\r\n", WRITTEN[0]);
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
    fn a_range_is_what_there_is_of_it() {
        let check = |object: &str, range: &str, status: &str, told: &str, body: &str| {
            let mut shared = Shared::default();
            shared.objects.insert("a".to_owned(), object.into());
            let request = Request {
                method: "GET".to_owned(),
                name: "a".to_owned(),
                query: String::new(),
                headers: vec![("range".to_owned(), format!("bytes={range}"))],
                body: Vec::new(),
            };
            let reply = get(&request, &shared);
            assert_eq!(reply.status, status, "{range} of {object:?}");
            assert!(reply.headers.contains(told), "{}", reply.headers);
            assert!(String::from_utf8_lossy(&reply.body).contains(body));
        };
        let partial = "206 Partial Content";
        check("hello", "1-3", partial, "Content-Range: bytes 1-3/5", "ell");
        check("hello", "3-9", partial, "Content-Range: bytes 3-4/5", "lo");
        let none = "416 Requested Range Not Satisfiable";
        check("hello", "5-9", none, "", "InvalidRange");
        check("", "0-9", none, "", "InvalidRange");
    }
}
