//! The table of messages. If an argument is added here, all help texts show it and the HTTP API accepts it. Its handler
//! is in the plugin (plugins/memory-profile, `messages`).

use crate::ArgumentType::{Examples, Integer, NamedOneOf, OneOf};
use crate::Effect::{Mutating, ReadOnly};
use crate::ReplyLatency::{Immediate, Long};
use crate::{
    AllocatorKind, ArgumentSpec, LanguagesChoice, MessageSpec, ProfileKind, ReplyType,
    SamplerChoice, UnwinderChoice,
};

/// Name of the plugin that accepts these messages.
pub const PLUGIN: &str = "memory_profile";

const ON_OFF: crate::ArgumentType = OneOf(&["on", "off"]);

const ALLOCATOR: ArgumentSpec = ArgumentSpec::new(
    "allocator",
    NamedOneOf("NAME", AllocatorKind::NAMES),
    "act only on this allocator, not on all",
);
const INTERVAL: ArgumentSpec = ArgumentSpec::new(
    "sample_interval",
    Examples(&["512KiB", "64KiB", "4KiB"]),
    "mean number of allocated bytes between two samples; a new value drops all samples so far",
);
const LG_SAMPLE: ArgumentSpec = ArgumentSpec::new(
    "lg_sample",
    Integer {
        min: 10,
        max: Some(24),
        examples: &["19", "16", "12"],
    },
    "sample_interval as a power of two, as in jemalloc's lg_prof_sample",
)
.alternative();
const FOR: ArgumentSpec = ArgumentSpec::new(
    "for",
    Examples(&["10m", "1h"]),
    "stop automatically after this time, at most 7d",
);

/// All messages, in the order in which help shows them.
pub const MESSAGES: &[MessageSpec] = &[
    MessageSpec {
        name: "activate",
        help: "Start sampling allocations",
        effect: Mutating,
        latency: Long,
        reply: ReplyType::Activation,
        arguments: &[
            FOR,
            INTERVAL,
            LG_SAMPLE,
            ALLOCATOR,
            ArgumentSpec::new(
                "unwinder",
                OneOf(UnwinderChoice::NAMES),
                "code that walks the stacks during this activation: the allocator's or memprof's (formerly ours)",
            ),
            ArgumentSpec::new(
                "sampler",
                OneOf(SamplerChoice::NAMES),
                "sampler: the allocator's or memprof's (formerly ours); auto uses memprof's if the allocator has none",
            ),
            ArgumentSpec::new(
                "languages",
                OneOf(LanguagesChoice::NAMES),
                "whose functions stacks name: with auto those of a Python program, with off the interpreter's",
            )
            .with_default("auto"),
            ArgumentSpec::new(
                "ages",
                Examples(&["1m", "10s", "off"]),
                "record the age of samples, in buckets of this length, for memprof report --ages",
            )
            .with_default("off"),
            ArgumentSpec::new(
                "labels",
                Examples(&["thread", "thread,http.route", "off"]),
                "record labels with samples, for memprof report --by KEY: the thread's name, or keys that the program \
                 sets with memprof's calls or OpenTelemetry's",
            )
            .with_default("off"),
        ],
    },
    MessageSpec {
        name: "deactivate",
        help: "Stop sampling; samples taken so far are kept",
        effect: Mutating,
        latency: Long,
        reply: ReplyType::Activation,
        arguments: &[ALLOCATOR],
    },
    MessageSpec {
        name: "dump",
        help: "Take a heap profile and keep it in the dump directory",
        effect: Mutating,
        latency: Long,
        reply: ReplyType::DumpReport,
        arguments: &[
            ArgumentSpec::new(
                "kind",
                OneOf(ProfileKind::NAMES),
                "heap: what is in use; growth: stacks that made the heap grow (tcmalloc); pinned: objects that keep \
                 nearly empty pages in use (jemalloc with sampler=memprof), see memprof ledger --pinned",
            )
            .with_default("heap"),
            ALLOCATOR,
            ArgumentSpec::new(
                "keep",
                ON_OFF,
                "off: return the bytes of the largest profile, and write no file to the dump directory",
            )
            .with_default("on"),
        ],
    },
    MessageSpec {
        name: "stats",
        help: "Show the allocators' figures",
        effect: ReadOnly,
        latency: Long,
        reply: ReplyType::Stats,
        arguments: &[
            ArgumentSpec::new(
                "opts",
                Examples(&["Jgmdablxeh", "J", "Ja", "g"]),
                "letters for malloc_stats_print(3) of jemalloc",
            ),
            ArgumentSpec::new(
                "format",
                OneOf(&["text", "json"]),
                "only the allocator's own printout, as text or JSON",
            ),
            ArgumentSpec::new("log", ON_OFF, "print them to the host's log too").with_default("on"),
            ALLOCATOR,
        ],
    },
    MessageSpec {
        name: "status",
        help: "Show whether profiling is on, of which allocators, and why not",
        effect: ReadOnly,
        latency: Immediate,
        reply: ReplyType::Status,
        arguments: &[],
    },
    MessageSpec {
        name: "ledger",
        help: "Show where the resident memory is, and what would help",
        effect: ReadOnly,
        latency: Immediate,
        reply: ReplyType::Ledger,
        arguments: &[
            ArgumentSpec::new("smaps", ON_OFF, "add the kernel's account of all mappings")
                .with_default("off"),
        ],
    },
    MessageSpec {
        name: "purge",
        help: "Give the allocator's free pages back to the kernel",
        effect: Mutating,
        latency: Long,
        reply: ReplyType::Purged,
        arguments: &[ALLOCATOR],
    },
    MessageSpec {
        name: "background_thread",
        help: "Switch jemalloc's background threads, which give free pages back to the kernel",
        effect: Mutating,
        latency: Long,
        reply: ReplyType::Background,
        arguments: &[
            ArgumentSpec::new("state", ON_OFF, "start or stop them; without it, show their state"),
            ArgumentSpec::new(
                "max",
                Integer {
                    min: 1,
                    max: None,
                    examples: &["1", "4"],
                },
                "maximum number of threads",
            ),
        ],
    },
    MessageSpec {
        name: "reset",
        help: "Drop all samples; set the sample interval",
        effect: Mutating,
        latency: Long,
        reply: ReplyType::Activation,
        arguments: &[INTERVAL, LG_SAMPLE, ALLOCATOR],
    },
    MessageSpec {
        name: "gdump",
        help: "Dump at each new high-water mark of the resident memory, for a while",
        effect: Mutating,
        latency: Long,
        reply: ReplyType::Gdumping,
        arguments: &[
            ArgumentSpec::new("state", ON_OFF, "start or stop").required(),
            ArgumentSpec::new(
                "files",
                Integer {
                    min: 1,
                    max: Some(1000),
                    examples: &["16"],
                },
                "maximum number of dumps",
            )
            .with_default("16"),
            FOR.with_default("10m"),
        ],
    },
    MessageSpec {
        name: "recent",
        help: "Show the latest sampled allocations, where jemalloc keeps them",
        effect: Mutating,
        latency: Long,
        reply: ReplyType::Recent,
        arguments: &[ArgumentSpec::new(
            "max",
            Integer {
                min: 0,
                max: Some(512),
                examples: &["0", "64", "512"],
            },
            "how many allocations jemalloc keeps from now on; without it, as many as before",
        )],
    },
    MessageSpec {
        name: "doctor",
        help: "Diagnose why profiling cannot work in this process, and how to fix it",
        effect: ReadOnly,
        latency: Immediate,
        reply: ReplyType::Findings,
        arguments: &[],
    },
    MessageSpec {
        name: "detach",
        help: "Remove the plugin that memprof attach loaded: its hooks, threads and socket",
        effect: Mutating,
        latency: Long,
        reply: ReplyType::Nothing,
        arguments: &[],
    },
    MessageSpec {
        name: "list",
        help: "List the kept dumps, newest first",
        effect: ReadOnly,
        latency: Immediate,
        reply: ReplyType::KeptDumps,
        arguments: &[],
    },
    MessageSpec {
        name: "fetch",
        help: "Return the bytes of a kept dump",
        effect: ReadOnly,
        latency: Long,
        reply: ReplyType::Profile,
        arguments: &[
            ArgumentSpec::new("id", NamedOneOf("ID", &[]), "id of the dump, as list shows it").required(),
        ],
    },
    MessageSpec {
        name: "help",
        help: "List these messages",
        effect: ReadOnly,
        latency: Immediate,
        reply: ReplyType::Help,
        arguments: &[],
    },
];

/// Returns the specification of the message called `name`. `None` if the name is unknown.
pub fn find_message(name: &str) -> Option<&'static MessageSpec> {
    MESSAGES.iter().find(|message| message.name == name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::USAGES;

    const TABLE_HEAD: &str = "| message | arguments | what it does |\n|---|---|---|\n";

    /// Formats the table as in PROTOCOL.md.
    fn format_table() -> String {
        let rows = MESSAGES.iter().zip(USAGES).map(|(message, usage)| {
            let usage = match usage {
                "" => String::new(),
                usage => format!("`{}`", usage.replace('|', "\\|")),
            };
            format!("| `{}` | {usage} | {} |\n", message.name, message.help)
        });
        TABLE_HEAD.to_owned() + &rows.collect::<String>()
    }

    /// With `BLESS=1`, writes the table to PROTOCOL.md.
    #[test]
    fn protocol_has_this_table() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../PROTOCOL.md");
        let text = std::fs::read_to_string(&file).unwrap();
        let (before, after) = text
            .split_once(TABLE_HEAD)
            .expect("PROTOCOL.md has a table");
        let end = after.find("\n\n").map_or(after.len(), |end| end + 1);
        let expected = format!("{before}{}{}", format_table(), &after[end..]);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&file, &expected).unwrap();
        }
        assert_eq!(text, expected, "BLESS=1 cargo test -p memprof-messages");
        let names: Vec<_> = MESSAGES.iter().map(|message| message.name).collect();
        assert!(text.contains(&format!("\"messages\":{names:?}").replace("\", \"", "\",\"")));
    }
}
