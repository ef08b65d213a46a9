//! Gateway to one host: calls it, and shares its running dump and its rendered reports between HTTP clients.

use std::sync::Arc;

use memprof_host::client::PassedFile;
use memprof_host::protocol::HostInfo;
use memprof_messages::{
    DumpList, DumpReport, HeapUsage, KeptDump, PerAllocator, ProfilerStatus, ReplyEnvelope, Stats,
};
use memprof_plugin_abi::Arguments;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::sync::Mutex;

use crate::call_limiter::{CallKind, CallLimiter};
use crate::host_client::{DumpResponse, HostClient, HostUnavailable, PluginReply};
use crate::problem::{Problem, Result};
use crate::render_cache::RenderCache;
use crate::shared_dump::SharedDump;

/// Reply to `dump`.
pub(crate) type DumpReply = ReplyEnvelope<DumpReport>;

/// Gateway to one host, shared by all requests for it.
#[derive(Debug)]
pub(crate) struct Gateway {
    client: Arc<dyn HostClient>,
    call_limiter: Arc<CallLimiter>,
    /// Running dump that the host keeps.
    kept_dumps: SharedDump<DumpReply>,
    /// Running dump that is only in memory.
    in_memory_dumps: SharedDump<OpenDump>,
    /// Held during a dump: a host takes one at a time.
    dump_lock: Arc<Mutex<()>>,
    pub(crate) renders: RenderCache,
}

/// Opened dump with its content type.
#[derive(Debug)]
pub(crate) struct OpenDump {
    pub(crate) content_type: String,
    pub(crate) file: PassedFile,
}

/// Ids of a host's process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostProcess {
    /// Id in its own PID namespace, which its dumps have in their names.
    pub(crate) pid: u32,
    /// Id in this PID namespace. `None` if it is not visible from here.
    pub(crate) visible_pid: Option<u32>,
}

impl Gateway {
    /// Creates the gateway of a host, without a running dump or a cached report.
    pub(crate) fn new(client: Arc<dyn HostClient>) -> Self {
        Self {
            client,
            call_limiter: Arc::default(),
            kept_dumps: SharedDump::default(),
            in_memory_dumps: SharedDump::default(),
            dump_lock: Arc::default(),
            renders: RenderCache::default(),
        }
    }

    /// Returns the host's client. Its calls block, and bypass the limit on concurrent calls.
    pub(crate) fn client(&self) -> &dyn HostClient {
        &*self.client
    }

    /// Returns the host's process and name. Fails if the host does not answer.
    pub(crate) async fn host_info(&self) -> Result<HostInfo> {
        self.call_host(CallKind::Quick, |client| client.host_info())
            .await
    }

    /// Returns the pid of the host's process, in its own PID namespace and in this server's. Fails if the host does not
    /// answer.
    pub(crate) async fn process_ids(&self) -> Result<HostProcess> {
        self.call_host(CallKind::Quick, |client| {
            Ok(HostProcess {
                pid: client.host_info()?.pid,
                visible_pid: client.visible_pid()?,
            })
        })
        .await
    }

    /// Sends a message with (key, value) arguments to the host's plugin. Returns the plugin's reply, also if it is an
    /// error. Fails if the host does not answer, or too many calls wait.
    pub(crate) async fn send_message(
        &self,
        message: &'static str,
        args: &[(&str, &str)],
    ) -> Result<PluginReply> {
        let args = join_args(args);
        let call = CallKind::for_message(message);
        self.call_host(call, move |client| client.send_message(message, &args))
            .await
    }

    /// Sends a message, and parses the JSON reply as `T`. Fails if the host does not answer, or its reply is an error
    /// or no `T`.
    pub(crate) async fn send_and_parse_reply<T: DeserializeOwned>(
        &self,
        message: &'static str,
        args: &[(&str, &str)],
    ) -> Result<T> {
        parse_reply(message, &self.send_message(message, args).await?)
    }

    /// Sends a message, and ignores the content of a successful reply. Fails if the reply is an error or no JSON.
    pub(crate) async fn send_expecting_success(
        &self,
        message: &'static str,
        args: &[(&str, &str)],
    ) -> Result<()> {
        self.send_and_parse_reply::<IgnoredAny>(message, args)
            .await
            .map(drop)
    }

    /// Returns the reply to `status`: whether the plugin samples, and which allocators there are.
    pub(crate) async fn request_status(&self) -> Result<ProfilerStatus> {
        self.send_and_parse_reply("status", &[]).await
    }

    /// Returns the allocators' statistics, without writing them to the host's log, because the client reads the reply.
    /// `opts` are options of jemalloc's `malloc_stats_print`; without them, the plugin chooses.
    pub(crate) async fn request_stats(&self, opts: Option<&str>) -> Result<Vec<Stats>> {
        let opts = opts.map(|opts| ("opts", opts));
        let args: Vec<_> = [("log", "off")].into_iter().chain(opts).collect();
        let stats: PerAllocator<Stats> = self.send_and_parse_reply("stats", &args).await?;
        Ok(stats.allocators)
    }

    /// Takes a dump that the host keeps or, if such a dump is running, waits for it. Returns the reply to `dump`.
    pub(crate) async fn take_dump(&self) -> Result<Arc<DumpReply>> {
        let take = || {
            let reply = self.run_dump(|client| client.send_message("dump", ""));
            async move { parse_reply("dump", &reply.await?).map(Arc::new) }
        };
        self.kept_dumps.join_or_start(take).await
    }

    /// Takes a dump that is only in memory or, if such a dump is running, waits for it. So frequent requests never
    /// evict kept dumps, except in hosts with version 0.1 of the plugin, which keeps every dump.
    pub(crate) async fn take_in_memory_dump(&self) -> Result<OpenDump> {
        let take = || {
            let response = self.run_dump(|client| client.request_dump("dump", "keep=off"));
            async move { into_open_dump(response.await?).map(Arc::new) }
        };
        let opened = match self.in_memory_dumps.join_or_start(take).await {
            // Version 0.1 of the plugin keeps every dump, and rejects the argument `keep`.
            Err(problem) if problem.is_client_error() => {
                let kept = self.take_dump().await?;
                return self.open_kept_dump(&kept.fields.largest.id).await;
            }
            opened => opened?,
        };
        let file = opened.file.reopen();
        Ok(OpenDump {
            content_type: opened.content_type.clone(),
            file: file.map_err(|error| Problem::internal(format!("the dump: {error}")))?,
        })
    }

    /// Waits until no other dump of this host runs and the call limiter permits one, then calls `take` on a blocking
    /// thread. A `take` that has started cannot be cancelled.
    fn run_dump<T: Send + 'static>(
        &self,
        take: impl FnOnce(&dyn HostClient) -> Result<T, HostUnavailable> + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send + 'static {
        let (client, call_limiter) = (Arc::clone(&self.client), Arc::clone(&self.call_limiter));
        let dump_lock = Arc::clone(&self.dump_lock);
        async move {
            let _guard = dump_lock.lock().await;
            let _permit = call_limiter.acquire(CallKind::Long).await?;
            Ok(run_blocking(move || take(&*client)).await??)
        }
    }

    /// Returns the kept dumps, newest first.
    pub(crate) async fn request_kept_dumps(&self) -> Result<Vec<KeptDump>> {
        let kept: DumpList = self.send_and_parse_reply("list", &[]).await?;
        Ok(kept.dumps)
    }

    /// Returns the statistics texts of all allocators in one text. `opts` are options of jemalloc's
    /// `malloc_stats_print`; without them, the plugin chooses.
    pub(crate) async fn stats_text(&self, opts: Option<&str>) -> Result<String> {
        let stats = self.request_stats(opts).await?;
        Ok(stats.into_iter().map(|each| each.report).collect())
    }

    /// Returns the statistics of the allocator with most allocated bytes, as JSON. If the host cuts the text because it
    /// is too long, leaves out single arenas and, if necessary, bins, large objects and mutexes too. Fails if the
    /// allocator prints no JSON, or even the shortest text is too long.
    pub(crate) async fn stats_json(&self) -> Result<String> {
        // The host cuts a long text, which makes JSON invalid. Options of malloc_stats_print: J is JSON; a omits single
        // arenas, b bins, l large objects, x mutexes.
        for opts in ["J", "Ja", "Jablx"] {
            let stats = self.request_stats(Some(opts)).await?;
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

    /// Opens a kept dump. The host looks up the id, which is never a path. Fails if the id is unknown or malformed, or
    /// the host does not answer.
    pub(crate) async fn open_kept_dump(&self, id: &str) -> Result<OpenDump> {
        // An argument must be printable and without quotes; ids of dumps contain nothing else.
        if id.is_empty()
            || !id
                .bytes()
                .all(|byte| matches!(byte, b'!'..=b'~') && byte != b'"')
        {
            return Err(unknown_dump_error(id));
        }
        let argument = id.to_owned();
        let response = self.call_host(CallKind::Long, move |client| {
            client.request_dump("fetch", &format!("id={argument}"))
        });
        into_open_dump(response.await?).map_err(|problem| match problem.is_client_error() {
            true => unknown_dump_error(id),
            false => problem,
        })
    }

    /// Calls the host with `send` on a blocking thread, once the call limiter permits it. If the request is cancelled,
    /// the call continues, and keeps its permit until it ends.
    async fn call_host<T: Send + 'static>(
        &self,
        kind: CallKind,
        send: impl FnOnce(&dyn HostClient) -> Result<T, HostUnavailable> + Send + 'static,
    ) -> Result<T> {
        let client = Arc::clone(&self.client);
        let permit = self.call_limiter.acquire(kind).await?;
        let reply = run_blocking(move || {
            let reply = send(&*client);
            drop(permit);
            reply
        });
        Ok(reply.await??)
    }
}

/// Returns the dump in a response. Fails if the response is an error of the plugin.
fn into_open_dump(response: DumpResponse) -> Result<OpenDump> {
    match response {
        DumpResponse::File { content_type, file } => Ok(OpenDump { content_type, file }),
        DumpResponse::Refused(reply) => Err(Problem::from_reply(&reply)),
    }
}

/// Returns the error 404 for a dump id that the host does not know.
pub(crate) fn unknown_dump_error(id: &str) -> Problem {
    Problem::not_found(format!("no kept dump has the id {id:?}"))
        .remedy("GET /api/v1/dumps lists them")
}

/// Returns whether a text is complete JSON. False for JSON that was cut.
fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Joins arguments to `key=value` words, which the plugin splits again.
fn join_args(args: &[(&str, &str)]) -> String {
    let words: Vec<String> = args
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    Arguments::join(words.iter().map(String::as_str))
}

/// Parses the reply to `message` as `T`. Fails with the plugin's error if the reply is an error, or with an internal
/// error if it is no JSON of that type.
fn parse_reply<T: DeserializeOwned>(message: &str, reply: &PluginReply) -> Result<T> {
    if reply.status != 0 {
        return Err(Problem::from_reply(reply));
    }
    serde_json::from_slice(&reply.body)
        .map_err(|error| Problem::internal(format!("the host's reply to {message}: {error}")))
}

/// Runs `work` on a thread that may block. Fails if it panics.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Problem::internal(format!("the work ended early: {error}")))
}
