//! Messages of a program that was not built for memprof, and replies in the form that it returns.
#![expect(unsafe_code, reason = "texts of the plugin's entry")]

use std::borrow::Cow;

use memprof_plugin_abi::raw::{MEMPROF_INTERNAL, MEMPROF_INVALID_ARGUMENT, MEMPROF_OK};
use memprof_plugin_abi::{Arguments, Failure, JSON, TEXT};
use serde_json::{Map, Value, json};

use super::instance::AdapterInstance;
#[cfg(feature = "adapter-postgres")]
use super::server_processes::{self, ServerProcess};
use crate::instance::check_entry;
use crate::protocol::{FRAME_LIMIT, MessageUsage, split_message};
use crate::reply::Reply;

/// Arguments that select the format of a reply.
const FORMATS: [&str; 2] = [JSON_FORMAT, "format=text"];
const JSON_FORMAT: &str = "format=json";
const FORMAT_KEY: &str = "format=";

/// A reply in the format that the message requested, by default a text for people.
#[derive(Debug)]
pub(super) struct RenderedReply {
    /// Whether the message was carried out.
    pub(super) is_success: bool,
    pub(super) body: ReplyContent,
}

impl RenderedReply {
    /// Renders a reply in the format that the message requested: `format` is its format argument; `None` if it had
    /// none. With `format=json`, JSON stays as it is, and a text becomes a JSON object with the field `text`.
    /// Otherwise, JSON becomes the text in its field `text`. Bodies that are neither JSON nor text stay bytes. A body
    /// that cannot be read becomes the text of the error.
    fn from_reply(reply: Reply, format: Option<&'static str>) -> Self {
        let is_success = reply.status_code == MEMPROF_OK;
        let is_object = reply.content_type == JSON;
        let wants_text = is_object && format != Some(JSON_FORMAT) || reply.content_type == TEXT;
        Self {
            is_success,
            body: if wants_text {
                let text = reply.into_text();
                ReplyContent::Text(match format {
                    Some(JSON_FORMAT) => text_as_json_object(is_success, text),
                    _ => text,
                })
            } else {
                match reply.body.into_bytes() {
                    Ok(bytes) => ReplyContent::Bytes(bytes),
                    Err(error) => ReplyContent::Text(error.to_string()),
                }
            },
        }
    }

    /// Converts the reply to one text, which is an error if the message failed. Bytes that are not UTF-8 become U+FFFD.
    pub(super) fn into_result(self) -> Result<String, String> {
        let text = match self.body {
            ReplyContent::Text(text) => text,
            ReplyContent::Bytes(bytes) => String::from_utf8(bytes)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
        };
        if self.is_success { Ok(text) } else { Err(text) }
    }
}

/// Converts the text of a reply to a JSON object with `status` and `text`, the fields that all replies have. A text
/// that is a JSON object stays: a plugin may have an argument `format` of its own.
fn text_as_json_object(is_success: bool, text: String) -> String {
    if serde_json::from_str::<Map<String, Value>>(&text).is_ok() {
        return text;
    }
    let status = if is_success { "ok" } else { "error" };
    json!({ "status": status, "text": text }).to_string()
}

/// Removes the argument `format=…` from the arguments of a message whose plugin has no such argument. Returns the
/// remaining arguments and the format; `None` if there is none. Arguments with invalid quotes stay as they are, because
/// the plugin refuses them.
///
/// # Errors
/// The format is unknown, or is given twice.
fn remove_format_argument(args: &str) -> Result<(String, Option<&'static str>), Failure> {
    let invalid = |message: String| Failure::new(MEMPROF_INVALID_ARGUMENT, message);
    let words = Arguments::split(args).unwrap_or_default();
    let (formats, rest): (Vec<&str>, Vec<&str>) = words
        .iter()
        .map(String::as_str)
        .partition(|word| word.starts_with(FORMAT_KEY));
    match formats[..] {
        [] => Ok((args.to_owned(), None)),
        [word] => {
            let value = &word[FORMAT_KEY.len()..];
            let known = FORMATS.into_iter().find(|format| *format == word);
            let format = known.ok_or_else(|| {
                invalid(format!("invalid format={value:?}: expected json or text"))
            })?;
            Ok((Arguments::join(rest), Some(format)))
        }
        _ => Err(invalid("argument \"format\" is given twice".to_owned())),
    }
}

/// Content of a [`RenderedReply`].
#[derive(Debug)]
pub(super) enum ReplyContent {
    /// A text for people.
    Text(String),
    /// A dump, or JSON.
    Bytes(Vec<u8>),
}

impl AdapterInstance {
    /// Sends a message in one text: a name, a blank and arguments. A text above [`FRAME_LIMIT`] bytes is not sent; the
    /// reply is then an error.
    pub(super) fn send_message(&self, data: &[u8]) -> Reply {
        if data.len() > FRAME_LIMIT {
            let message = format!(
                "a message has at most {FRAME_LIMIT} bytes, this one has {}",
                data.len()
            );
            return Reply::failed(&Failure::new(MEMPROF_INVALID_ARGUMENT, message));
        }
        // Bytes that are not UTF-8 are replaced, and make the name unknown or the argument invalid.
        let data = String::from_utf8_lossy(data);
        let (name, args) = split_message(&data);
        self.router
            .message(&self.id, name, args)
            .unwrap_or_else(|unknown| {
                Reply::failed(&Failure::new(MEMPROF_INTERNAL, unknown.to_string()))
            })
    }

    /// Sends a message that a person typed. The reply is a text, unless the message has the argument `format=json`. The
    /// message `stats` has a `format` argument of its own, which it receives too.
    pub(super) fn send_and_render(&self, data: &[u8]) -> RenderedReply {
        let (reply, format) = self.send_without_format(data);
        RenderedReply::from_reply(reply, format)
    }

    /// Sends a message to all processes of the server, including this one. Returns JSON, an array of objects with `pid`
    /// and `reply` or `error`. When `should_stop` returns true, the remaining replies are not waited for.
    #[cfg(feature = "adapter-postgres")]
    pub(super) fn send_to_server_processes(
        &self,
        data: &[u8],
        should_stop: impl Fn() -> bool,
    ) -> String {
        let pid = std::process::id();
        let (data, format) = match self.split_off_format_argument(data) {
            Ok(split) => split,
            Err(failure) => {
                return json!([{ "pid": pid, "error": failure.to_string() }]).to_string();
            }
        };
        let text = String::from_utf8_lossy(&data);
        let (name, args) = split_message(&text);
        let own = ServerProcess {
            pid,
            reply: Ok(self.send_message(&data)),
        };
        let others = server_processes::query_other_processes(&self.id, name, args, should_stop);
        let replies = std::iter::once(own)
            .chain(others)
            .map(|ServerProcess { pid, reply }| {
                match reply.and_then(|reply| RenderedReply::from_reply(reply, format).into_result())
                {
                    Ok(reply) => json!({ "pid": pid, "reply": reply }),
                    Err(reason) => json!({ "pid": pid, "error": reason }),
                }
            });
        Value::Array(replies.collect()).to_string()
    }

    /// Sends a message for a program that parses the reply. Returns JSON, which is a string if the plugin replied with
    /// text. If the message failed, the error is the text for people.
    pub(super) fn send_message_for_json(&self, data: &[u8]) -> Result<String, String> {
        let (reply, _) = self.send_without_format(data);
        if reply.status_code != MEMPROF_OK {
            return Err(reply.into_text());
        }
        let is_object = reply.content_type == JSON;
        let body = reply.body.into_text();
        Ok(if is_object {
            body
        } else {
            Value::String(body).to_string()
        })
    }

    /// Sends a message without its format argument. Also returns that argument, `None` if there is none. A message with
    /// a wrong format is not sent; the reply is then the error.
    fn send_without_format(&self, data: &[u8]) -> (Reply, Option<&'static str>) {
        match self.split_off_format_argument(data) {
            Ok((data, format)) => (self.send_message(&data), format),
            Err(failure) => (Reply::failed(&failure), None),
        }
    }

    /// Splits the argument `format=…` off a message. Returns the message without the argument, and the argument; `None`
    /// if there is none. If the plugin's message has an argument `format` of its own, the message stays whole. It also
    /// stays whole if it is unknown or above [`FRAME_LIMIT`] bytes: [`send_message`](Self::send_message) refuses it.
    /// Fails if the format is unknown or is given twice.
    fn split_off_format_argument<'a>(
        &self,
        data: &'a [u8],
    ) -> Result<(Cow<'a, [u8]>, Option<&'static str>), Failure> {
        let text = String::from_utf8_lossy(data);
        let (name, args) = split_message(&text);
        let mut messages = self.messages().into_iter();
        let message = messages.find(|message| message.name == name);
        let has_none = |message: MessageUsage| !message.usage.contains(FORMAT_KEY);
        if data.len() > FRAME_LIMIT || !message.is_some_and(has_none) {
            let words = Arguments::split(args).unwrap_or_default();
            let known = |word: &String| FORMATS.into_iter().find(|format| *format == word);
            return Ok((data.into(), words.iter().find_map(known)));
        }
        let (rest, format) = remove_format_argument(args)?;
        Ok(match format {
            Some(_) => (format!("{name} {rest}").into_bytes().into(), format),
            None => (data.into(), None),
        })
    }

    /// Returns the lines of each message: its usage, and its description.
    pub(super) fn help_lines(&self) -> Vec<String> {
        self.messages()
            .iter()
            .flat_map(MessageUsage::help_lines)
            .collect()
    }

    /// Returns whether all users may send a message. They may if the config allows it, and also if the plugin has no
    /// such message, because it then only replies with a list of its messages.
    #[cfg(feature = "adapter-mariadb")]
    pub(super) fn is_allowed_for_all_users(&self, name: &str) -> bool {
        let settings = self.settings().as_ref();
        let is_listed = settings.is_ok_and(|settings| settings.allow.iter().any(|one| one == name));
        is_listed || !self.messages().iter().any(|message| message.name == name)
    }

    /// Returns the plugin's messages, also if the plugin could not be created. Empty if its entry is invalid.
    fn messages(&self) -> Vec<MessageUsage> {
        // SAFETY: the entry is of this library, which is never unloaded.
        let info = unsafe { check_entry(self.entry) };
        info.map_or_else(|_| Vec::new(), |info| info.usage)
    }
}

#[cfg(test)]
mod tests {
    use super::{remove_format_argument, text_as_json_object};

    #[test]
    fn format_is_taken_from_outside_of_quotes() {
        let check = |args: &str, expected: Result<(&str, Option<&str>), &str>| {
            let taken = remove_format_argument(args).map_err(|failure| failure.to_string());
            let expected = expected.map(|(rest, format)| (rest.to_owned(), format));
            assert_eq!(taken, expected.map_err(str::to_owned), "{args}");
        };
        let json = Some("format=json");
        check("", Ok(("", None)));
        check("format=json", Ok(("", json)));
        check("format=\"json\"", Ok(("", json)));
        check("a=1 format=json b=2", Ok(("a=1 b=2", json)));
        check("a=1\tformat=text", Ok(("a=1", Some("format=text"))));
        check("xformat=json format=json", Ok(("xformat=json", json)));
        for args in [
            r#"name="a format=json b""#,
            r#"name="a \" format=json""#,
            r#"name="a\\" b="format=xml""#,
            "name=format=json",
            "formats=xml",
            // The plugin names the error.
            "name=\"open format=json",
        ] {
            check(args, Ok((args, None)));
        }
        let quoted = r#"name="a\\ b" format=json"#;
        check(quoted, Ok((r#"name="a\\ b""#, json)));
        let xml = "invalid format=\"xml\": expected json or text";
        check("format=xml", Err(xml));
        check("a=1 format=\"xml\"", Err(xml));
        check("format=", Err("invalid format=\"\": expected json or text"));
        check(
            "format=json format=text",
            Err("argument \"format\" is given twice"),
        );
    }

    #[test]
    fn text_becomes_an_object_unless_it_is_one() {
        let check = |is_success, text: &str, expected: &str| {
            assert_eq!(text_as_json_object(is_success, text.to_owned()), expected);
        };
        check(true, "a\nb", r#"{"status":"ok","text":"a\nb"}"#);
        check(true, "7", r#"{"status":"ok","text":"7"}"#);
        check(true, "", r#"{"status":"ok","text":""}"#);
        check(false, "no", r#"{"status":"error","text":"no"}"#);
        check(true, r#"{"a": 1}"#, r#"{"a": 1}"#);
    }
}
