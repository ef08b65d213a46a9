//! The API's description for programs: `/api/v1/openapi.json`.

use axum::Json;
use serde_json::{Map, Value, json};

/// A route of the API.
pub(crate) struct Route {
    pub(crate) method: &'static str,
    /// Below a host, or below the root for those of [`ROOT`].
    pub(crate) path: &'static str,
    summary: &'static str,
    /// Names and meanings, of the query or of the body's object.
    parameters: &'static [(&'static str, &'static str)],
    reply: &'static str,
}

const JSON: &str = "application/json";
const ID: &str = "A kept dump's id, from the list";

/// Routes that are about no single host.
const ROOT: [Route; 2] = [
    get("/api/v1/hosts", "The hosts that run", &[]),
    get("/api/v1/openapi.json", "This document", &[]),
];

const ALLOCATOR: (&str, &str) = (
    "allocator",
    "Of these alone: jemalloc, tcmalloc, mimalloc or glibc",
);
const INTERVAL: (&str, &str) = (
    "sample_interval",
    "Mean allocated bytes between samples, for example 512KiB; drops the samples so far",
);
const LG_SAMPLE: (&str, &str) = (
    "lg_sample",
    "The same as a power of two, 10 to 24: 19 is 512KiB",
);
const UNWINDER: (&str, &str) = (
    "unwinder",
    "Which stack walk: auto, ours or allocator; auto unless given",
);

const SAMPLER: (&str, &str) = (
    "sampler",
    "Who samples: auto, allocator or ours (memprof's); auto unless given",
);

/// Routes of the only host, which stand below `/host/{pid}` too.
pub(crate) const ROUTES: [Route; 15] = [
    get(
        "/api/v1/status",
        "Whether profiling is on, of which allocators, and why not",
        &[],
    ),
    get(
        "/api/v1/ledger",
        "Where the resident memory is, and what would help",
        &[("smaps", "on adds the kernel's account of all mappings")],
    ),
    get(
        "/api/v1/doctor",
        "Why profiling cannot work in this process, and how to fix it",
        &[],
    ),
    get(
        "/api/v1/stats",
        "The allocators' figures",
        &[
            ("opts", "Letters of malloc_stats_print"),
            ("format", "text or json: the allocators' own report alone"),
            (
                "log",
                "on prints it to the host's log too; off unless given",
            ),
            ALLOCATOR,
        ],
    ),
    post(
        "/api/v1/activate",
        "Start sampling",
        &[
            (
                "for",
                "How long, for example 10m; without, until deactivated",
            ),
            INTERVAL,
            LG_SAMPLE,
            UNWINDER,
            SAMPLER,
            ALLOCATOR,
        ],
    ),
    post(
        "/api/v1/deactivate",
        "Stop sampling; samples taken so far are kept",
        &[ALLOCATOR],
    ),
    post(
        "/api/v1/reset",
        "Drop all samples",
        &[INTERVAL, LG_SAMPLE, ALLOCATOR],
    ),
    post(
        "/api/v1/purge",
        "Give free pages back to the kernel",
        &[ALLOCATOR],
    ),
    post(
        "/api/v1/background_thread",
        "Switch jemalloc's threads that give free pages back",
        &[("state", "on or off"), ("max", "At most so many")],
    ),
    post(
        "/api/v1/gdump",
        "Dump at each new high-water mark of the resident memory",
        &[
            ("state", "on or off"),
            ("files", "At most so many dumps, 16 unless given"),
            ("for", "How long, 10m unless given"),
        ],
    ),
    post(
        "/api/v1/recent",
        "The latest sampled allocations, where jemalloc keeps them",
        &[("max", "How many it keeps from now on")],
    ),
    post(
        "/api/v1/dump",
        "Take a profile; heap profiles that are asked for at the same time are one",
        &[("kind", "heap or growth"), ALLOCATOR],
    ),
    get("/api/v1/dumps", "The kept heap profiles, newest first", &[]),
    Route {
        reply: "*/*",
        ..get(
            "/api/v1/dumps/{id}",
            "A kept heap profile in any format",
            &[
                (
                    "format",
                    "heap, pprof, collapsed, flamegraph, html, view, text, tree, jeprof, json, svg or dot",
                ),
                (
                    "base",
                    "Another kept dump's id: every value is the change since then",
                ),
                (
                    "sample_type",
                    "inuse_space, inuse_objects, alloc_space or alloc_objects",
                ),
                (
                    "focus",
                    "Only stacks with a function that matches this regular expression",
                ),
                (
                    "ignore",
                    "No stack with a function that matches this regular expression",
                ),
                ("lines", "on splits functions into lines"),
                (
                    "top",
                    "At most so many functions, in the formats text and json",
                ),
                (
                    "flat",
                    "on shows every function as a row and folds none into its caller",
                ),
                (
                    "own",
                    "Functions that match this regular expression are the program's own",
                ),
                (
                    "plumbing",
                    "Functions that match this regular expression are folded into their callers",
                ),
            ],
        )
    },
    Route {
        reply: "application/openmetrics-text",
        ..get("/metrics", "Figures for Prometheus", &[])
    },
];

const fn get(
    path: &'static str,
    summary: &'static str,
    parameters: &'static [(&'static str, &'static str)],
) -> Route {
    Route {
        method: "get",
        path,
        summary,
        parameters,
        reply: JSON,
    }
}

const fn post(
    path: &'static str,
    summary: &'static str,
    parameters: &'static [(&'static str, &'static str)],
) -> Route {
    Route {
        method: "post",
        ..get(path, summary, parameters)
    }
}

/// `GET /api/v1/openapi.json`
pub(crate) async fn document() -> Json<Value> {
    let mut paths = Map::new();
    for route in ROOT.iter().chain(&ROUTES) {
        let operation = json!({ route.method: operation(route, false) });
        paths.insert(route.path.to_owned(), operation);
    }
    for route in &ROUTES {
        let operation = json!({ route.method: operation(route, true) });
        paths.insert(format!("/host/{{pid}}{}", route.path), operation);
    }
    Json(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "memprof",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Heap profiles of running processes. The replies to messages are those \
                            of the plugin memory_profile, as they are.",
        },
        "paths": paths,
        "components": {
            "schemas": { "Error": error_schema() },
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{}, { "token": [] }],
    }))
}

fn operation(route: &Route, below_host: bool) -> Value {
    let in_path = |name: &str, help: &str| {
        json!({
            "name": name, "in": "path", "required": true, "description": help,
            "schema": { "type": "string" },
        })
    };
    let mut parameters = Vec::new();
    if below_host {
        parameters.push(in_path("pid", "The host's pid"));
    }
    if route.path.contains("{id}") {
        parameters.push(in_path("id", ID));
    }
    let mut operation = json!({
        "summary": route.summary,
        "responses": {
            "200": { "description": "Success", "content": { route.reply: {} } },
            "default": {
                "description": "Error: `error.kind`, `error.message`, `error.remedy`. 400: invalid \
                                arguments; 401: the token is missing; 404: unknown id; 409: profiling \
                                is off; 429: a dump is running; 503: the host is gone, or the server \
                                is overloaded. With 429 and 503, Retry-After tells when to try again",
                "content": { JSON: { "schema": { "$ref": "#/components/schemas/Error" } } },
            },
        },
    });
    if route.method == "post" && !route.parameters.is_empty() {
        operation["requestBody"] = json!({ "content": { JSON: { "schema": body(route) } } });
    } else {
        parameters.extend(route.parameters.iter().map(|(name, help)| {
            json!({
                "name": name, "in": "query", "description": help, "schema": { "type": "string" },
            })
        }));
    }
    operation["parameters"] = parameters.into();
    operation
}

fn body(route: &Route) -> Value {
    let property = |(name, help): &(&str, &str)| {
        let schema = json!({ "type": ["string", "number", "boolean"], "description": help });
        ((*name).to_owned(), schema)
    };
    let properties: Map<String, Value> = route.parameters.iter().map(property).collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

fn error_schema() -> Value {
    let text = json!({ "type": "string" });
    json!({
        "type": "object",
        "required": ["error"],
        "properties": { "error": {
            "type": "object",
            "required": ["kind", "message", "remedy"],
            "properties": { "kind": text, "message": text, "remedy": text },
        } },
    })
}
