//! Dumps as reports.

use std::io::BufReader;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::response::Response;
use memprof_messages::DumpId;
use memprof_report::{
    Filter, Format, Granularity, Input, Label, LabelUsage, Limits, Options, OriginRules,
    SampleType, Sources, pattern,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::chunked_body;
use crate::file_format::{FileFormat, FormatSource};
use crate::gateway::{Gateway, OpenDump, blocking, no_such_dump};
use crate::problem::{Problem, Result};

/// What of a dump is wanted: the parameters of a query.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReportQuery {
    pub(crate) format: Option<String>,
    /// The id of another kept dump: every value is the change since then.
    pub(crate) base: Option<String>,
    pub(crate) sample_type: Option<String>,
    pub(crate) focus: Option<String>,
    pub(crate) ignore: Option<String>,
    /// Split functions into lines: on or off.
    pub(crate) lines: Option<String>,
    /// At most so many functions, of the formats that list them.
    pub(crate) top: Option<usize>,
    /// Every function is a row of its own: on or off.
    pub(crate) flat: Option<String>,
    /// Which functions are the program's own.
    pub(crate) own: Option<String>,
    /// Which are not.
    pub(crate) plumbing: Option<String>,
    /// Only what was allocated under this label: KEY=VALUE.
    pub(crate) label: Option<String>,
    /// The rows of text and JSON are the values of this label.
    pub(crate) by: Option<String>,
}

/// The most that an upload is after decompression.
const UPLOADED: u64 = 256 << 20;

impl ReportQuery {
    /// A dump in one of the formats, as a whole.
    pub(crate) fn with_format(format: &str) -> Self {
        Self {
            format: Some(format.to_owned()),
            ..Self::default()
        }
    }

    /// The report of a dump that is taken now.
    pub(crate) async fn render_new_dump(&self, host: &Gateway) -> Result<Response> {
        let dump = host.dump().await?;
        self.render_kept_dump(host, &dump.fields.largest.id).await
    }

    /// What `go tool pprof` reads, of a dump that is taken now and not kept: it may be asked for again and again.
    /// `since` is an earlier one.
    pub(crate) async fn pprof_without_keeping(
        &self,
        host: &Gateway,
        since: Option<PendingDump>,
    ) -> Result<Response> {
        let dump = PendingDump::without_keeping(host).await?;
        let name = dump.of.id.clone();
        let profile = rendered(host, dump, since, self.options(Format::Pprof)?);
        Ok(FileFormat::of("pprof")?.reply(&name, profile.await?))
    }

    /// As [`render_new_dump`](Self::render_new_dump); a call graph that cannot be drawn is a flamegraph.
    pub(crate) async fn render_new_dump_or_flamegraph(&self, host: &Gateway) -> Result<Response> {
        let dump = host.dump().await?;
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

    /// The report of a kept dump, from the cache where it was made before.
    pub(crate) async fn render_kept_dump(&self, host: &Gateway, id: &str) -> Result<Response> {
        let format = FileFormat::of(self.format.as_deref().unwrap_or("text"))?;
        match format.made {
            FormatSource::AsStored => {
                let dump = host.open(id).await?;
                let content_type = dump.content_type.clone();
                Ok(format.reply_as(content_type, id, export(dump).await?))
            }
            FormatSource::Rendered(made) => {
                Ok(format.reply(id, self.report(host, id, made).await?))
            }
        }
    }

    async fn report(&self, host: &Gateway, id: &str, format: Format) -> Result<Bytes> {
        let options = self.options(format)?;
        let key = serde_json::to_string(&(id, self))
            .map_err(|error| Problem::internal(error.to_string()))?;
        let render = || async {
            let dump = PendingDump::of(host, id).await?;
            let base = match &self.base {
                Some(base) => Some(PendingDump::of(host, base).await?),
                None => None,
            };
            rendered(host, dump, base, options).await
        };
        host.renders.get_or_render(&key, render).await
    }

    fn options(&self, format: Format) -> Result<Options> {
        let compile = |text: &Option<String>| text.as_deref().map(pattern).transpose();
        Ok(Options {
            format,
            sample_type: sample_type(self.sample_type.as_deref().unwrap_or("inuse_space"))?,
            granularity: match switch("lines", self.lines.as_deref())? {
                Some(true) => Granularity::Lines,
                Some(false) | None => Granularity::Functions,
            },
            top: self.top,
            filter: Filter {
                focus: compile(&self.focus)?,
                ignore: compile(&self.ignore)?,
            },
            blame: self.blame()?,
            label: self.label()?,
            by: self.by.clone(),
            ..Options::default()
        })
    }

    fn label(&self) -> Result<Option<Label>> {
        let label = self.label.as_deref().map(str::parse).transpose();
        label.map_err(|problem: String| {
            Problem::invalid(problem).remedy("an example: label=route=/search")
        })
    }

    fn blame(&self) -> Result<OriginRules> {
        let flat = switch("flat", self.flat.as_deref())?.unwrap_or(false);
        if flat && (self.own.is_some() || self.plumbing.is_some()) {
            return Err(Problem::invalid(
                "flat=on folds no function, so own and plumbing have no effect",
            )
            .remedy("leave flat out, or the other two"));
        }
        let compile = |text: &Option<String>| text.as_deref().map(pattern).transpose();
        Ok(OriginRules {
            flat,
            own: compile(&self.own)?,
            plumbing: compile(&self.plumbing)?,
        })
    }
}

/// Who holds how much in a kept dump: of each label the `most` values with most bytes.
pub(crate) async fn usage_by_label(
    host: &Gateway,
    id: &str,
    most: usize,
) -> Result<Vec<LabelUsage>> {
    let render = || async {
        let dump = host.open(id).await?.file;
        with_render_permit(move || {
            let mut dump = BufReader::with_capacity(chunked_body::SIZE, dump);
            let held = memprof_report::usage_by_label(&mut dump, &Limits::default(), most)?;
            let json = serde_json::to_vec(&held);
            json.map(Bytes::from)
                .map_err(|error| Problem::internal(error.to_string()))
        })
        .await
    };
    let held = host
        .renders
        .get_or_render(&format!("labels {id}"), render)
        .await?;
    serde_json::from_slice(&held).map_err(|error| Problem::internal(error.to_string()))
}

/// A dump that is taken now, in the text that jeprof, google-pprof and `go tool pprof` all read. It
/// is sent while it is rewritten.
pub(crate) async fn new_dump_as_tcmalloc(host: &Gateway) -> Result<Body> {
    as_tcmalloc(host.open_in_memory().await?).await
}

/// The same of a dump that was opened.
pub(crate) async fn as_tcmalloc(dump: OpenDump) -> Result<Body> {
    chunked_body::stream(move |out| {
        let mut dump = BufReader::with_capacity(chunked_body::SIZE, dump.file);
        Ok(memprof_report::write_tcmalloc(
            &mut dump,
            &Limits::default(),
            out,
        )?)
    })
    .await
}

/// A dump in its own format, as other tools read it.
pub(crate) async fn export(dump: OpenDump) -> Result<Body> {
    chunked_body::stream(move |out| {
        let mut dump = BufReader::with_capacity(chunked_body::SIZE, dump.file);
        memprof_report::export(&mut dump, &Limits::default(), out)?;
        Ok(())
    })
    .await
}

/// The flamegraph of a dump that somebody brings.
pub(crate) async fn upload_flamegraph(host: &Gateway, dump: Bytes) -> Result<Response> {
    let pid = host.host().await?.pid;
    let dump = LoadedDump {
        of: Origin {
            id: "upload".to_owned(),
            taken: String::new(),
            pid,
        },
        bytes: dump,
    };
    let options = Options {
        format: Format::Flamegraph,
        limits: Limits {
            bytes: UPLOADED,
            ..Limits::default()
        },
        ..Options::default()
    };
    let rendered = with_render_permit(move || render(&dump, None, pid, options)).await;
    // What cannot be read is the fault of whoever sent it.
    let svg = rendered.map_err(|problem| match problem.kind() {
        "internal" => Problem::invalid(problem.error.message),
        _ => problem,
    })?;
    Ok(FileFormat::of("flamegraph")?.reply("upload", svg))
}

/// A switch of a query.
fn switch(name: &str, value: Option<&str>) -> Result<Option<bool>> {
    match value {
        None => Ok(None),
        Some("on" | "1" | "true" | "yes") => Ok(Some(true)),
        Some("off" | "0" | "false" | "no") => Ok(Some(false)),
        Some(other) => Err(
            Problem::invalid(format!("unknown value {other:?} of {name}"))
                .remedy("valid values: on, off (or 1, 0, true, false, yes, no)"),
        ),
    }
}

fn sample_type(name: &str) -> Result<SampleType> {
    let known = SampleType::ALL
        .into_iter()
        .find(|known| known.name() == name);
    known.ok_or_else(|| {
        let names = SampleType::ALL.map(SampleType::name).join(", ");
        Problem::invalid(format!("unknown sample_type {name:?}"))
            .remedy(format!("valid sample types: {names}"))
    })
}

/// What a report says of its dump.
#[derive(Clone)]
struct Origin {
    id: String,
    /// RFC 3339.
    taken: String,
    pid: u32,
}

/// A dump of which nothing is in memory yet.
pub(crate) struct PendingDump {
    of: Origin,
    dump: OpenDump,
}

impl PendingDump {
    async fn of(host: &Gateway, id: &str) -> Result<Self> {
        let dump = host.open(id).await?;
        let DumpId { taken, pid } = DumpId::parse(id).ok_or_else(|| no_such_dump(id))?;
        let id = id.to_owned();
        let of = Origin { id, taken, pid };
        Ok(Self { of, dump })
    }

    /// One that is taken now and not kept.
    pub(crate) async fn without_keeping(host: &Gateway) -> Result<Self> {
        let pid = host.host().await?.pid;
        let dump = host.open_in_memory().await?;
        let of = Origin {
            id: "now".to_owned(),
            taken: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            pid,
        };
        Ok(Self { of, dump })
    }

    /// Blocks.
    fn read(self) -> Result<LoadedDump> {
        Ok(LoadedDump {
            of: self.of,
            bytes: self.dump.read()?.into(),
        })
    }
}

/// A dump and its bytes.
struct LoadedDump {
    of: Origin,
    bytes: Bytes,
}

/// Reports that are made at a time: each takes a multiple of its dump in memory, and a core.
static TURNS: Semaphore = Semaphore::const_new(2);
/// Those that wait for their turn.
static QUEUE: Semaphore = Semaphore::const_new(32);

/// Makes a report, on a thread that may block, when its turn has come.
pub(crate) async fn with_render_permit<T: Send + 'static>(
    make: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let full = |_| Problem::overloaded("too many reports are being made");
    let waiting = QUEUE.try_acquire().map_err(full)?;
    let turn = TURNS.acquire().await;
    let turn = turn.map_err(|error| Problem::internal(error.to_string()))?;
    drop(waiting);
    blocking(move || {
        // Also when whoever asked has left: the work goes on.
        let _turn = turn;
        make()
    })
    .await?
}

/// 0, pprof's unknown, for what has no time.
fn time_nanos(dump: &Origin) -> i64 {
    let taken = humantime::parse_rfc3339(&dump.taken).ok();
    let since = taken.and_then(|taken| taken.duration_since(UNIX_EPOCH).ok());
    let nanos = since.and_then(|since| i64::try_from(since.as_nanos()).ok());
    nanos.unwrap_or(0)
}

/// Makes a report when its turn has come.
async fn rendered(
    host: &Gateway,
    dump: PendingDump,
    base: Option<PendingDump>,
    options: Options,
) -> Result<Bytes> {
    let pid = host.host().await?.pid;
    with_render_permit(move || {
        let base = base.map(PendingDump::read).transpose()?;
        render(&dump.read()?, base.as_ref(), pid, options)
    })
    .await
}

fn render(
    dump: &LoadedDump,
    base: Option<&LoadedDump>,
    pid: u32,
    mut options: Options,
) -> Result<Bytes> {
    options.time_nanos = time_nanos(&dump.of);
    // The files of a living process are its own dumps' only.
    let sources = Sources::for_process((dump.of.pid == pid).then_some(pid));
    let mut bytes = &dump.bytes[..];
    let input = Input {
        name: &dump.of.id,
        bytes: &mut bytes,
    };
    let mut base_bytes = base.map(|base| &base.bytes[..]);
    let base = base.zip(base_bytes.as_mut()).map(|(base, bytes)| Input {
        name: &base.of.id,
        bytes,
    });
    let mut out = Vec::new();
    memprof_report::report(input, base, Some(&sources), &options, &|_, _| {}, &mut out)?;
    Ok(out.into())
}
