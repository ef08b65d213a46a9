//! Renders dumps as reports.

use std::io::{BufRead, BufReader, Cursor};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::response::Response;
use memprof_messages::DumpId;
use memprof_report::{Error, ErrorKind, Format, Input, LabelUsage, Limits, Options, Sources};
use tokio::sync::Semaphore;

use crate::chunked_body;
use crate::file_format::{FileFormat, FormatSource};
use crate::gateway::{Gateway, HostProcess, OpenDump, run_blocking, unknown_dump_error};
use crate::problem::{Problem, Result};
use crate::report_query::ReportQuery;

/// Most bytes of a dump that is rendered, after decompression: a client uploads any bytes, and a host passes any file.
/// A dump of memprof's sampler has some MiB.
const MAX_DUMP_BYTES: u64 = 256 << 20;

impl ReportQuery {
    /// Takes a dump, which the host keeps, and renders it. Of several allocators, only the largest one's file is
    /// rendered.
    pub(crate) async fn render_new_dump(&self, host: &Gateway) -> Result<Response> {
        let dump = host.take_dump().await?;
        self.render_kept_dump(host, &dump.fields.largest.id).await
    }

    /// Renders a pprof profile from a new dump that is only in memory, so that frequent requests evict no kept dump. If
    /// `since` is an earlier dump, that dump is subtracted.
    pub(crate) async fn render_in_memory_pprof(
        &self,
        host: &Gateway,
        since: Option<PendingDump>,
    ) -> Result<Response> {
        let dump = PendingDump::take_in_memory(host).await?;
        let name = dump.origin.id.clone();
        let profile =
            render_dump_when_permitted(host, dump, since, self.to_options(Format::Pprof)?);
        Ok(FileFormat::from_name("pprof")?.file_response(&name, profile.await?))
    }

    /// Like [`render_new_dump`](Self::render_new_dump), but if graphviz, which draws call graphs, is missing, renders a
    /// flamegraph of the same dump instead.
    pub(crate) async fn render_new_dump_or_flamegraph(&self, host: &Gateway) -> Result<Response> {
        let dump = host.take_dump().await?;
        let id = &dump.fields.largest.id;
        match self.render_kept_dump(host, id).await {
            Err(problem) if problem.kind() == "missing_program" => {
                let format = Some("flamegraph".to_owned());
                let flamegraph = Self {
                    format,
                    ..self.clone()
                };
                flamegraph.render_kept_dump(host, id).await
            }
            report => report,
        }
    }

    /// Renders a kept dump, or returns its report from the cache. The format `heap` streams the dump itself, uncached,
    /// and takes no other parameter. Fails if the id is unknown, or a parameter is invalid.
    pub(crate) async fn render_kept_dump(&self, host: &Gateway, id: &str) -> Result<Response> {
        let format = FileFormat::from_name(self.format.as_deref().unwrap_or("text"))?;
        match format.source {
            FormatSource::AsStored => {
                if *self != Self::with_format("heap") {
                    return Err(Problem::contradiction(
                        "format=heap is the dump as it was written: it takes no other parameter",
                    )
                    .remedy("leave the others out, or choose another format"));
                }
                let dump = host.open_kept_dump(id).await?;
                let content_type = dump.content_type.clone();
                Ok(format.streamed_file_response(content_type, id, stream_dump(dump).await?))
            }
            FormatSource::Rendered(rendered) => {
                Ok(format.file_response(id, self.get_or_render_report(host, id, rendered).await?))
            }
        }
    }

    /// Returns a report of a kept dump, rendered or from the cache. The cache's key is the id with all parameters.
    async fn get_or_render_report(
        &self,
        host: &Gateway,
        id: &str,
        format: Format,
    ) -> Result<Bytes> {
        let options = self.to_options(format)?;
        let key = serde_json::to_string(&(id, self))
            .map_err(|error| Problem::internal(error.to_string()))?;
        let render = || async {
            let dump = PendingDump::open(host, id).await?;
            let base = match &self.base {
                Some(base) => Some(PendingDump::open(host, base).await?),
                None => None,
            };
            render_dump_when_permitted(host, dump, base, options).await
        };
        host.renders.get_or_render(&key, render).await
    }
}

/// Returns the bytes in use by label in a kept dump: for each label key, the `max` values with most bytes and the sum
/// of the others. The result is cached by id and `max`.
pub(crate) async fn usage_by_label(
    host: &Gateway,
    id: &str,
    max: usize,
) -> Result<Vec<LabelUsage>> {
    let render = || async {
        let dump = host.open_kept_dump(id).await?.file;
        with_render_permit(move || {
            let mut dump = BufReader::with_capacity(chunked_body::CHUNK_BYTES, dump);
            let usage = memprof_report::usage_by_label(&mut dump, &dump_limits(), max);
            let usage = usage.map_err(problem_from_report_error)?;
            let json = serde_json::to_vec(&usage);
            json.map(Bytes::from)
                .map_err(|error| Problem::internal(error.to_string()))
        })
        .await
    };
    let usage = host
        .renders
        .get_or_render(&format!("labels {max} {id}"), render)
        .await?;
    serde_json::from_slice(&usage).map_err(|error| Problem::internal(error.to_string()))
}

/// Takes a dump that is only in memory, and streams it as the text that jeprof, google-pprof and `go tool pprof` all
/// read, without the allocator's frames at the leaves.
pub(crate) async fn stream_new_dump_as_tcmalloc(host: &Gateway) -> Result<Body> {
    stream_as_tcmalloc(host, host.take_in_memory_dump().await?).await
}

/// Streams `dump` as the text that jeprof, google-pprof and Go's pprof all read, without the allocator's frames at the
/// leaves. The dump must be of the host's running process: the allocator's frames are found in its binaries.
pub(crate) async fn stream_as_tcmalloc(host: &Gateway, dump: OpenDump) -> Result<Body> {
    let sources = Sources::for_process(host.process_ids().await?.visible_pid);
    // The dump is read twice: here for the allocator's addresses, and later to write it.
    let file = dump.file.reopen();
    let mut file = file.map_err(|error| Problem::internal(format!("the dump: {error}")))?;
    let allocator = with_render_permit(move || {
        let mut bytes = BufReader::with_capacity(chunked_body::CHUNK_BYTES, &mut file);
        let input = Input {
            name: "dump",
            bytes: &mut bytes,
        };
        let options = Options {
            limits: dump_limits(),
            ..Options::default()
        };
        let named = memprof_report::read_profile(input, Some(&sources), &options, &|_, _| {});
        Ok(named
            .map_err(problem_from_report_error)?
            .allocator_addresses())
    })
    .await?;
    chunked_body::stream_body(move |out| {
        let mut dump = BufReader::with_capacity(chunked_body::CHUNK_BYTES, dump.file);
        Ok(memprof_report::write_tcmalloc(
            &mut dump,
            &Limits::default(),
            &allocator,
            out,
        )?)
    })
    .await
}

/// Streams a dump in its own format, without the pseudo frames in which memprof stores labels and ages: other tools
/// would take them for addresses.
pub(crate) async fn stream_dump(dump: OpenDump) -> Result<Body> {
    chunked_body::stream_body(move |out| {
        let mut dump = BufReader::with_capacity(chunked_body::CHUNK_BYTES, dump.file);
        memprof_report::export_dump(&mut dump, &Limits::default(), out)?;
        Ok(())
    })
    .await
}

/// Renders the flamegraph of an uploaded dump, with function names from the binaries of the host's process. Fails with
/// `invalid_argument` if the dump cannot be read.
pub(crate) async fn render_uploaded_flamegraph(host: &Gateway, dump: Bytes) -> Result<Response> {
    let process = host.process_ids().await?;
    let dump = ReadableDump {
        origin: DumpOrigin {
            id: "upload".to_owned(),
            taken: String::new(),
            // As a dump of the host's process, so that the binaries of the process are read.
            pid: process.pid,
        },
        bytes: Box::new(Cursor::new(dump)),
    };
    let options = Options {
        format: Format::Flamegraph,
        ..Options::default()
    };
    let svg = with_render_permit(move || {
        render_dump(dump, None, process, options).map_err(problem_from_upload_error)
    });
    Ok(FileFormat::from_name("flamegraph")?.file_response("upload", svg.await?))
}

/// Converts an error of a report on an uploaded dump. The dump is the client's, so an unreadable one is an invalid
/// request; other errors are the server's.
fn problem_from_upload_error(error: Error) -> Problem {
    let is_clients = is_input_error(&error);
    let problem = problem_from_report_error(error);
    match is_clients {
        true => Problem::invalid(problem.error.message),
        false => problem,
    }
}

/// Returns whether the cause of an error is in the bytes of the dump.
fn is_input_error(error: &Error) -> bool {
    match error {
        Error::Input { source, .. } => is_input_error(source),
        Error::Line { .. }
        | Error::Truncated { .. }
        | Error::Unrecognised { .. }
        | Error::Pprof { .. }
        | Error::Limit { .. }
        | Error::Overflow { .. } => true,
        _ => false,
    }
}

/// Converts an error of a report. The error of a dump that is too large gets a remedy. Options that contradict each
/// other or do not fit the dump are a conflict: each parameter was valid when it was parsed.
fn problem_from_report_error(error: Error) -> Problem {
    // The other limits are the same in `memprof report`.
    let is_limit = match &error {
        Error::Input { source, .. } => matches!(**source, Error::Limit { what: "bytes", .. }),
        error => matches!(error, Error::Limit { what: "bytes", .. }),
    };
    match error.kind() {
        ErrorKind::Usage => Problem::contradiction(error.to_string()),
        _ if is_limit => Problem::from(error)
            .remedy("GET /api/v1/dumps/ID?format=heap, and read that with `memprof report FILE`"),
        _ => error.into(),
    }
}

/// Returns the limits within which dumps of hosts and clients are read.
fn dump_limits() -> Limits {
    Limits {
        bytes: MAX_DUMP_BYTES,
        ..Limits::default()
    }
}

/// Name, time and process of a dump, as its report shows them.
#[derive(Clone)]
struct DumpOrigin {
    id: String,
    /// Time of the dump in RFC 3339; empty if unknown.
    taken: String,
    pid: u32,
}

/// An opened dump that has not been read yet.
pub(crate) struct PendingDump {
    origin: DumpOrigin,
    dump: OpenDump,
}

impl PendingDump {
    /// Opens a kept dump. Fails if the id is unknown or malformed, or the host does not answer.
    async fn open(host: &Gateway, id: &str) -> Result<Self> {
        let dump = host.open_kept_dump(id).await?;
        let DumpId { taken, pid } = DumpId::parse(id).ok_or_else(|| unknown_dump_error(id))?;
        let id = id.to_owned();
        let origin = DumpOrigin { id, taken, pid };
        Ok(Self { origin, dump })
    }

    /// Takes a dump that is only in memory. Its report has the id `now` and the current time.
    pub(crate) async fn take_in_memory(host: &Gateway) -> Result<Self> {
        let pid = host.host_info().await?.pid;
        let dump = host.take_in_memory_dump().await?;
        let origin = DumpOrigin {
            id: "now".to_owned(),
            taken: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            pid,
        };
        Ok(Self { origin, dump })
    }

    /// Returns the dump with a reader of its file.
    fn into_readable(self) -> ReadableDump {
        let file = BufReader::with_capacity(chunked_body::CHUNK_BYTES, self.dump.file);
        ReadableDump {
            origin: self.origin,
            bytes: Box::new(file),
        }
    }
}

/// A dump that is read while it is parsed.
struct ReadableDump {
    origin: DumpOrigin,
    bytes: Box<dyn BufRead + Send>,
}

/// Permits to render: each report needs a multiple of its dump in memory, and a core.
static RENDER_PERMITS: Semaphore = Semaphore::const_new(2);
/// Permits to wait for a permit to render.
static RENDER_QUEUE: Semaphore = Semaphore::const_new(32);

/// Runs `render` on a blocking thread, once one of 2 permits is free. Fails at once with status 503 if 32 requests wait
/// for a permit already.
pub(crate) async fn with_render_permit<T: Send + 'static>(
    render: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let overloaded = |_| Problem::overloaded("too many reports are being made");
    let queue_permit = RENDER_QUEUE.try_acquire().map_err(overloaded)?;
    let permit = RENDER_PERMITS.acquire().await;
    let permit = permit.map_err(|error| Problem::internal(error.to_string()))?;
    drop(queue_permit);
    run_blocking(move || {
        // The work continues even if the client has left, so it keeps the permit.
        let _permit = permit;
        render()
    })
    .await?
}

/// Returns the time of a dump for pprof, in nanoseconds since 1970. If the time is unknown or out of range, returns 0,
/// which pprof takes for unknown.
fn dump_time_nanos(dump: &DumpOrigin) -> i64 {
    let taken = humantime::parse_rfc3339(&dump.taken).ok();
    let since = taken.and_then(|taken| taken.duration_since(UNIX_EPOCH).ok());
    let nanos = since.and_then(|since| i64::try_from(since.as_nanos()).ok());
    nanos.unwrap_or(0)
}

/// Reads and renders `dump`, once a permit is free. If there is a `base`, subtracts that dump.
async fn render_dump_when_permitted(
    host: &Gateway,
    dump: PendingDump,
    base: Option<PendingDump>,
    options: Options,
) -> Result<Bytes> {
    let process = host.process_ids().await?;
    with_render_permit(move || {
        let base = base.map(PendingDump::into_readable);
        let report = render_dump(dump.into_readable(), base, process, options);
        report.map_err(problem_from_report_error)
    })
    .await
}

/// Reads and renders `dump`, up to [`MAX_DUMP_BYTES`] (256 MiB); if there is a `base`, subtracts that dump. Reads the
/// binaries of `process` only if the dump is of this process. Blocks.
fn render_dump(
    mut dump: ReadableDump,
    mut base: Option<ReadableDump>,
    process: HostProcess,
    mut options: Options,
) -> std::result::Result<Bytes, Error> {
    options.limits = dump_limits();
    options.time_nanos = dump_time_nanos(&dump.origin);
    options.base_time_nanos = base
        .as_ref()
        .map_or(0, |base| dump_time_nanos(&base.origin));
    // The binaries of a running process symbolize only its own dumps.
    let is_own = dump.origin.pid == process.pid;
    let sources = Sources::for_process(process.visible_pid.filter(|_| is_own));
    let input = Input {
        name: &dump.origin.id,
        bytes: &mut dump.bytes,
    };
    let base = base.as_mut().map(|base| Input {
        name: &base.origin.id,
        bytes: &mut base.bytes,
    });
    let mut out = Vec::new();
    let sources = std::slice::from_ref(&sources);
    memprof_report::write_report(input, base, sources, &options, &|_, _| {}, &mut out)?;
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use super::*;

    #[test]
    fn only_a_bad_upload_is_an_invalid_request() {
        let check = |error: Error, expected: &str| {
            let wrapped = |source| Error::Input {
                name: "upload".to_owned(),
                source: Box::new(source),
            };
            let text = error.to_string();
            let problem = problem_from_upload_error(wrapped(error));
            assert_eq!(problem.kind(), expected, "{text}");
            assert!(problem.error.message.contains(&text), "{problem:?}");
        };
        let problem = || "x".to_owned();
        check(Error::Truncated { problem: problem() }, "invalid_argument");
        check(Error::Unrecognised { found: problem() }, "invalid_argument");
        check(Error::Pprof { problem: problem() }, "invalid_argument");
        check(Error::Overflow { problem: problem() }, "invalid_argument");
        let (what, limit) = ("bytes", MAX_DUMP_BYTES);
        check(Error::Limit { what, limit }, "invalid_argument");
        let (format, line) = ("heap dump", 1);
        check(
            Error::Line {
                format,
                line,
                problem: problem(),
            },
            "invalid_argument",
        );
        check(Error::Empty { reason: problem() }, "empty");
        let act = "read a binary".to_owned();
        let source = io::ErrorKind::OutOfMemory.into();
        check(Error::Io { act, source }, "internal");
    }

    /// Endless lines of threads, which are not stored. Fails after that many bytes.
    struct EndlessThreads(u64);

    impl Read for EndlessThreads {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let name = "x".repeat(60 << 10);
            let line = format!("  t0: 1: 8 [0: 0] {name}\n").into_bytes();
            let read = line.len().min(buffer.len());
            assert_eq!(read, line.len(), "the buffer has place for a line");
            buffer[..read].copy_from_slice(&line);
            let rest = self.0.checked_sub(read as u64);
            self.0 = rest.ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(read)
        }
    }

    #[test]
    fn dump_of_any_length_is_not_read() {
        let head = &b"heap_v2/524288\n  t*: 1: 8 [0: 0]\n"[..];
        let file = head.chain(EndlessThreads(MAX_DUMP_BYTES + (1 << 20)));
        let dump = ReadableDump {
            origin: DumpOrigin {
                id: "d".to_owned(),
                taken: String::new(),
                pid: 7,
            },
            bytes: Box::new(BufReader::with_capacity(chunked_body::CHUNK_BYTES, file)),
        };
        let process = HostProcess {
            pid: 7,
            visible_pid: None,
        };
        let error = render_dump(dump, None, process, Options::default()).unwrap_err();
        let problem = problem_from_report_error(error);
        assert_eq!(
            (problem.kind(), &*problem.error.message),
            (
                "internal",
                "d: the input passes the limit of 268435456 bytes"
            )
        );
        assert!(problem.error.remedy.contains("memprof report"));
    }
}
