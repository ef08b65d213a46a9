//! Help, manual pages and completion of each command: clap's, with the arguments from the table of messages and with
//! examples. No host is queried for them.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{Command, CommandFactory, Error};
use memprof_messages::{ArgumentSpec, MessageSpec, find_message};

use crate::args::Args;
use crate::completion::candidates_completer;

/// Additions to clap's help of a command.
struct CommandHelp {
    command: &'static str,
    examples: &'static [&'static str],
}

/// Commands with examples.
const COMMANDS: &[CommandHelp] = &[
    CommandHelp {
        command: "run",
        examples: &[
            "memprof run -- ./server --port 8080",
            "memprof run --active --sample-interval 64KiB -- ./server",
            "memprof run --active --dump-dir /var/tmp/dumps -- perl script.pl",
            "memprof run --allocator jemalloc -- ./server",
        ],
    },
    CommandHelp {
        command: "test",
        examples: &[
            "memprof test --budget memory.toml --update -- ./parser big.json",
            "memprof test --budget memory.toml -- ./parser big.json",
            "memprof test --budget memory.toml --runs 5 -- node app.js",
        ],
    },
    CommandHelp {
        command: "attach",
        examples: &[
            "memprof attach 4711 && memprof activate 4711",
            "memprof attach 4711 --for 10m dump_dir=/var/tmp/dumps keep.count=3",
        ],
    },
    CommandHelp {
        command: "detach",
        examples: &["memprof detach 4711", "memprof detach --tree 4711"],
    },
    CommandHelp {
        command: "ps",
        examples: &[
            "memprof ps",
            "memprof ps --all",
            "memprof ps --all --for 10s",
            "memprof ps --json | jq '.hosts[].pid'",
        ],
    },
    CommandHelp {
        command: "msg",
        examples: &[
            "memprof msg memory_profile help",
            "memprof msg web words block word=\"two words\"",
            "memprof msg 4711 memory_profile fetch id=ID > dump.heap",
        ],
    },
    CommandHelp {
        command: "activate",
        examples: &[
            "memprof activate",
            "memprof activate web for=10m sample_interval=64KiB",
        ],
    },
    CommandHelp {
        command: "deactivate",
        examples: &["memprof deactivate web"],
    },
    CommandHelp {
        command: "dump",
        examples: &[
            "memprof dump -o leak.heap && memprof report leak.heap",
            "memprof dump web --open",
        ],
    },
    CommandHelp {
        command: "stats",
        examples: &[
            "memprof stats log=off",
            "memprof stats format=json > stats.json",
        ],
    },
    CommandHelp {
        command: "status",
        examples: &[
            "memprof status web",
            "memprof status --json | jq .profiling",
        ],
    },
    CommandHelp {
        command: "doctor",
        examples: &[
            "memprof doctor 4711",
            "memprof doctor web || echo profiling cannot be on",
        ],
    },
    CommandHelp {
        command: "ledger",
        examples: &[
            "memprof ledger 4711",
            "memprof ledger 4711 --open",
            "memprof ledger web --pinned",
            "memprof ledger web --pinned --format flamegraph -o pinned.svg",
        ],
    },
    CommandHelp {
        command: "purge",
        examples: &["memprof purge web"],
    },
    CommandHelp {
        command: "background_thread",
        examples: &["memprof background_thread state=on max=1"],
    },
    CommandHelp {
        command: "reset",
        examples: &["memprof reset sample_interval=16KiB"],
    },
    CommandHelp {
        command: "gdump",
        examples: &["memprof gdump state=on files=16 for=10m"],
    },
    CommandHelp {
        command: "recent",
        examples: &["memprof recent max=64", "memprof recent"],
    },
    CommandHelp {
        command: "list",
        examples: &["memprof list web"],
    },
    CommandHelp {
        command: "record",
        examples: &[
            "memprof record --for 30s",
            "memprof record 4711 --for 30s --open",
            "memprof record gunicorn --tree --for 1m",
            "memprof record container:web --format flamegraph -o leak.svg",
            "memprof record web --for 5m -o web.heap --open",
        ],
    },
    CommandHelp {
        command: "leaks",
        examples: &[
            "memprof leaks 4711 --last 8",
            "memprof leaks --prove 4711",
            "memprof leaks --prove 4711 --format html -o leaks.html",
            "memprof leaks --prove --at-exit -- ./tests",
        ],
    },
    CommandHelp {
        command: "holders",
        examples: &[
            "memprof holders 4711",
            "memprof holders 4711 --class Session",
            "memprof holders 4711 --stack load_config",
            "memprof holders 4711 --format html -o holders.html",
        ],
    },
    CommandHelp {
        command: "report",
        examples: &[
            "memprof report leak.heap",
            "memprof report 4711 --lines",
            "memprof report new.heap --base old.heap --format flamegraph -o change.svg",
        ],
    },
    CommandHelp {
        command: "serve",
        examples: &[
            "memprof serve",
            "memprof serve -t web --socket /run/memprof-web.sock",
        ],
    },
    CommandHelp {
        command: "agent",
        examples: &[
            "memprof agent",
            "memprof agent --store s3://heap/prod",
            "memprof agent --once",
        ],
    },
    CommandHelp {
        command: "fleet",
        examples: &[
            "memprof fleet ps",
            "memprof fleet dump --nats tls://nats:4222 -t @cart --sample 5%",
            "memprof fleet top --at 14:30",
            "memprof fleet diff -t @cart --build 3f2a --base 91cc",
            "memprof fleet flame -t @cart --for 1h -o cart.svg",
        ],
    },
    CommandHelp {
        command: "check",
        examples: &["memprof check /usr/lib/memprof/memory_profile.so"],
    },
    CommandHelp {
        command: "plugin",
        examples: &[
            "memprof plugin new words --lang rust",
            "memprof plugin check target/release/libwords.so",
        ],
    },
    CommandHelp {
        command: "plugins",
        examples: &["memprof plugins web", "memprof plugins --json"],
    },
    CommandHelp {
        command: "completions",
        examples: &["memprof completions bash > /etc/bash_completion.d/memprof"],
    },
    CommandHelp {
        command: "man",
        examples: &["memprof man | man -l -", "memprof man --directory man1"],
    },
    CommandHelp {
        command: "malloc-conf",
        examples: &["memprof malloc-conf ./server"],
    },
];

/// Commands by their purpose, as `memprof --help` lists them.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Find what takes the memory",
        &["record", "report", "leaks", "holders", "ledger"],
    ),
    ("See what runs", &["ps", "doctor", "status", "serve"]),
    (
        "Sample by hand",
        &[
            "attach",
            "activate",
            "dump",
            "list",
            "stats",
            "reset",
            "deactivate",
            "detach",
        ],
    ),
    ("Start programs and tests", &["run", "test"]),
    ("Many machines", &["agent", "fleet"]),
    (
        "Allocators",
        &[
            "purge",
            "gdump",
            "recent",
            "background_thread",
            "malloc-conf",
        ],
    ),
    ("Plugins", &["plugin", "plugins", "check", "msg"]),
    ("Shells and manuals", &["completions", "man", "help"]),
];

/// Returns the template of clap for the help of the whole program. It lists the commands by purpose, instead of clap's
/// one list.
fn help_template(command: &Command) -> String {
    let names = GROUPS.iter().flat_map(|(_, names)| names.iter());
    let width = names.map(|name| name.len()).max().unwrap_or(0);
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (purpose, names) in GROUPS {
        text += &format!("\n{purpose}:\n");
        for name in *names {
            let about = match command.find_subcommand(name).and_then(Command::get_about) {
                Some(about) => about.to_string(),
                // The command `help` is missing here: clap adds it later.
                None => "Print this, or the help of a command".to_owned(),
            };
            // The list has one line for each command, so it shows only the first clause.
            let about = about.split([';', '\n']).next().unwrap_or_default();
            let about = about.trim_end_matches('.');
            text += &format!("  {name:width$}  {about}\n");
        }
    }
    text + "\nOptions:\n{options}{after-help}"
}

impl CommandHelp {
    /// Returns the message that the command sends; `None` for a command that is no message.
    fn message(&self) -> Option<&'static MessageSpec> {
        find_message(self.command)
    }

    /// Returns the arguments of the command's message; empty for a command that is no message.
    fn arguments(&self) -> &'static [ArgumentSpec] {
        self.message().map_or(&[], |message| message.arguments)
    }

    /// Returns the text after clap's help: arguments of the message, and examples.
    fn after_help_text(&self) -> String {
        let mut text = String::new();
        let arguments = self.arguments().iter().map(|each| (each.to_string(), each));
        let width = arguments.clone().map(|(usage, _)| usage.len()).max();
        if let Some(width) = width {
            text.push_str("Arguments of the message:\n");
            for (usage, argument) in arguments {
                let default = argument.default.map(|value| format!(" [default: {value}]"));
                let default = default.unwrap_or_default();
                text.push_str(&format!("  {usage:width$}  {}{default}\n", argument.help));
            }
            text.push('\n');
        }
        text.push_str("Examples:");
        for example in self.examples {
            text.push_str(&format!("\n  {example}"));
        }
        text
    }

    /// Returns the completions of the message's arguments as `key=value`, for each value that the table of messages
    /// offers.
    fn argument_completions(&self) -> Vec<String> {
        let pairs = self.arguments().iter().flat_map(|argument| {
            let offered = argument.values.completions().iter();
            offered.map(|value| format!("{}={value}", argument.key))
        });
        pairs.collect()
    }
}

/// Builds clap's description of the command line, and adds the commands' examples and completions.
pub(crate) fn build_command() -> Command {
    let mut command = Args::command();
    for help in COMMANDS {
        let candidates = help.argument_completions();
        command = command.mut_subcommand(help.command, |command| {
            let command = command.after_help(help.after_help_text());
            // A command that does more than send its message has its own `about` text.
            let command = match help.message() {
                Some(message) if command.get_about().is_none() => command.about(message.help),
                _ => command,
            };
            match candidates.is_empty() {
                true => command,
                false => command.mut_arg("args", |arg| arg.add(candidates_completer(candidates))),
            }
        });
    }
    let help = help_template(&command);
    command.help_template(help)
}

/// Collects the words of the command line. Removes the option of `memprof help --help`, which clap refuses.
pub(crate) fn normalize_words(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<_> = words.collect();
    if let [_, help, option] = &*words
        && help == "help"
        && (option == "--help" || option == "-h")
    {
        words.pop();
    }
    words
}

/// Adds a hint to the error for a message's argument that was typed as an option: the hint shows how to write it.
/// Returns other errors unchanged. `command` is the word after the program's name; `None` if there is none.
pub(crate) fn add_argument_hint(mut error: Error, command: Option<OsString>) -> Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let option = option.trim_start_matches('-').replace('-', "_");
    let command = command.and_then(|command| find_message(command.to_str()?));
    let argument = command.and_then(|message| {
        let mut arguments = message.arguments.iter();
        arguments.find(|argument| option.split('=').next() == Some(argument.key))
    });
    if let Some(argument) = argument {
        let hint = format!("the message's arguments have no dashes: {argument}");
        let hints = ContextValue::StyledStrs(vec![hint.into()]);
        error.insert(ContextKind::Suggested, hints);
    }
    error
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::ffi::OsStr;

    use super::*;
    use crate::completion::matching_candidates;

    #[test]
    fn help_has_help() {
        let check = |line: &str, expected: &str| {
            let words = line.split(' ').map(OsString::from);
            assert_eq!(normalize_words(words).join(OsStr::new(" ")), expected);
        };
        check("memprof help --help", "memprof help");
        check("memprof help -h", "memprof help");
        check("memprof help record", "memprof help record");
        check("memprof record --help", "memprof record --help");
    }

    #[test]
    fn every_command_accepts_its_examples() {
        let command = build_command();
        command.clone().debug_assert();
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let name = sub.get_name();
            if name == "help" {
                continue;
            }
            let help = COMMANDS.iter().find(|help| help.command == name);
            let help = help.unwrap_or_else(|| panic!("{name} has no example"));
            for example in help.examples {
                check(example);
            }
        }
    }

    /// Parses the command of an example, up to the first character that a shell interprets.
    fn check(example: &str) {
        let start = example.find("memprof").unwrap();
        let words = example[start..].split_whitespace();
        let words = words.take_while(|word| !["|", "||", "&&", ">"].contains(word));
        if let Err(error) = build_command().try_get_matches_from(words) {
            panic!("{example}: {error}");
        }
    }

    #[test]
    fn every_command_is_in_one_group() {
        let command = build_command();
        let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let mut expected: Vec<_> = shown.map(Command::get_name).chain(["help"]).collect();
        let mut grouped: Vec<_> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        expected.sort_unstable();
        expected.dedup();
        grouped.sort_unstable();
        assert_eq!(grouped, expected);
        let help = command.clone().render_help().to_string();
        assert!(
            help.contains("\n  record             Sample for a time"),
            "{help}"
        );
    }

    #[test]
    fn command_with_its_own_about_keeps_it() {
        check_about("list", find_message("list").unwrap().help);
        let own = "Remove the plugin from a process that memprof attached to";
        check_about("detach", own);
    }

    fn check_about(name: &str, expected: &str) {
        let command = build_command();
        let about = command.find_subcommand(name).unwrap().get_about().unwrap();
        assert_eq!(about.to_string(), expected);
    }

    #[test]
    fn options_have_one_grammar_and_one_value_name() {
        let mut command = build_command();
        command.build();
        check_options(&command, &mut HashMap::new());
    }

    /// Checks the options of a command and of its subcommands. `value_names` has the value's name of each option so far.
    fn check_options(command: &Command, value_names: &mut HashMap<String, String>) {
        for option in command.get_arguments().filter(|arg| !arg.is_positional()) {
            let shown = format!("{} {option}", command.get_name());
            let help = option.get_help().map(ToString::to_string);
            let help = help.unwrap_or_else(|| panic!("{shown} has no help"));
            for other in [". ", "stdout", "stderr", "folder", "e.g."] {
                assert!(!help.contains(other), "{shown}: {other:?} in {help:?}");
            }
            assert!(!help.ends_with('.'), "{shown}: {help}");
            let (Some(long), Some(names)) = (option.get_long(), option.get_value_names()) else {
                continue;
            };
            let name = names.join(" ");
            let known = value_names.entry(long.to_owned());
            assert_eq!(known.or_insert_with(|| name.clone()), &name, "{shown}");
        }
        let listed = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        listed.for_each(|sub| check_options(sub, value_names));
    }

    #[test]
    fn arguments_are_listed_with_their_values() {
        let gdump = COMMANDS
            .iter()
            .find(|help| help.command == "gdump")
            .unwrap();
        assert_eq!(
            gdump.after_help_text(),
            "Arguments of the message:\n  \
               state=on|off   start or stop\n  \
               files=1..1000  maximum number of dumps [default: 16]\n  \
               for=10m        stop automatically after this time, at most 7d [default: 10m]\n\n\
             Examples:\n  \
               memprof gdump state=on files=16 for=10m"
        );
    }

    #[test]
    fn message_argument_typed_as_option_gets_a_hint() {
        let hint = "tip: the message's arguments have no dashes: ";
        let check = |line: &str, expected: Option<&str>| {
            let words: Vec<_> = line.split(' ').collect();
            let error = build_command().try_get_matches_from(&words).unwrap_err();
            let message = add_argument_hint(error, Some(words[1].into())).to_string();
            let shown = message
                .split_once(hint)
                .and_then(|(_, shown)| shown.lines().next());
            assert_eq!(shown, expected, "{message}");
        };
        check("memprof activate --for 10m", Some("for=10m"));
        check(
            "memprof activate web --sample-interval=64KiB",
            Some("sample_interval=512KiB"),
        );
        check("memprof gdump --state on", Some("state=on|off"));
        check("memprof activate --forever", None);
        check("memprof ps --for 10m", None);
    }

    #[test]
    fn completion_offers_matching_candidates() {
        let reset = COMMANDS
            .iter()
            .find(|help| help.command == "reset")
            .unwrap();
        let offered = |current: &str| {
            let found = matching_candidates(&reset.argument_completions(), OsStr::new(current));
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
