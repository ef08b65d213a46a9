//! What `memprof` says of itself, against what the plugin says.

use std::collections::BTreeSet;
use std::process::Command;

use memprof_messages::{ArgumentSpec, ArgumentType, MESSAGES, PLUGIN};

use crate::dist::dist;
use crate::host::Setup;
use crate::memprof::memprof;

/// The keys of `key=value` words.
fn keys(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !"_=".contains(c));
    let keys = words.filter_map(|word| word.split_once('='));
    keys.map(|(key, _)| key.to_owned())
        .filter(|key| !key.is_empty())
        .collect()
}

#[test]
fn help_lists_the_arguments_of_each_message() {
    let host = Setup::of("c_host").start();
    let help = host
        .memprof("msg", &["memory_profile", "help", "--json"])
        .exits(0)
        .json();
    for message in help["messages"].as_array().unwrap() {
        let name = message["name"].as_str().unwrap();
        if ["fetch", "help"].contains(&name) {
            continue;
        }
        let shown = memprof(host.place(), &[name, "--help"]).exits(0).stdout;
        let arguments = shown.split("Arguments of the message:\n").nth(1);
        let arguments = arguments.and_then(|rest| rest.split("\n\n").next());
        let first = |line: &str| {
            line.split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        let usages: Vec<_> = arguments.unwrap_or_default().lines().map(first).collect();
        let expected = keys(message["usage"].as_str().unwrap());
        assert_eq!(keys(&usages.join(" ")), expected, "{name}: {shown}");
        assert!(shown.contains("Examples:\n  memprof "), "{name}: {shown}");
    }
}

/// The reply to a message that is refused.
fn refusal(host: &crate::host::Host, message: &str, args: &str) -> serde_json::Value {
    let reply = host.client().message(PLUGIN, message, args, None).unwrap();
    let reply: serde_json::Value = serde_json::from_slice(&reply.into_bytes().unwrap()).unwrap();
    assert_eq!(
        reply["error"]["kind"], "invalid_argument",
        "{message} {args}: {reply}"
    );
    reply["error"].clone()
}

#[test]
fn messages_accept_the_arguments_of_the_table() {
    let host = Setup::of("c_host").start();
    for message in MESSAGES {
        let required = |argument: &ArgumentSpec| {
            let value = argument.values.completions().first().unwrap_or(&"x");
            argument
                .is_required
                .then(|| format!("{}={value} ", argument.key))
        };
        let required: String = message.arguments.iter().filter_map(required).collect();
        let error = refusal(&host, message.name, &format!("{required}nonsense=1"));
        let known = error["remedy"]
            .as_str()
            .unwrap()
            .strip_prefix("valid arguments: ");
        let known: BTreeSet<_> = known
            .into_iter()
            .flat_map(|known| known.split(", "))
            .collect();
        let expected: BTreeSet<_> = message.arguments.iter().map(|each| each.key).collect();
        assert_eq!(known, expected, "{}", message.name);
        for argument in message.arguments {
            let is_checked = !matches!(argument.values, ArgumentType::NamedOneOf("ID", _));
            if is_checked {
                let others = required.replace(&format!("{}=", argument.key), "ignored=");
                let others = others
                    .split(' ')
                    .filter(|word| !word.starts_with("ignored="));
                let others = others.collect::<Vec<_>>().join(" ");
                refusal(
                    &host,
                    message.name,
                    // A label may have any name, but not half an index.
                    &format!("{others} {}=nonsense:", argument.key),
                );
            }
        }
    }
}

#[test]
fn completion_offers_hosts_messages_and_arguments() {
    let host = Setup::of("c_host").start();
    let complete = |words: &[&str]| {
        let output = Command::new(dist("bin/memprof"))
            .args(["--", "memprof"])
            .args(words)
            .env("MEMPROF_SOCKET_DIR", host.socket_dir())
            .env("MEMPROF_COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", words.len().to_string())
            .env("_CLAP_COMPLETE_COMP_TYPE", "9")
            .env("_CLAP_COMPLETE_SPACE", "false")
            .env("_CLAP_IFS", "\n")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let check = |words: &[&str], expected: &str| {
        let offered = complete(words);
        assert!(
            offered.lines().any(|line| line == expected),
            "{words:?}: {offered:?}"
        );
    };
    check(&["status", "-t", ""], &host.pid().to_string());
    check(&["status", "-t", "c_"], "c_host");
    check(&["record", "--target", "c_"], "c_host");
    check(&["acti"], "activate");
    check(&["activate", "sam"], "sample_interval=64KiB");
    check(&["dump", "kind=h"], "kind=heap");
    check(&["msg", "mem"], "memory_profile");
    check(&["msg", "memory_profile", "fe"], "fetch");
}
