//! `memprof plugins`: what a host has loaded and refused.

use memprof_host::protocol::{MessageUsage, PluginInfo};
use serde::Serialize;

use crate::exit::Outcome;
use crate::output::{self, one_line};
use crate::process_plugins::{list_plugins, plugin_without_socket_text};

/// Output of `memprof plugins --json`.
#[derive(Serialize)]
struct PluginList {
    schema_version: u32,
    plugins: Vec<PluginRow>,
}

/// A plugin of the host.
#[derive(Serialize)]
struct PluginRow {
    id: String,
    version: String,
    abi: String,
    path: String,
    state: PluginState,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    messages: Vec<MessageUsage>,
}

/// Whether a plugin answers messages.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum PluginState {
    Loaded,
    Refused,
}

impl PluginRow {
    /// Converts a host's description of a plugin. An older host sends only the names of its messages.
    fn from_info(info: PluginInfo) -> Self {
        let names = info.messages.into_iter().map(|name| MessageUsage {
            name,
            usage: String::new(),
            help: String::new(),
        });
        let messages = match info.usage.is_empty() {
            true => names.collect(),
            false => info.usage,
        };
        // The host's error text ends with the remedy, which is a field of its own here.
        let remedy_part = info.remedy.as_ref().map(|remedy| format!("; {remedy}"));
        let reason = info.error.map(|error| {
            let reason = remedy_part.and_then(|part| Some(error.strip_suffix(&*part)?.to_owned()));
            reason.unwrap_or(error)
        });
        Self {
            id: info.id,
            version: info.version,
            abi: info.abi,
            path: info.path,
            state: match reason {
                None => PluginState::Loaded,
                Some(_) => PluginState::Refused,
            },
            reason,
            remedy: info.remedy,
            messages,
        }
    }

    /// Formats the lines of the plugin: its ID, version, ABI and path, and below them its messages, or the reason and
    /// remedy of its refusal.
    fn lines(&self) -> String {
        let abi = Some(&self.abi).filter(|abi| !abi.is_empty());
        let abi = abi.map_or_else(String::new, |abi| format!("ABI {abi}"));
        let words = [&self.id, &self.version, &abi, &self.path];
        let words = words.into_iter().filter(|word| !word.is_empty());
        let head: Vec<_> = words.map(|word| one_line(word).into_owned()).collect();
        let mut lines = vec![head.join("  ")];
        lines.extend(match &self.reason {
            None => self
                .messages
                .iter()
                .flat_map(MessageUsage::help_lines)
                .map(|line| one_line(line.trim_end()).into_owned())
                .collect(),
            Some(reason) => {
                let mut lines = vec![format!("refused: {}", one_line(reason))];
                lines.extend(
                    self.remedy
                        .iter()
                        .map(|remedy| format!("remedy: {}", one_line(remedy))),
                );
                lines
            }
        });
        lines.join("\n  ")
    }
}

/// Runs `memprof plugins`: lists the plugins that a host has loaded and refused. If `host` is `None`, it is the only
/// running host.
pub(crate) fn run(host: Option<&str>, json: bool) -> Outcome {
    let found = list_plugins(host)?;
    let rows = found.plugins.into_iter().map(PluginRow::from_info);
    let plugins: Vec<_> = rows.collect();
    if json {
        let list = PluginList {
            schema_version: 1,
            plugins,
        };
        output::print(&serde_json::to_string(&list)?);
        return Ok(0.into());
    }
    let lines: Vec<_> = plugins.iter().map(PluginRow::lines).collect();
    match lines.is_empty() {
        true => output::note("the host has no plugins"),
        false => output::print(&lines.join("\n")),
    }
    for id in &found.without_socket {
        output::note(&plugin_without_socket_text(id));
    }
    Ok(0.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_new_and_old_hosts() {
        let check = |info: PluginInfo, expected: &str| {
            assert_eq!(PluginRow::from_info(info).lines(), expected);
        };
        let usage = |name: &str, usage: &str, help: &str| MessageUsage {
            name: name.into(),
            usage: usage.into(),
            help: help.into(),
        };
        let words = PluginInfo {
            id: "words".into(),
            version: "0.1.0".into(),
            messages: vec!["block".into()],
            ..PluginInfo::default()
        };
        check(words.clone(), "words  0.1.0\n  block");
        check(
            PluginInfo {
                abi: "1.3".into(),
                path: "/p/words.so".into(),
                usage: vec![usage("block", "word=WORD", "Blocks\n it")],
                ..words.clone()
            },
            "words  0.1.0  ABI 1.3  /p/words.so\n  block word=WORD                  Blocks\\u000a it",
        );
        check(
            PluginInfo {
                error: Some("it is gone; copy it".into()),
                remedy: Some("copy it".into()),
                ..words
            },
            "words  0.1.0\n  refused: it is gone\n  remedy: copy it",
        );
    }
}
