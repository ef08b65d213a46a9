//! Messages to plugins.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use memprof_host::client::Client;
use memprof_messages::PLUGIN;
use memprof_plugin_abi::{Arguments, ErrorKind, JSON};

use crate::exit::{Outcome, code_of_status};
use crate::reply::{Body, ParsedReply, send_request};
use crate::scratch::ScratchFile;
use crate::target::{self, TargetArgs};
use crate::{browser, completion, output, report};

#[derive(Debug, clap::Args)]
pub(crate) struct MsgArgs {
    #[command(flatten)]
    to: TargetArgs,
    /// The plugin's name.
    #[arg(add = completion::plugins())]
    plugin: String,
    /// The message's name.
    #[arg(add = completion::messages())]
    message: String,
    /// The message's arguments.
    #[arg(value_name = "KEY=VALUE")]
    args: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MessageArgs {
    #[command(flatten)]
    pub(crate) to: TargetArgs,
    /// The message's arguments, listed below if it has any.
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) args: Vec<String>,
}

/// `memprof msg PLUGIN MESSAGE …`
pub(crate) fn send(send: &MsgArgs) -> Outcome {
    let mut client = target::connect_to(&send.to)?;
    let reply = client.message(&send.plugin, &send.message, &join_args(&send.args), None)?;
    show(&ParsedReply::of(reply)?, send.to.json)
}

/// A message to `memory_profile` under its own name.
pub(crate) fn short(message: &str, short: &MessageArgs) -> Outcome {
    let mut client = target::connect_to(&short.to)?;
    let reply = send_request(&mut client, message, &join_args(&short.args))?;
    show(&reply, short.to.json)
}

/// `memprof dump`: takes a dump, and fetches it when it is wanted here.
pub(crate) fn dump(short: &MessageArgs, file: Option<&Path>, open: bool) -> Outcome {
    let mut client = target::connect_to(&short.to)?;
    let is_wanted = open || file.is_some();
    let dumped = match is_wanted {
        true => take_dump_or_receive(&mut client, &short.args)?,
        false => take_dump(&mut client, &short.args)?,
    };
    let (mut bytes, name, text, reply) = match dumped {
        TakenDump::Kept(reply) => match (reply.status, reply.field("id").as_str()) {
            (0, Some(id)) if is_wanted => {
                let bytes: Box<dyn Read> = Box::new(client.fetch(id)?);
                (bytes, file_name(id), reply.text().into_owned(), Some(reply))
            }
            _ => return show(&reply, short.to.json),
        },
        TakenDump::Received(bytes) => {
            let text = "the host keeps no copy of this dump".to_owned();
            (bytes, "dump".to_owned(), text, None)
        }
    };
    let to_stdout = file == Some(Path::new("-"));
    if open {
        let mut fetched = ScratchFile::new()?;
        fetched.append(&mut bytes)?;
        if let Some(file) = file {
            let mut bytes = File::open(fetched.path()).context("failed to read the dump again")?;
            report_written(output::export(&mut bytes, file)?, file);
        }
        output::print_stderr(&text);
        let pid = target::pid_of(&mut client)?;
        let page = report::page(&fetched.path(), &format!("{name}.heap"), pid)?;
        if to_stdout {
            browser::open_beside_data(&page)?;
        } else {
            browser::open(&page)?;
        }
        return Ok(0.into());
    }
    let file = file.unwrap_or(Path::new("-"));
    report_written(output::export(&mut bytes, file)?, file);
    match reply {
        Some(reply) if !to_stdout => show(&reply, short.to.json),
        Some(_) | None => {
            output::print_stderr(&text);
            Ok(0.into())
        }
    }
}

/// The result of `dump`.
pub(crate) enum TakenDump {
    /// What the plugin told: of a dump that is kept, or why there is none.
    Kept(ParsedReply),
    /// With `keep=off`: the dump itself.
    Received(Box<dyn Read>),
}

/// Sends `dump` with these arguments.
pub(crate) fn take_dump(client: &mut Client, args: &[String]) -> anyhow::Result<TakenDump> {
    let reply = client.message(PLUGIN, "dump", &join_args(args), None)?;
    if reply.result.status_code != 0 || reply.result.content_type == JSON {
        return Ok(TakenDump::Kept(ParsedReply::of(reply)?));
    }
    Ok(TakenDump::Received(reply.into_reader()?))
}

/// The same where the dump is wanted here: a host that can keep none still has the bytes.
pub(crate) fn take_dump_or_receive(
    client: &mut Client,
    args: &[String],
) -> anyhow::Result<TakenDump> {
    match take_dump(client, args)? {
        TakenDump::Kept(reply) if cannot_keep(&reply, args) => {
            output::print_stderr(&format!("memprof: {}", reply.text()));
            output::print_stderr("memprof: dumping once more with keep=off");
            take_dump(client, &[args, &["keep=off".to_owned()]].concat())
        }
        dumped => Ok(dumped),
    }
}

/// Whether the system kept the host from keeping a dump, and nothing was said of that.
fn cannot_keep(reply: &ParsedReply, args: &[String]) -> bool {
    let kind = reply.field("error")["kind"].as_str();
    kind == Some(ErrorKind::Io.name()) && !args.iter().any(|arg| arg.starts_with("keep="))
}

fn report_written(length: Option<u64>, file: &Path) {
    if let Some(length) = length
        && file != Path::new("-")
    {
        output::print_stderr(&format!("wrote {length} bytes to {}", file.display()));
    }
}

/// An id as a name of a file, which a hostile host's may not be.
fn file_name(id: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    let name: String = id.chars().filter(|c| is_plain(*c)).take(64).collect();
    name
}

/// Prints a reply.
pub(crate) fn show(reply: &ParsedReply, json: bool) -> Outcome {
    match &reply.body {
        Body::Bytes(bytes) => output::save(&mut bytes.as_slice(), Path::new("-"))?,
        Body::Object(object) if json => output::print(&object.to_string()),
        Body::Text(text) if json || reply.status == 0 => output::print(text),
        // What a doctor finds is data, whatever its status.
        Body::Object(object) if object.get("findings").is_some() => output::print(&reply.text()),
        _ if reply.status != 0 => output::print_stderr(&format!("memprof: {}", reply.text())),
        _ => output::print(&reply.text()),
    }
    Ok(code_of_status(reply.status).into())
}

/// Arguments of a message in one line.
pub(crate) fn join_args(args: &[String]) -> String {
    Arguments::join(args.iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn an_id_leads_nowhere() {
        let check = |id: &str, expected: &str| assert_eq!(file_name(id), expected);
        let id = "20261121T111244Z.7.1.0000beef.rss-above.335kib";
        check(id, id);
        check("../../etc/passwd", "....etcpasswd");
        check("\u{1b}[2J", "2J");
    }
}
