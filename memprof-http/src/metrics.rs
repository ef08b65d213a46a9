//! `/metrics`, for Prometheus.

use std::sync::atomic::AtomicU64;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use memprof_messages::{Cgroup, Figures, Kind, Ledger, Profiling, Stats, Status, Totals};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::extractor::To;
use crate::gateway::Gateway;
use crate::problem::{Problem, Result};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A figure: its name, what it is, and where it stands.
type Figure = (&'static str, &'static str, fn(&Figures) -> u64);

/// jemalloc's totals (jemalloc(3), `stats.*`).
const FIGURES: [Figure; 6] = [
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
        "Bytes of address space that were given back",
        |of| of.retained,
    ),
];

type Number = Gauge<u64, AtomicU64>;
type Labels = Vec<(&'static str, String)>;

pub(crate) async fn of_host(To(host): To) -> Result<Response> {
    let status = host.status().await?;
    let ledger: Ledger = host.tell("ledger", &[]).await?;
    let mut registry = Registry::default();
    add_profiler(&mut registry, &status);
    add_ledger(&mut registry, &ledger);
    if let Some(stats) = figures(&host).await? {
        add_figures(&mut registry, &stats);
    }
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|error| Problem::internal(error.to_string()))?;
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}

/// None where there is no allocator, or a dump holds the lock that its figures need.
async fn figures(host: &Gateway) -> Result<Option<Vec<Stats>>> {
    // Without the long report, of which nothing is shown.
    match host.stats(Some("gmdablxeh")).await {
        Ok(stats) => Ok(Some(stats)),
        Err(problem) if matches!(problem.kind(), "busy" | "unavailable" | "unsupported") => {
            Ok(None)
        }
        Err(problem) => Err(problem),
    }
}

fn add_profiler(registry: &mut Registry, status: &Status) {
    let mut add = |name: &str, help: &str, value: u64| {
        registry.register(format!("memprof_{name}"), help, number(value));
    };
    let is = |known: Profiling| u64::from(status.profiling == known);
    add(
        "profiling_active",
        "Whether allocations are sampled",
        is(Profiling::Active),
    );
    let available = 1 - is(Profiling::Unavailable);
    add(
        "profiling_available",
        "Whether profiling can be on in this process",
        available,
    );
    add(
        "dumps_kept",
        "Heap profiles that are kept",
        status.kept as u64,
    );
    let busy = u64::from(status.busy);
    add(
        "dump_running",
        "Whether a heap profile is being taken",
        busy,
    );
    if let Some(interval) = status.sample_interval {
        let help = "Mean allocated bytes between samples";
        registry.register_with_unit(
            "memprof_sample_interval",
            help,
            Unit::Bytes,
            number(interval),
        );
    }
}

fn add_ledger(registry: &mut Registry, ledger: &Ledger) {
    let bytes = |name: &str, help: &str, value: u64, registry: &mut Registry| {
        registry.register_with_unit(format!("memprof_{name}"), help, Unit::Bytes, number(value));
    };
    bytes(
        "resident",
        "Resident memory as the kernel counts it",
        ledger.rss_bytes,
        registry,
    );
    if let Some(Cgroup { usage_bytes, .. }) = ledger.cgroup {
        bytes(
            "cgroup_usage",
            "What the memory cgroup uses",
            usage_bytes,
            registry,
        );
    }
    if let Some(limit) = ledger.cgroup.and_then(|cgroup| cgroup.limit_bytes) {
        bytes("cgroup_limit", "The memory cgroup's limit", limit, registry);
    }
    let parts = Family::<Labels, Number>::default();
    for row in &ledger.rows {
        let name = row.name.to_string();
        parts.get_or_create(&vec![("part", name)]).set(row.bytes);
    }
    let help = "The parts of the resident memory";
    registry.register_with_unit("memprof_ledger", help, Unit::Bytes, parts);
}

/// An allocator's labels are its name and its version. A second one of a kind has a number behind its
/// name: `jemalloc 2`.
fn add_figures(registry: &mut Registry, stats: &[Stats]) {
    let allocators = stats.iter().filter(|each| each.kind == Kind::Jemalloc);
    let allocators = allocators.enumerate().filter_map(|(at, each)| {
        let name = match at {
            0 => "jemalloc".to_owned(),
            at => format!("jemalloc {}", at + 1),
        };
        // Absent where jemalloc was built without statistics.
        let Some(Totals::Divided(figures)) = each.totals else {
            return None;
        };
        let labels = vec![("allocator", name), ("version", each.version.clone())];
        Some((labels, figures))
    });
    let allocators: Vec<(Labels, Figures)> = allocators.collect();
    for (name, help, of) in FIGURES {
        let figures = Family::<Labels, Number>::default();
        for (labels, allocator) in &allocators {
            figures.get_or_create(labels).set(of(allocator));
        }
        registry.register_with_unit(format!("jemalloc_{name}"), help, Unit::Bytes, figures);
    }
}

fn number(value: u64) -> Number {
    let number = Number::default();
    number.set(value);
    number
}
