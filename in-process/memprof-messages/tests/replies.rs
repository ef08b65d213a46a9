//! Replies of every type: as this version writes and describes them, and as a later version may.

mod schema;

use std::fmt::Debug;

use memprof_messages::{
    ActivationResult, BackgroundThreads, DoctorReport, DumpList, DumpReport, EmptyReply,
    ErrorReply, GdumpResult, HelpReply, Ledger, MESSAGES, PerAllocator, ProfilerStatus,
    PurgeResult, RecentAllocations, ReplyEnvelope, ReplyType, Stats,
};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// A name that no version knows.
const UNKNOWN: &str = "word of a later version";

/// Reads `fields` as `T`, and again with fields and names that a later version may add.
fn check<T: Serialize + DeserializeOwned + JsonSchema + PartialEq + Debug>(fields: Value) {
    let mut reply = json!({ "status": "ok", "text": "t" });
    merge(&mut reply, fields);
    check_schema::<T>(&reply);
    let read: ReplyEnvelope<T> = serde_json::from_value(reply.clone()).unwrap();
    assert_eq!(
        serde_json::to_value(&read).unwrap(),
        reply,
        "a field is lost"
    );

    let mut later = reply.clone();
    add_fields(&mut later);
    let still_read: ReplyEnvelope<T> = serde_json::from_value(later).unwrap();
    assert_eq!(still_read, read, "a new field changes what is read");

    let mut later = reply;
    let words = replace_words(&mut later);
    let read: ReplyEnvelope<T> = serde_json::from_value(later.clone()).unwrap();
    assert!(words > 1);
    assert_eq!(
        serde_json::to_value(&read).unwrap(),
        later,
        "a word is lost"
    );
}

/// Checks that `reply` is valid by the schema, and that the schema requires `status` and `text`.
fn check_schema<T: JsonSchema>(reply: &Value) {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let schema = settings
        .into_generator()
        .into_root_schema_for::<ReplyEnvelope<T>>();
    let check =
        |reply: &Value| schema::check(reply, schema.as_value(), &schema.as_value()["$defs"]);
    assert_eq!(check(reply), Ok(()), "{reply}");
    for field in ["status", "text"] {
        let mut other = reply.clone();
        other[field] = 7.into();
        assert!(check(&other).is_err(), "{field}");
        other.as_object_mut().unwrap().remove(field);
        assert!(check(&other).is_err(), "{field}");
    }
    let mut later = reply.clone();
    later["a_later_field"] = 7.into();
    assert_eq!(check(&later).unwrap_err(), "a_later_field is not described");
}

/// Adds fields to an object.
fn merge(object: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else {
        panic!("{fields}");
    };
    object.as_object_mut().unwrap().extend(fields);
}

/// Adds a field to every object, first and last.
fn add_fields(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(add_fields);
            let mut extended = Map::new();
            extended.insert("a_later_field".to_owned(), json!({ "x": [1, null] }));
            extended.append(fields);
            extended.insert("z_later_field".to_owned(), json!("z"));
            *fields = extended;
        }
        Value::Array(values) => values.iter_mut().for_each(add_fields),
        _ => {}
    }
}

/// Replaces every text with an unknown name. Returns the number of texts.
fn replace_words(value: &mut Value) -> usize {
    match value {
        Value::String(text) => {
            UNKNOWN.clone_into(text);
            1
        }
        Value::Object(fields) => fields.values_mut().map(replace_words).sum(),
        Value::Array(values) => values.iter_mut().map(replace_words).sum(),
        _ => 0,
    }
}

/// Returns the fields of a reply to `status`, each of them set.
fn status() -> Value {
    let jemalloc = json!({
        "kind": "jemalloc", "version": "5.3.0", "found_by": "dlsym", "owns_malloc": true,
        "prof_active": true, "sampler": "memprof", "interception": "slots",
        "slots": {
            "patched": 7, "foreign": 1, "refused": 0, "unseen_objects": 2, "other_mallocs": 0,
        },
        "samples": 12, "live_samples": 4, "lost": 0, "unseen_frees": 0, "table_bytes": 4096,
        "sample_interval": 524_288, "dump_stall_ms": 756, "can": ["dump"], "reason": "r", "remedy": "m",
        "config_prof": true, "opt_prof": false, "prof_thread_active_init": true, "lg_sample": 19,
    });
    json!({
        "profiling": "active", "reason": "r", "remedy": "m", "active_since": "s",
        "active_until": "u", "sample_interval": 524_288, "allocators": [jemalloc],
        "unknown_malloc": "/x", "stripped_jemalloc": "/y", "dump_dir": "/d", "kept": 3,
        "busy": false,
        "watch": [{ "rule": "every", "fired": 1, "last_fired": "l", "next": "n" }],
        "gdump": { "taken": 1, "files": 16, "until": "u", "high_water_bytes": 9 },
        "unwinder": {
            "setting": "auto", "rules_read": 5,
            "walkers": [{
                "allocator": "jemalloc 5.3.0", "walker": "memprof", "reason": "r", "since": "s",
                "samples": 1, "fallbacks": 2, "cut": 3, "compared": 4, "agreed": 5,
            }],
        },
        "ages_s": 60, "labels": ["l"],
        "label_sets": { "seen": 7, "most": 1000, "others": 0, "bytes": 409_600 },
        "languages": [{
            "language": "python", "version": "3.11.2", "runtime": "/p", "samples": 9, "with_frames": 8,
            "ended_early": 1, "names": 7, "off_because": "b", "objects_off_because": "o",
        }],
    })
}

/// Returns the fields of a reply to `activate`, each of them set.
fn activation() -> Value {
    let mut activation = status();
    merge(
        &mut activation,
        json!({ "begun": true, "unseen_bytes": 1, "warnings": ["w"] }),
    );
    activation
}

/// Returns the fields of a reply to `dump`, each of them set.
fn dump_report() -> Value {
    let dump = json!({
        "id": "i", "kind": "heap", "path": "/d/i.heap", "bytes": 1, "stacks": 2,
        "sample_interval": 3, "estimated_inuse_bytes": 4, "allocator": "jemalloc 5.3.0",
        "metadata_bytes": 5, "unseen_frees": { "samples": 6, "bytes": 7 },
        "unseen_allocation_bytes": 8,
        "early_ends": [{ "reason": "unknown-code", "object": "/o", "samples": 9 }], "stall_ms": 10,
    });
    let mut report = dump.clone();
    merge(
        &mut report,
        json!({ "active_since": "s", "duration_ms": 5, "dumps": [dump], "warnings": ["w"] }),
    );
    report
}

/// Returns the fields of an allocator's heap totals.
fn heap_totals() -> Value {
    json!({
        "allocated": 1, "active": 2, "metadata": 3, "resident": 4, "mapped": 5, "retained": 6,
        "thread_caches": 7, "lazily_free": 8,
    })
}

/// Returns the fields of a reply to `stats`, with detailed and with committed sizes.
fn stats() -> Value {
    let mut stats = json!({ "kind": "jemalloc", "version": "5.3.0", "error": "e", "report": "r" });
    merge(&mut stats, heap_totals());
    let committed = json!({ "kind": "mimalloc", "version": "2", "committed": 7, "report": "r" });
    json!({ "allocators": [stats, committed] })
}

/// Returns the fields of a reply to `ledger`, each of them set.
fn ledger() -> Value {
    let sampled = json!({ "objects": 1, "bytes": 2, "active": 3, "allocated": 4, "pages": 5 });
    let mut heap = json!({
        "kind": "glibc", "version": "2.36", "owns_malloc": true, "sampled": sampled, "error": "e",
    });
    merge(&mut heap, heap_totals());
    json!({
        "rss_bytes": 1, "rows": [{ "name": "live_heap", "bytes": 2 }], "allocators": [heap],
        "cgroup": { "usage_bytes": 3, "limit_bytes": 4 },
        "verdicts": [{ "kind": "growth", "why": "w", "remedy": "m" }],
        "smaps": {
            "pss_bytes": 1, "private_dirty_bytes": 2, "lazy_free_bytes": 3,
            "anon_huge_pages_bytes": 4, "swap_bytes": 5,
        },
    })
}

#[test]
fn replies_of_later_versions_are_read() {
    for message in MESSAGES {
        match message.reply {
            ReplyType::Activation => check::<ActivationResult>(activation()),
            ReplyType::DumpReport => check::<DumpReport>(dump_report()),
            ReplyType::Stats => check::<PerAllocator<Stats>>(stats()),
            ReplyType::Status => check::<ProfilerStatus>(status()),
            ReplyType::Ledger => check::<Ledger>(ledger()),
            ReplyType::Purged => check::<PurgeResult>(json!({
                "anonymous_before_bytes": 3, "anonymous_after_bytes": 1, "released_bytes": 2,
            })),
            ReplyType::Background => {
                check::<PerAllocator<BackgroundThreads>>(json!({ "allocators": [{
                    "kind": "jemalloc", "version": "5.3.0", "background_thread": true,
                    "max_background_threads": 4,
                }]}))
            }
            ReplyType::Gdumping => check::<GdumpResult>(json!({
                "state": "on", "warnings": ["w"],
                "gdump": { "taken": 1, "files": 16, "until": "u", "high_water_bytes": 9 },
            })),
            ReplyType::Recent => check::<PerAllocator<RecentAllocations>>(json!({ "allocators": [{
                "kind": "jemalloc", "version": "5.3.0", "alloc_max": -1, "report": "r",
            }]})),
            ReplyType::Findings => check::<DoctorReport>(json!({ "healthy": false, "findings": [{
                "kind": "k", "severity": "error", "message": "m", "remedy": "r",
            }]})),
            ReplyType::KeptDumps => check::<DumpList>(json!({ "dumps": [{
                "id": "i", "path": "/d/i.heap", "bytes": 1, "taken": "t", "pid": 2, "kind": "heap",
                "trigger": "rss-above", "rss_bytes": 3,
            }]})),
            ReplyType::Help => check::<HelpReply>(json!({ "messages": [{
                "name": "dump", "usage": "u", "help": "h",
            }]})),
            ReplyType::Nothing => check::<EmptyReply>(json!({})),
            // Bytes, not a reply of fields.
            ReplyType::Profile => {}
        }
    }
    check::<ErrorReply<EmptyReply>>(json!({ "error": {
        "kind": "io", "message": "m", "remedy": "r", "act": "a", "source": "s", "errno": 28,
        "retry_after_ms": 500,
    }}));
}
