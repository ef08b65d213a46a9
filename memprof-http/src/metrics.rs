//! `/metrics`, for Prometheus.

use std::sync::atomic::AtomicU64;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use serde_json::Value;

use crate::gateway::Gateway;
use crate::problem::{Problem, Result};
use crate::router::To;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// jemalloc's totals (jemalloc(3), `stats.*`).
const FIGURES: [(&str, &str); 6] = [
    ("allocated", "Bytes that the program holds"),
    ("active", "Bytes in pages that hold something"),
    ("metadata", "Bytes of the allocator's own"),
    ("resident", "Bytes in physical memory"),
    ("mapped", "Bytes in mapped extents"),
    ("retained", "Bytes of address space that were given back"),
];

type Number = Gauge<u64, AtomicU64>;
type Labels = Vec<(&'static str, String)>;

pub(crate) async fn of_host(To(host): To) -> Result<Response> {
    let status = host.tell("status", &[]).await?;
    let ledger = host.tell("ledger", &[]).await?;
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
async fn figures(host: &Gateway) -> Result<Option<Value>> {
    // Without the long report, of which nothing is shown.
    match host
        .tell("stats", &[("opts", "gmdablxeh"), ("log", "off")])
        .await
    {
        Ok(stats) => Ok(Some(stats)),
        Err(problem) if matches!(&*problem.kind, "busy" | "unavailable" | "unsupported") => {
            Ok(None)
        }
        Err(problem) => Err(problem),
    }
}

fn add_profiler(registry: &mut Registry, status: &Value) {
    let mut add = |name: &str, help: &str, value: u64| {
        registry.register(format!("memprof_{name}"), help, number(value));
    };
    let profiling = &status["profiling"];
    let is = |known: &str| u64::from(profiling == known);
    add(
        "profiling_active",
        "Whether allocations are sampled",
        is("active"),
    );
    let available = 1 - is("unavailable");
    add(
        "profiling_available",
        "Whether profiling can be on in this process",
        available,
    );
    add(
        "dumps_kept",
        "Heap profiles that are kept",
        of(&status["kept"]),
    );
    let busy = u64::from(status["busy"] == true);
    add(
        "dump_running",
        "Whether a heap profile is being taken",
        busy,
    );
    if let Some(interval) = status["sample_interval"].as_u64() {
        let help = "Mean allocated bytes between samples";
        registry.register_with_unit(
            "memprof_sample_interval",
            help,
            Unit::Bytes,
            number(interval),
        );
    }
}

fn add_ledger(registry: &mut Registry, ledger: &Value) {
    let bytes = |name: &str, help: &str, value: u64, registry: &mut Registry| {
        registry.register_with_unit(format!("memprof_{name}"), help, Unit::Bytes, number(value));
    };
    let rss = of(&ledger["rss_bytes"]);
    bytes(
        "resident",
        "Resident memory as the kernel counts it",
        rss,
        registry,
    );
    let cgroup = &ledger["cgroup"];
    if let Some(usage) = cgroup["usage_bytes"].as_u64() {
        bytes(
            "cgroup_usage",
            "What the memory cgroup uses",
            usage,
            registry,
        );
    }
    if let Some(limit) = cgroup["limit_bytes"].as_u64() {
        bytes("cgroup_limit", "The memory cgroup's limit", limit, registry);
    }
    let parts = Family::<Labels, Number>::default();
    for row in ledger["rows"].as_array().into_iter().flatten() {
        let name = row["name"].as_str().unwrap_or_default().to_owned();
        parts
            .get_or_create(&vec![("part", name)])
            .set(of(&row["bytes"]));
    }
    let help = "The parts of the resident memory";
    registry.register_with_unit("memprof_ledger", help, Unit::Bytes, parts);
}

/// An allocator's labels are its name and its version. A second one of a kind has a number behind its
/// name: `jemalloc 2`.
fn add_figures(registry: &mut Registry, stats: &Value) {
    let allocators = stats["allocators"].as_array().into_iter().flatten();
    let allocators = allocators.filter(|each| each["kind"] == "jemalloc");
    let allocators: Vec<(Labels, &Value)> = allocators
        .enumerate()
        .map(|(at, each)| {
            let name = match at {
                0 => "jemalloc".to_owned(),
                at => format!("jemalloc {}", at + 1),
            };
            let version = each["version"].as_str().unwrap_or_default().to_owned();
            (vec![("allocator", name), ("version", version)], each)
        })
        .collect();
    for (name, help) in FIGURES {
        let figures = Family::<Labels, Number>::default();
        for (labels, allocator) in &allocators {
            // Absent where jemalloc was built without statistics.
            if let Some(bytes) = allocator[name].as_u64() {
                figures.get_or_create(labels).set(bytes);
            }
        }
        registry.register_with_unit(format!("jemalloc_{name}"), help, Unit::Bytes, figures);
    }
}

fn number(value: u64) -> Number {
    let number = Number::default();
    number.set(value);
    number
}

fn of(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}
