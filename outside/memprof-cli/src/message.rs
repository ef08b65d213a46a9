//! Commands that send messages to plugins.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use memprof_host::client::Client;
use memprof_messages::PLUGIN;
use memprof_plugin_abi::{Arguments, ErrorKind, JSON, Status};
use serde_json::{Value, json};

use crate::exit::{Outcome, USAGE, code_of_status, with_exit_code};
use crate::export::export_dump;
use crate::process_arg::{is_key_value, split_target};
use crate::process_plugins::send_to_plugin;
use crate::reply::{Body, ParsedReply, send_request};
use crate::report_form::LiveDump;
use crate::scratch::ScratchFile;
use crate::target::{self, TargetArgs};
use crate::{browser, completion, output, report_form};

#[derive(Debug, clap::Args)]
#[command(override_usage = "memprof msg [OPTIONS] [TARGET] <PLUGIN> <MESSAGE> [KEY=VALUE]...")]
pub(crate) struct MsgArgs {
    #[command(flatten)]
    to: TargetArgs,
    /// The host: a pid, a name, container:NAME or a socket's path; not needed while only one host runs. Then the
    /// plugin's name, the message's name, and the message's arguments.
    #[arg(value_names = ["TARGET", "PLUGIN", "MESSAGE", "KEY=VALUE"], num_args = 0.., add = completion::msg_completer())]
    words: Vec<String>,
}

/// Words of `memprof msg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MsgWords<'a> {
    /// The host, in front of the others.
    target: Option<&'a str>,
    plugin: &'a str,
    message: &'a str,
    args: &'a [String],
}

impl<'a> MsgWords<'a> {
    /// Takes the first two of `words` as plugin and message, the others as arguments of the message. `target` is the
    /// word in front of them, if there is one. `None` if there are fewer than two words.
    fn new(target: Option<&'a str>, words: &'a [String]) -> Option<Self> {
        let [plugin, message, args @ ..] = words else {
            return None;
        };
        Some(Self {
            target,
            plugin,
            message,
            args,
        })
    }

    /// Reads the words with and without a target in front. If they fit `TARGET PLUGIN MESSAGE`, the first reading has a
    /// target, the second has none. Otherwise, the first has no target, and the second is `None`. A reading with too
    /// few words is `None`.
    fn possible_readings(words: &'a [String]) -> [Option<Self>; 2] {
        let (target, rest) = split_target(words);
        let with_target = Self::new(target, rest).filter(|read| {
            target.is_some() && !is_key_value(read.plugin) && !is_key_value(read.message)
        });
        match with_target {
            Some(_) => [with_target, Self::new(None, words)],
            None => [Self::new(None, words), None],
        }
    }

    /// Connects to the host that the words name or, if they name none, that `to` names. If its process has several
    /// sockets, connects to that of the words' plugin.
    fn connect(&self, to: &TargetArgs) -> anyhow::Result<Client> {
        target::connect_to_plugin(to, self.target, self.plugin)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct MessageArgs {
    #[command(flatten)]
    pub(crate) to: TargetArgs,
    /// The host: a pid, a name, container:NAME or a socket's path; not needed while only one host runs. Then the
    /// message's arguments, listed below if it has any.
    #[arg(value_names = ["TARGET", "KEY=VALUE"], num_args = 0.., add = completion::target_completer())]
    args: Vec<String>,
}

impl MessageArgs {
    /// Connects to the host that the arguments name.
    pub(crate) fn connect(&self) -> anyhow::Result<Client> {
        target::connect_to_host(&self.to, self.target())
    }

    /// Returns the target, which is the first argument; `None` if that is `key=value`.
    pub(crate) fn target(&self) -> Option<&str> {
        split_target(&self.args).0
    }

    /// Returns the arguments of the message, without the target.
    pub(crate) fn key_values(&self) -> &[String] {
        split_target(&self.args).1
    }
}

/// Runs `memprof msg [TARGET] PLUGIN MESSAGE …`: sends the message to the plugin, and prints the reply.
pub(crate) fn run_msg(args: &MsgArgs) -> Outcome {
    let (words, mut client) = connect_for_msg(args)?;
    let arguments = join_args(words.args);
    let reply = send_to_plugin(&mut client, words.plugin, words.message, &arguments)?;
    print_reply(&ParsedReply::from_received(reply)?, args.to.json)
}

/// Connects to the host of `memprof msg`, and decides how to read its words: three without `=` are a target, a plugin
/// and a message, unless the first one is the name of a plugin and of no host.
fn connect_for_msg(args: &MsgArgs) -> anyhow::Result<(MsgWords<'_>, Client)> {
    let readings = match args.to.target {
        Some(_) => [MsgWords::new(None, &args.words), None],
        None => MsgWords::possible_readings(&args.words),
    };
    match readings {
        [Some(only), None] => {
            let mut connected = only.connect(&args.to);
            if let Some(missing) = missing_message_error(args, &mut connected) {
                return Err(missing);
            }
            Ok((only, connected?))
        }
        [Some(likely), Some(other)] => {
            let mut connected = likely.connect(&args.to);
            if !has_plugin(&mut connected, likely.plugin) {
                let mut without = other.connect(&args.to);
                if has_plugin(&mut without, other.plugin) {
                    return Ok((other, without?));
                }
            }
            Ok((likely, connected?))
        }
        [None, _] => Err(with_exit_code(
            USAGE,
            "expected a plugin and a message: memprof msg [TARGET] PLUGIN MESSAGE [KEY=VALUE]...",
        )),
    }
}

/// Returns the error for the two words `TARGET PLUGIN`, which lack the message. `connected` is the host to which the
/// reading `PLUGIN MESSAGE` leads. `None` if that host has a plugin of the first word's name, if the first word names
/// no host with a plugin of the second word's name, or with `--target`.
fn missing_message_error(
    args: &MsgArgs,
    connected: &mut anyhow::Result<Client>,
) -> Option<anyhow::Error> {
    let [first, second] = &*args.words else {
        return None;
    };
    if args.to.target.is_some() || is_key_value(first) || has_plugin(connected, first) {
        return None;
    }
    let mut named = target::connect_to_plugin(&args.to, Some(first), second);
    has_plugin(&mut named, second)
        .then(|| with_exit_code(USAGE, missing_message_text(first, second)))
}

/// Returns the text of the error for `memprof msg TARGET PLUGIN`.
fn missing_message_text(target: &str, plugin: &str) -> String {
    format!(
        "expected a message after the plugin {plugin}: `memprof msg {target} {plugin} help` lists its messages"
    )
}

/// Returns whether the host was reached and lists the plugin. Requests the list from the host.
fn has_plugin(client: &mut anyhow::Result<Client>, plugin: &str) -> bool {
    let plugins = client
        .as_mut()
        .ok()
        .and_then(|client| client.plugins().ok());
    plugins.is_some_and(|plugins| plugins.iter().any(|info| info.id == plugin))
}

/// Runs the command called `message`: sends the message of that name to `memory_profile`, and prints the reply.
pub(crate) fn run_message(message: &str, args: &MessageArgs) -> Outcome {
    let mut client = args.connect()?;
    let reply = send_request(&mut client, message, &join_args(args.key_values()))?;
    print_reply(&reply, args.to.json)
}

/// Runs `memprof dump`: takes a dump, and fetches it if `--output` (`file`) or `--open` needs it. If `file` is `None`,
/// only a dump that the host does not keep is written to stdout.
pub(crate) fn run_dump(args: &MessageArgs, file: Option<&Path>, open: bool) -> Outcome {
    let mut client = args.connect()?;
    let is_wanted = open || file.is_some();
    let dumped = match is_wanted {
        true => take_dump_or_receive(&mut client, args.key_values())?,
        false => take_dump(&mut client, args.key_values())?,
    };
    let (mut bytes, name, text, reply) = match dumped {
        TakenDump::Kept(reply) => match (reply.status, reply.field("id").as_str()) {
            (0, Some(id)) if is_wanted => {
                let bytes: Box<dyn Read> = Box::new(client.fetch_dump(id)?);
                (
                    bytes,
                    dump_file_name(id),
                    reply.text().into_owned(),
                    Some(reply),
                )
            }
            _ => return print_reply(&reply, args.to.json),
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
            report_written_size(export_dump(&mut bytes, file)?, file);
        }
        let is_json = args.to.json && !to_stdout;
        let exit = match reply {
            Some(reply) if is_json => print_reply(&reply, true)?,
            Some(_) | None => {
                output::print_stderr(&text);
                0.into()
            }
        };
        let pid = target::host_pid(&mut client)?;
        let page = report_form::write_live_page(LiveDump {
            files: &[fetched.path()],
            name: &format!("{name}.heap"),
            pids: &[pid],
            notes: &[],
        })?;
        // Standard output has the dump or the reply.
        if to_stdout || is_json {
            browser::open_or_print_path_to_stderr(&page)?;
        } else {
            browser::open_or_print_path(&page)?;
        }
        return Ok(exit);
    }
    let file = file.unwrap_or(Path::new("-"));
    report_written_size(export_dump(&mut bytes, file)?, file);
    match reply {
        Some(reply) if !to_stdout => print_reply(&reply, args.to.json),
        // Standard output has the dump, or there is no reply.
        Some(_) | None => {
            output::print_stderr(&text);
            Ok(0.into())
        }
    }
}

/// Result of the message `dump`.
pub(crate) enum TakenDump {
    /// Reply of the plugin: about a kept dump, or an error.
    Kept(ParsedReply),
    /// The dump itself, with `keep=off`.
    Received(Box<dyn Read>),
}

/// Sends the message `dump` with arguments. Returns the bytes of the dump if the host does not keep it, else the reply,
/// which may be an error.
pub(crate) fn take_dump(client: &mut Client, args: &[String]) -> anyhow::Result<TakenDump> {
    let reply = send_to_plugin(client, PLUGIN, "dump", &join_args(args))?;
    if reply.result.status_code != 0 || reply.result.content_type == JSON {
        return Ok(TakenDump::Kept(ParsedReply::from_received(reply)?));
    }
    Ok(TakenDump::Received(reply.into_reader()?))
}

/// Like [`take_dump`], but if the host cannot keep the dump, says so on stderr and takes another one with `keep=off`:
/// the caller needs only the bytes.
pub(crate) fn take_dump_or_receive(
    client: &mut Client,
    args: &[String],
) -> anyhow::Result<TakenDump> {
    match take_dump(client, args)? {
        TakenDump::Kept(reply) if could_not_keep_dump(&reply, args) => {
            output::print_stderr(&format!("memprof: {}", reply.text()));
            output::print_stderr("memprof: dumping once more with keep=off");
            take_dump(client, &[args, &["keep=off".to_owned()]].concat())
        }
        dumped => Ok(dumped),
    }
}

/// Returns whether the host could not write a dump (an I/O error), so that `keep=off` helps. False if the arguments set
/// `keep` already.
fn could_not_keep_dump(reply: &ParsedReply, args: &[String]) -> bool {
    let kind = reply.field("error")["kind"].as_str();
    kind == Some(ErrorKind::Io.name()) && !args.iter().any(|arg| arg.starts_with("keep="))
}

/// Reports the size of a written file on stderr; nothing for stdout. `length` is `None` if the reader of stdout went
/// away.
fn report_written_size(length: Option<u64>, file: &Path) {
    if let Some(length) = length
        && file != Path::new("-")
    {
        output::print_stderr(&format!("wrote {length} bytes to {}", file.display()));
    }
}

/// Returns a file name from a dump's ID, which may come from a hostile host: its first 64 ASCII letters, digits, dots
/// and dashes.
fn dump_file_name(id: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    let name: String = id.chars().filter(|c| is_plain(*c)).take(64).collect();
    name
}

/// Prints a reply on stdout. The text of an error goes to stderr, unless `json` is set or the reply has findings.
/// Returns the exit code for the reply's status.
pub(crate) fn print_reply(reply: &ParsedReply, json: bool) -> Outcome {
    match &reply.body {
        Body::Bytes(bytes) => output::copy_to_output(&mut bytes.as_slice(), Path::new("-"))?,
        Body::Object(object) if json => output::print(&object.to_string()),
        Body::Text(text) if json => {
            output::print(&text_reply_object(reply.status, text).to_string())
        }
        Body::Text(text) if reply.status == 0 => output::print(text),
        // The findings of `doctor` are data, whatever the status is.
        Body::Object(object) if object.get("findings").is_some() => output::print(&reply.text()),
        _ if reply.status != 0 => output::print_stderr(&format!("memprof: {}", reply.text())),
        _ => output::print(&reply.text()),
    }
    Ok(code_of_status(reply.status).into())
}

/// Returns a reply that is only a text as a JSON object, with the fields `status` and `text` that all replies have.
fn text_reply_object(status: Status, text: &str) -> Value {
    let status = if status == 0 { "ok" } else { "error" };
    json!({ "status": status, "text": text })
}

/// Joins arguments of a message to one line, quoted as the plugin parses them.
pub(crate) fn join_args(args: &[String]) -> String {
    Arguments::join(args.iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::{MsgWords, dump_file_name, text_reply_object};

    #[test]
    fn text_becomes_an_object() {
        let check = |status, text: &str, expected: &str| {
            assert_eq!(text_reply_object(status, text).to_string(), expected);
        };
        check(0, "a \"b\"\n", r#"{"status":"ok","text":"a \"b\"\n"}"#);
        check(-2, "", r#"{"status":"error","text":""}"#);
    }

    #[test]
    fn first_word_of_msg_may_be_the_target() {
        type Reading<'a> = Option<(Option<&'a str>, &'a str, &'a str, usize)>;
        let check = |words: &str, expected: [Reading<'_>; 2]| {
            let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
            let found = MsgWords::possible_readings(&words).map(|read| {
                read.map(|read| (read.target, read.plugin, read.message, read.args.len()))
            });
            assert_eq!(found, expected, "{words:?}");
        };
        check("words", [None, None]);
        check("words block", [Some((None, "words", "block", 0)), None]);
        check("words block a=b", [Some((None, "words", "block", 1)), None]);
        let text = [
            Some((Some("web"), "words", "block", 0)),
            Some((None, "web", "words", 1)),
        ];
        check("web words block", text);
        let both = [
            Some((Some("7"), "words", "block", 2)),
            Some((None, "7", "words", 3)),
        ];
        check("7 words block a=b c", both);
        check(
            "words block a=b c",
            [Some((None, "words", "block", 2)), None],
        );
    }

    #[test]
    fn file_name_of_an_id_has_no_path() {
        let check = |id: &str, expected: &str| assert_eq!(dump_file_name(id), expected);
        let id = "20261121T111244Z.7.1.0000beef.rss-above.335kib";
        check(id, id);
        check("../../etc/passwd", "....etcpasswd");
        check("\u{1b}[2J", "2J");
    }
}
