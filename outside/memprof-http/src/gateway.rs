//! The way to one host, and what its clients share: the dump that runs and what was rendered.

use std::io::Read;
use std::sync::Arc;

use memprof_host::client::PassedFile;
use memprof_host::protocol::HostInfo;
use memprof_messages::{
    DumpList, DumpReport, HeapUsage, KeptDump, PerAllocator, ProfilerStatus, ReplyEnvelope, Stats,
};
use memprof_plugin_abi::Arguments;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::sync::Mutex;

use crate::call_limiter::{Call, CallLimiter};
use crate::host_client::{DumpResponse, HostClient, HostUnavailable, PluginReply};
use crate::problem::{Problem, Result};
use crate::render_cache::RenderCache;
use crate::shared_dump::SharedDump;

/// The reply to `dump`.
pub(crate) type DumpReply = ReplyEnvelope<DumpReport>;

#[derive(Debug)]
pub(crate) struct Gateway {
    target: Arc<dyn HostClient>,
    calls: Arc<CallLimiter>,
    /// Of dumps that are kept, and of those that are not: a host takes one at a time.
    dumping: SharedDump<DumpReply>,
    passing: SharedDump<OpenDump>,
    one: Arc<Mutex<()>>,
    pub(crate) renders: RenderCache,
}

/// The bytes of a dump, and what they are.
#[derive(Debug)]
pub(crate) struct OpenDump {
    pub(crate) content_type: String,
    pub(crate) file: PassedFile,
}

impl Gateway {
    pub(crate) fn new(target: Arc<dyn HostClient>) -> Self {
        Self {
            target,
            calls: Arc::default(),
            dumping: SharedDump::default(),
            passing: SharedDump::default(),
            one: Arc::default(),
            renders: RenderCache::default(),
        }
    }

    pub(crate) fn target(&self) -> &dyn HostClient {
        &*self.target
    }

    /// Who the host is.
    pub(crate) async fn host(&self) -> Result<HostInfo> {
        self.call(Call::Quick, |target| target.host()).await
    }

    /// The plugin's answer, also where it is an error.
    pub(crate) async fn send(
        &self,
        message: &'static str,
        args: &[(&str, &str)],
    ) -> Result<PluginReply> {
        let args = join_args(args);
        let call = Call::of(message);
        self.call(call, move |target| target.message(message, &args))
            .await
    }

    /// The reply to a message, of the type that the message has; its error is one here.
    pub(crate) async fn send_typed<T: DeserializeOwned>(
        &self,
        message: &'static str,
        args: &[(&str, &str)],
    ) -> Result<T> {
        object(message, &self.send(message, args).await?)
    }

    /// Has a message done of whose reply only an error matters.
    pub(crate) async fn send_ok(&self, message: &'static str, args: &[(&str, &str)]) -> Result<()> {
        self.send_typed::<IgnoredAny>(message, args).await.map(drop)
    }

    /// The state of the profiler.
    pub(crate) async fn status(&self) -> Result<ProfilerStatus> {
        self.send_typed("status", &[]).await
    }

    /// The allocators' figures, which are not printed to the host's log: whoever asks over HTTP reads
    /// the reply.
    pub(crate) async fn stats(&self, opts: Option<&str>) -> Result<Vec<Stats>> {
        let opts = opts.map(|opts| ("opts", opts));
        let args: Vec<_> = [("log", "off")].into_iter().chain(opts).collect();
        let stats: PerAllocator<Stats> = self.send_typed("stats", &args).await?;
        Ok(stats.allocators)
    }

    /// Takes a dump, or joins the one that runs: the reply to `dump`.
    pub(crate) async fn dump(&self) -> Result<Arc<DumpReply>> {
        let take = || {
            let answer = self.run_exclusive(|target| target.message("dump", ""));
            async move { object("dump", &answer.await?).map(Arc::new) }
        };
        self.dumping.join(take).await
    }

    /// A dump that is taken now and not kept, or the one of these that runs: whoever asks again and again must not push
    /// out what others keep.
    pub(crate) async fn open_in_memory(&self) -> Result<OpenDump> {
        let take = || {
            let dumped = self.run_exclusive(|target| target.dump("dump", "keep=off"));
            async move { into_open_dump(dumped.await?).map(Arc::new) }
        };
        let opened = match self.passing.join(take).await {
            // Version 0.1 keeps each.
            Err(problem) if problem.is_client_error() => {
                let kept = self.dump().await?;
                return self.open(&kept.fields.largest.id).await;
            }
            opened => opened?,
        };
        let file = opened.file.reopen();
        Ok(OpenDump {
            content_type: opened.content_type.clone(),
            file: file.map_err(|error| Problem::internal(format!("the dump: {error}")))?,
        })
    }

    /// Has a dump taken when no other one runs. Nobody can cut this short: it ends with the dump.
    fn run_exclusive<T: Send + 'static>(
        &self,
        take: impl FnOnce(&dyn HostClient) -> Result<T, HostUnavailable> + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send + 'static {
        let (target, calls) = (Arc::clone(&self.target), Arc::clone(&self.calls));
        let one = Arc::clone(&self.one);
        async move {
            let _one = one.lock().await;
            let _turn = calls.acquire(Call::Long).await?;
            Ok(blocking(move || take(&*target)).await??)
        }
    }

    /// The kept dumps, newest first.
    pub(crate) async fn kept(&self) -> Result<Vec<KeptDump>> {
        let kept: DumpList = self.send_typed("list", &[]).await?;
        Ok(kept.dumps)
    }

    /// What every allocator prints of itself; `opts` are those of `malloc_stats_print`.
    pub(crate) async fn stats_text(&self, opts: Option<&str>) -> Result<String> {
        let stats = self.stats(opts).await?;
        Ok(stats.into_iter().map(|each| each.report).collect())
    }

    /// The same as one JSON document, of the allocator that holds most.
    pub(crate) async fn stats_json(&self) -> Result<String> {
        // What is too long is cut, which JSON does not survive: then without single arenas.
        for opts in ["J", "Ja", "Jablx"] {
            let stats = self.stats(Some(opts)).await?;
            let largest = stats.into_iter().max_by_key(|each| match each.totals {
                Some(HeapUsage::Detailed(figures)) => Some(figures.allocated),
                Some(HeapUsage::CommittedOnly { .. }) | None => None,
            });
            let report = largest.map(|each| each.report);
            if let Some(report) = report.filter(|text| is_json(text)) {
                return Ok(report);
            }
        }
        Err(Problem::internal("the allocator printed no JSON"))
    }

    /// A kept dump. Its id is looked up by the host, and never a path.
    pub(crate) async fn open(&self, id: &str) -> Result<OpenDump> {
        // A word: no id of a dump holds anything else.
        if id.is_empty()
            || !id
                .bytes()
                .all(|byte| matches!(byte, b'!'..=b'~') && byte != b'"')
        {
            return Err(no_such_dump(id));
        }
        let word = id.to_owned();
        let dumped = self.call(Call::Long, move |target| {
            target.dump("fetch", &format!("id={word}"))
        });
        into_open_dump(dumped.await?).map_err(|problem| match problem.is_client_error() {
            true => no_such_dump(id),
            false => problem,
        })
    }

    /// Calls the host when it is this call's turn.
    async fn call<T: Send + 'static>(
        &self,
        kind: Call,
        ask: impl FnOnce(&dyn HostClient) -> Result<T, HostUnavailable> + Send + 'static,
    ) -> Result<T> {
        let target = Arc::clone(&self.target);
        let turn = self.calls.acquire(kind).await?;
        let answer = blocking(move || {
            let answer = ask(&*target);
            drop(turn);
            answer
        });
        Ok(answer.await??)
    }
}

impl OpenDump {
    /// All of it. Blocks.
    pub(crate) fn read(mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.file.read_to_end(&mut bytes);
        read.map_err(|error| Problem::internal(format!("the dump: {error}")))?;
        Ok(bytes)
    }
}

fn into_open_dump(dumped: DumpResponse) -> Result<OpenDump> {
    match dumped {
        DumpResponse::File { content_type, file } => Ok(OpenDump { content_type, file }),
        DumpResponse::Refused(answer) => Err(Problem::from_reply(&answer)),
    }
}

pub(crate) fn no_such_dump(id: &str) -> Problem {
    Problem::not_found(format!("no kept dump has the id {id:?}"))
        .remedy("GET /api/v1/dumps lists them")
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// `key=value` words, which the plugin takes apart again.
fn join_args(args: &[(&str, &str)]) -> String {
    let words: Vec<String> = args
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    Arguments::join(words.iter().map(String::as_str))
}

/// The fields of an answer that is no error.
fn object<T: DeserializeOwned>(message: &str, answer: &PluginReply) -> Result<T> {
    if answer.status != 0 {
        return Err(Problem::from_reply(answer));
    }
    serde_json::from_slice(&answer.body)
        .map_err(|error| Problem::internal(format!("the host's reply to {message}: {error}")))
}

/// Runs what blocks where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Problem::internal(format!("the work ended early: {error}")))
}
