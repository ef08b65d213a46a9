//! Prometheus metrics at `/metrics`: of one host, or of all hosts with labels that distinguish them.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, UNIX_EPOCH};

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use memprof_messages::{
    AllocatorKind, HeapTotals, HeapUsage, Ledger, ProfileKind, ProfilerStatus, Profiling, Stats,
};
use memprof_report::LabelUsage;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::gateway::Gateway;
use crate::hosts::HostGateway;
use crate::problem::{Problem, Result};
use crate::report;
use crate::request_host::{RequestHost, SharedHosts, discover_when_permitted};

/// Timeout of each host when all are queried: a scraper gives up after ten seconds.
const HOST_TIMEOUT: Duration = Duration::from_secs(5);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A metric of an allocator: its name, its help text, and its value.
type AllocatorMetric = (&'static str, &'static str, fn(&HeapTotals) -> u64);

/// Totals of jemalloc (jemalloc(3), `stats.*`).
const ALLOCATOR_METRICS: [AllocatorMetric; 6] = [
    ("allocated", "Bytes that the program holds", |of| {
        of.allocated
    }),
    ("active", "Bytes in pages that hold something", |of| {
        of.active
    }),
    ("metadata", "Bytes of the allocator's own", |of| of.metadata),
    ("resident", "Bytes in physical memory", |of| of.resident),
    ("mapped", "Bytes in mapped extents", |of| of.mapped),
    (
        "retained",
        "Bytes of address space that were returned to the kernel",
        |of| of.retained,
    ),
];

type Number = Gauge<u64, AtomicU64>;
type Labels = Vec<(&'static str, String)>;

/// Replies of one host, from which its metrics are built.
struct HostReplies {
    /// Labels of the host; empty if it is the only one.
    labels: Labels,
    status: ProfilerStatus,
    ledger: Ledger,
    /// `None` if there is no allocator, or a dump holds the lock that the statistics need.
    stats: Option<Vec<Stats>>,
    /// `None` if no labels are recorded, or no dump has them.
    label_usage: Option<LabelUsageAt>,
}

/// Memory by label when the newest dump of the process was taken, and that time, in seconds since 1970.
struct LabelUsageAt {
    by_labels: Vec<LabelUsage>,
    taken: Option<u64>,
}

/// Serves the metrics of one host. They have no labels that distinguish hosts.
pub(crate) async fn serve_host_metrics(RequestHost(host): RequestHost) -> Result<Response> {
    encode_registry(&build_registry(&[query_host(&host, Vec::new()).await?]))
}

/// Serves the metrics of all hosts, which are queried at the same time. If this server has a single host, serves only
/// its metrics, as at `/host/PID/metrics`. A host that does not answer within [`HOST_TIMEOUT`] (5 s) only has the
/// metric `memprof_up`, with the value 0.
pub(crate) async fn serve_all_metrics(State(hosts): State<SharedHosts>) -> Result<Response> {
    if let Some(only) = hosts.single_host() {
        return serve_host_metrics(RequestHost(only)).await;
    }
    let found = discover_when_permitted(move || hosts.find_all()).await?;
    let mut queries = JoinSet::new();
    for HostGateway { pid, name, gateway } in found {
        let labels = vec![("service", name), ("pid", pid.to_string())];
        queries.spawn(async move {
            let reply = match gateway {
                Some(gateway) => {
                    let reply = timeout(HOST_TIMEOUT, query_host(&gateway, labels.clone())).await;
                    reply.ok().and_then(Result::ok)
                }
                None => None,
            };
            (pid, labels, reply)
        });
    }
    let mut replies = queries.join_all().await;
    replies.sort_by_key(|(pid, ..)| *pid);
    let up = replies.iter();
    let up = up.map(|(_, labels, reply)| (labels.clone(), u64::from(reply.is_some())));
    let up = up.collect();
    let replies: Vec<_> = replies
        .into_iter()
        .filter_map(|(.., reply)| reply)
        .collect();
    let mut registry = build_registry(&replies);
    let help = "Whether the process answered in time";
    add_metric(&mut registry, "memprof_up", help, None, up);
    encode_registry(&registry)
}

/// Queries the replies from which the metrics of one host are built. `labels` are added to each metric. Fails if the
/// host does not answer, or replies with an error. If no dump can be read, only the memory by label is missing.
async fn query_host(host: &Gateway, labels: Labels) -> Result<HostReplies> {
    let status = host.request_status().await?;
    let ledger = host.send_and_parse_reply("ledger", &[]).await?;
    let stats = query_allocator_stats(host).await?;
    let label_usage = match status.labels.is_empty() {
        true => None,
        // Dumps come and go: without a readable one, the other metrics are still valid.
        false => read_newest_label_usage(host).await.unwrap_or(None),
    };
    Ok(HostReplies {
        labels,
        status,
        ledger,
        stats,
        label_usage,
    })
}

/// Queries the allocators' totals. `None` if the host is busy, or no allocator has totals. Fails for every other error.
async fn query_allocator_stats(host: &Gateway) -> Result<Option<Vec<Stats>>> {
    // Omits the long text report, which metrics do not use.
    match host.request_stats(Some("gmdablxeh")).await {
        Ok(stats) => Ok(Some(stats)),
        Err(problem) if matches!(problem.kind(), "busy" | "unavailable" | "unsupported") => {
            Ok(None)
        }
        Err(problem) => Err(problem),
    }
}

/// Builds the metrics from the replies of the hosts.
fn build_registry(hosts: &[HostReplies]) -> Registry {
    let mut registry = Registry::default();
    add_profiler_metrics(&mut registry, hosts);
    add_ledger_metrics(&mut registry, hosts);
    add_allocator_metrics(&mut registry, hosts);
    add_label_metrics(&mut registry, hosts);
    registry
}

/// Returns the metrics as a response in the `OpenMetrics` text format.
fn encode_registry(registry: &Registry) -> Result<Response> {
    let mut text = String::new();
    encode(&mut text, registry).map_err(|error| Problem::internal(error.to_string()))?;
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}

/// Adds a metric with its values by labels. Does nothing if it has no value. The `unit`, if there is one, is appended
/// to the name.
fn add_metric(
    registry: &mut Registry,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    values: Vec<(Labels, u64)>,
) {
    let family = Family::<Labels, Number>::default();
    for (labels, value) in &values {
        family.get_or_create(labels).set(*value);
    }
    match (&*values, unit) {
        ([], _) => {}
        // A family without labels would be written with empty braces.
        ([(none, value)], Some(unit)) if none.is_empty() => {
            registry.register_with_unit(name, help, unit, gauge_with(*value));
        }
        ([(none, value)], None) if none.is_empty() => {
            registry.register(name, help, gauge_with(*value));
        }
        (_, Some(unit)) => registry.register_with_unit(name, help, unit, family),
        (_, None) => registry.register(name, help, family),
    }
}

/// Adds the metrics of the profiler's state, such as `memprof_profiling_active`.
fn add_profiler_metrics(registry: &mut Registry, hosts: &[HostReplies]) {
    let mut every = |name: &str, help: &str, of: fn(&ProfilerStatus) -> u64| {
        let values = hosts.iter();
        let values = values.map(|host| (host.labels.clone(), of(&host.status)));
        let name = format!("memprof_{name}");
        add_metric(registry, &name, help, None, values.collect());
    };
    every(
        "profiling_active",
        "Whether allocations are sampled",
        |status| u64::from(status.profiling == Profiling::Active),
    );
    every(
        "profiling_available",
        "Whether profiling can be on in this process",
        |status| u64::from(status.profiling != Profiling::Unavailable),
    );
    every("dumps_kept", "Heap profiles that are kept", |status| {
        status.kept as u64
    });
    every(
        "dump_running",
        "Whether a heap profile is being taken",
        |status| u64::from(status.busy),
    );
    let intervals = hosts.iter().filter_map(|host| {
        let interval = host.status.sample_interval?;
        Some((host.labels.clone(), interval))
    });
    let help = "Mean allocated bytes between samples";
    add_bytes_metric(registry, "sample_interval", help, intervals.collect());
}

/// Adds the metrics of the resident memory, of its parts and, if the host is in a memory cgroup, of the cgroup's usage
/// and limit.
fn add_ledger_metrics(registry: &mut Registry, hosts: &[HostReplies]) {
    let mut some = |name: &str, help: &str, of: fn(&Ledger) -> Option<u64>| {
        let values = hosts.iter();
        let values = values.filter_map(|host| Some((host.labels.clone(), of(&host.ledger)?)));
        add_bytes_metric(registry, name, help, values.collect());
    };
    some(
        "resident",
        "Resident memory as the kernel counts it",
        |ledger| Some(ledger.rss_bytes),
    );
    some("cgroup_usage", "What the memory cgroup uses", |ledger| {
        Some(ledger.cgroup?.usage_bytes)
    });
    some("cgroup_limit", "The memory cgroup's limit", |ledger| {
        ledger.cgroup?.limit_bytes
    });
    let mut parts = Vec::new();
    for host in hosts {
        for row in &host.ledger.rows {
            let part = [("part", row.name.to_string())];
            parts.push(([&host.labels[..], &part].concat(), row.bytes));
        }
    }
    add_bytes_metric(
        registry,
        "ledger",
        "The parts of the resident memory",
        parts,
    );
}

/// Adds the metric `memprof_NAME_bytes`, where NAME is `name`.
fn add_bytes_metric(registry: &mut Registry, name: &str, help: &str, values: Vec<(Labels, u64)>) {
    let name = format!("memprof_{name}");
    add_metric(registry, &name, help, Some(Unit::Bytes), values);
}

/// Adds the totals of each jemalloc, such as `jemalloc_allocated_bytes`.
fn add_allocator_metrics(registry: &mut Registry, hosts: &[HostReplies]) {
    let allocators: Vec<_> = hosts.iter().flat_map(jemalloc_totals).collect();
    for (name, help, of) in ALLOCATOR_METRICS {
        let values = allocators.iter();
        let values = values.map(|(labels, figures)| (labels.clone(), of(figures)));
        let name = format!("jemalloc_{name}");
        add_metric(registry, &name, help, Some(Unit::Bytes), values.collect());
    }
}

/// Returns the totals of a host's jemallocs with labels for name and version. Further jemallocs in one process are
/// named `jemalloc 2` and so on. Leaves out those without statistics.
fn jemalloc_totals(host: &HostReplies) -> impl Iterator<Item = (Labels, HeapTotals)> {
    let stats = host.stats.iter().flatten();
    let allocators = stats.filter(|each| each.kind == AllocatorKind::Jemalloc);
    allocators.enumerate().filter_map(|(index, each)| {
        let name = match index {
            0 => "jemalloc".to_owned(),
            index => format!("jemalloc {}", index + 1),
        };
        // Missing if jemalloc was built without statistics.
        let Some(HeapUsage::Detailed(figures)) = each.totals else {
            return None;
        };
        let labels = [("allocator", name), ("version", each.version.clone())];
        Some(([&host.labels[..], &labels].concat(), figures))
    })
}

/// Most values per label key: each is a time series of its own.
const MAX_VALUES: usize = 20;

/// Reads the memory by label from the newest kept heap dump of the host's process; takes no new dump. `None` if no heap
/// dump of this process is kept. Fails if the host or the dump cannot be read.
async fn read_newest_label_usage(host: &Gateway) -> Result<Option<LabelUsageAt>> {
    let pid = host.host_info().await?.pid;
    let mut kept = host.request_kept_dumps().await?.into_iter();
    let Some(dump) = kept.find(|dump| dump.pid == pid && dump.kind == ProfileKind::Heap) else {
        return Ok(None);
    };
    let by_labels = report::usage_by_label(host, &dump.id, MAX_VALUES).await?;
    let taken = humantime::parse_rfc3339(&dump.taken).ok();
    let taken = taken.and_then(|taken| taken.duration_since(UNIX_EPOCH).ok());
    Ok(Some(LabelUsageAt {
        by_labels,
        taken: taken.map(|taken| taken.as_secs()),
    }))
}

/// Adds the metrics of the memory by label, and of the times of the dumps from which it was read.
fn add_label_metrics(registry: &mut Registry, hosts: &[HostReplies]) {
    let (mut usage, mut times) = (Vec::new(), Vec::new());
    for host in hosts {
        let Some(label_usage) = &host.label_usage else {
            continue;
        };
        for LabelUsage { key, value, bytes } in &label_usage.by_labels {
            let name = [("key", key.clone()), ("value", value.clone())];
            // Only a comparison with a base has negative values.
            let bytes = u64::try_from(*bytes).unwrap_or(0);
            usage.push(([&host.labels[..], &name].concat(), bytes));
        }
        times.extend(label_usage.taken.map(|taken| (host.labels.clone(), taken)));
    }
    let help =
        "Sampled bytes in use when the newest dump was taken, by the labels of who allocated them";
    add_bytes_metric(registry, "label_inuse", help, usage);
    let help = "When that dump was taken, in seconds since 1970";
    let unit = Some(Unit::Seconds);
    add_metric(registry, "memprof_label_dump_time", help, unit, times);
}

/// Creates a gauge with the value `value`.
fn gauge_with(value: u64) -> Number {
    let number = Number::default();
    number.set(value);
    number
}
