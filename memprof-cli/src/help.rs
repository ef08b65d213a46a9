//! What `--help`, the manual pages and the shell's completion say of each command: its message's
//! arguments, and examples. No host is asked for it.

use std::ffi::OsStr;

use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use crate::args::Args;
use crate::reply::MEMORY_PROFILE;

/// A command.
struct Help {
    command: &'static str,
    arguments: &'static [Argument],
    examples: &'static [&'static str],
}

/// An argument of a message: `key=value` with the values that it takes or an example of one, and
/// what it does.
struct Argument {
    key: &'static str,
    values: &'static [&'static str],
    meaning: &'static str,
}

const fn argument(
    key: &'static str,
    values: &'static [&'static str],
    meaning: &'static str,
) -> Argument {
    Argument {
        key,
        values,
        meaning,
    }
}

const ALLOCATOR: Argument = argument(
    "allocator",
    &["jemalloc", "tcmalloc", "mimalloc", "glibc"],
    "only this one [default: all that the message acts on]",
);
const INTERVAL: Argument = argument(
    "sample_interval",
    &["512KiB", "64KiB", "4KiB"],
    "allocated bytes between two samples, on average",
);
const LG_SAMPLE: Argument = argument(
    "lg_sample",
    &["19", "16", "12"],
    "the same as a power of two, as jemalloc writes it",
);

const COMMANDS: &[Help] = &[
    Help {
        command: "run",
        arguments: &[],
        examples: &[
            "memprof run -- ./server --port 8080",
            "memprof run --active --dump-dir /var/tmp/dumps -- perl script.pl",
            "memprof run --allocator jemalloc -- ./server",
        ],
    },
    Help {
        command: "ps",
        arguments: &[],
        examples: &[
            "memprof ps",
            "memprof ps --all",
            "memprof ps --json | jq '.hosts[].pid'",
        ],
    },
    Help {
        command: "msg",
        arguments: &[],
        examples: &[
            "memprof msg memory_profile help",
            "memprof msg -t web memory_profile fetch id=ID > dump.heap",
        ],
    },
    Help {
        command: "activate",
        arguments: &[
            argument("for", &["10m", "1h"], "end by itself after this time"),
            INTERVAL,
            LG_SAMPLE,
            ALLOCATOR,
            argument(
                "unwinder",
                &["auto", "ours", "allocator"],
                "who walks the stacks of samples",
            ),
            argument(
                "sampler",
                &["auto", "allocator", "ours"],
                "who samples: the allocator, or memprof in its place; auto falls back to memprof",
            ),
        ],
        examples: &[
            "memprof activate",
            "memprof activate -t web for=10m sample_interval=64KiB",
        ],
    },
    Help {
        command: "deactivate",
        arguments: &[ALLOCATOR],
        examples: &["memprof deactivate -t web"],
    },
    Help {
        command: "dump",
        arguments: &[
            argument(
                "kind",
                &["heap", "growth"],
                "what lives, or which stacks made the heap grow (tcmalloc)",
            ),
            ALLOCATOR,
        ],
        examples: &[
            "memprof dump -o leak.heap && memprof report leak.heap",
            "memprof dump -t web --open",
        ],
    },
    Help {
        command: "stats",
        arguments: &[
            argument(
                "opts",
                &["J", "Ja", "g"],
                "options of malloc_stats_print(3), of Jgmdablxeh",
            ),
            argument(
                "format",
                &["text", "json"],
                "the allocator's own text or JSON alone",
            ),
            argument(
                "log",
                &["on", "off"],
                "print them to the host's log too [default: on]",
            ),
            ALLOCATOR,
        ],
        examples: &[
            "memprof stats log=off",
            "memprof stats format=json > stats.json",
        ],
    },
    Help {
        command: "status",
        arguments: &[],
        examples: &[
            "memprof status -t web",
            "memprof status --json | jq .profiling",
        ],
    },
    Help {
        command: "doctor",
        arguments: &[],
        examples: &["memprof doctor -t web || echo profiling cannot be on"],
    },
    Help {
        command: "ledger",
        arguments: &[argument(
            "smaps",
            &["on", "off"],
            "add the kernel's account of all mappings",
        )],
        examples: &["memprof ledger -t web"],
    },
    Help {
        command: "purge",
        arguments: &[ALLOCATOR],
        examples: &["memprof purge -t web"],
    },
    Help {
        command: "background_thread",
        arguments: &[
            argument("state", &["on", "off"], "start or stop them; without, tell"),
            argument("max", &["1", "4"], "at most so many"),
        ],
        examples: &["memprof background_thread state=on max=1"],
    },
    Help {
        command: "reset",
        arguments: &[INTERVAL, LG_SAMPLE, ALLOCATOR],
        examples: &["memprof reset sample_interval=16KiB"],
    },
    Help {
        command: "gdump",
        arguments: &[
            argument("state", &["on", "off"], "start or stop"),
            argument("files", &["16"], "at most so many dumps [default: 16]"),
            argument(
                "for",
                &["10m", "1h"],
                "end by itself after this time [default: 10m]",
            ),
        ],
        examples: &["memprof gdump state=on files=16 for=10m"],
    },
    Help {
        command: "recent",
        arguments: &[argument(
            "max",
            &["0", "64", "512"],
            "how many jemalloc keeps from now on",
        )],
        examples: &["memprof recent max=64", "memprof recent"],
    },
    Help {
        command: "list",
        arguments: &[],
        examples: &["memprof list -t web"],
    },
    Help {
        command: "record",
        arguments: &[],
        examples: &[
            "memprof record --for 30s",
            "memprof record -t web --for 5m -o web.heap --open",
        ],
    },
    Help {
        command: "leaks",
        arguments: &[],
        examples: &["memprof leaks -t web --last 8"],
    },
    Help {
        command: "report",
        arguments: &[],
        examples: &[
            "memprof report leak.heap",
            "memprof report new.heap --base old.heap --format flamegraph -o change.svg",
        ],
    },
    Help {
        command: "serve",
        arguments: &[],
        examples: &[
            "memprof serve",
            "memprof serve -t web --socket /run/memprof-web.sock",
        ],
    },
    Help {
        command: "check",
        arguments: &[],
        examples: &["memprof check /usr/lib/memprof/memory_profile.so"],
    },
    Help {
        command: "completions",
        arguments: &[],
        examples: &["memprof completions bash > /etc/bash_completion.d/memprof"],
    },
    Help {
        command: "malloc-conf",
        arguments: &[],
        examples: &["memprof malloc-conf ./server"],
    },
];

impl Help {
    fn text(&self) -> String {
        let mut text = String::new();
        let usages = self.arguments.iter().map(Argument::usage);
        let width = usages.map(|usage| usage.len()).max().unwrap_or(0);
        if !self.arguments.is_empty() {
            text.push_str("Arguments of the message:\n");
        }
        for argument in self.arguments {
            text.push_str(&format!(
                "  {:width$}  {}\n",
                argument.usage(),
                argument.meaning
            ));
        }
        text.push_str(if self.arguments.is_empty() { "" } else { "\n" });
        text.push_str("Examples:");
        for example in self.examples {
            text.push_str(&format!("\n  {example}"));
        }
        text
    }

    fn candidates(&self) -> Vec<String> {
        let pair = |argument: &Argument| {
            let key = argument.key;
            argument
                .values
                .iter()
                .map(move |value| format!("{key}={value}"))
                .collect::<Vec<_>>()
        };
        self.arguments.iter().flat_map(pair).collect()
    }
}

impl Argument {
    /// `state=on|off`, or with an example of a value.
    fn usage(&self) -> String {
        let is_example = |value: &&str| value.starts_with(|c: char| c.is_ascii_digit());
        match self.values {
            [first, ..] if is_example(first) => format!("{}={first}", self.key),
            values => format!("{}={}", self.key, values.join("|")),
        }
    }
}

/// The command line, with its examples and completions.
pub(crate) fn command() -> Command {
    let mut command = Args::command();
    for help in COMMANDS {
        let candidates = help.candidates();
        command = command.mut_subcommand(help.command, |command| {
            let command = command.after_help(help.text());
            match candidates.is_empty() {
                true => command,
                false => command.mut_arg("args", |arg| arg.add(words(candidates))),
            }
        });
    }
    command
}

fn words(candidates: Vec<String>) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| matching(&candidates, current))
}

/// Completes a target: the hosts that run, by pid and by name.
pub(crate) fn targets() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let hosts = memprof_host::running();
        let by_pid = hosts.iter().map(|host| host.pid.to_string());
        let by_name = hosts.iter().map(|host| host.info.name.clone());
        // A shell would take a name apart, and show what is in it.
        let is_plain = |name: &String| {
            name.chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        let names: Vec<_> = by_pid.chain(by_name).filter(is_plain).collect();
        matching(&names, current)
    })
}

/// Completes a plugin's name.
pub(crate) fn plugins() -> ArgValueCompleter {
    words(vec![MEMORY_PROFILE.to_owned()])
}

/// Completes a message of `memory_profile`: those that are commands too, and two that are not.
pub(crate) fn messages() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let command = Args::command();
        let is_message = |each: &&Command| {
            let mut ids = each.get_arguments().map(Arg::get_id);
            ids.any(|id| id == "args") && each.get_name() != "msg"
        };
        let names = command.get_subcommands().filter(is_message);
        let names = names.map(Command::get_name).chain(["fetch", "help"]);
        matching(&names.map(str::to_owned).collect::<Vec<_>>(), current)
    })
}

fn matching(candidates: &[String], current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let fitting = candidates.iter().filter(|each| each.starts_with(&*current));
    fitting.map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_an_example_that_it_takes() {
        let command = command();
        command.clone().debug_assert();
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let name = sub.get_name();
            if ["man", "help"].contains(&name) {
                continue;
            }
            let help = COMMANDS.iter().find(|help| help.command == name);
            let help = help.unwrap_or_else(|| panic!("{name} has no example"));
            for example in help.examples {
                check(example);
            }
        }
    }

    /// The command of an example up to what a shell takes for itself.
    fn check(example: &str) {
        let start = example.find("memprof").unwrap();
        let words = example[start..].split_whitespace();
        let words = words.take_while(|word| !["|", "||", "&&", ">"].contains(word));
        if let Err(error) = command().try_get_matches_from(words) {
            panic!("{example}: {error}");
        }
    }

    #[test]
    fn arguments_are_shown_with_their_values() {
        let gdump = COMMANDS
            .iter()
            .find(|help| help.command == "gdump")
            .unwrap();
        assert_eq!(
            gdump.text(),
            "Arguments of the message:\n  \
               state=on|off  start or stop\n  \
               files=16      at most so many dumps [default: 16]\n  \
               for=10m       end by itself after this time [default: 10m]\n\n\
             Examples:\n  \
               memprof gdump state=on files=16 for=10m"
        );
    }

    #[test]
    fn completion_offers_what_fits() {
        let reset = COMMANDS
            .iter()
            .find(|help| help.command == "reset")
            .unwrap();
        let offered = |current: &str| {
            let found = matching(&reset.candidates(), OsStr::new(current));
            let values = found
                .iter()
                .map(|each| each.get_value().to_str().unwrap().to_owned());
            values.collect::<Vec<_>>()
        };
        assert_eq!(
            offered("lg"),
            ["lg_sample=19", "lg_sample=16", "lg_sample=12"]
        );
        assert_eq!(offered("allocator=t"), ["allocator=tcmalloc"]);
        assert_eq!(offered("x"), Vec::<String>::new());
    }
}
