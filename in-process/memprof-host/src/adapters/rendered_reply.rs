//! Messages of a program that was not written for memprof, and what it makes of the replies.
#![expect(unsafe_code, reason = "the texts of the entry")]

use std::borrow::Cow;

use memprof_plugin_abi::raw::{MEMPROF_INTERNAL, MEMPROF_INVALID_ARGUMENT, MEMPROF_OK};
use memprof_plugin_abi::{Failure, JSON, TEXT};
use serde_json::Value;
#[cfg(feature = "adapter-postgres")]
use serde_json::json;

use super::instance::AdapterInstance;
#[cfg(feature = "adapter-postgres")]
use super::server_processes::{self, ServerProcess};
use crate::instance::copy_text;
use crate::protocol::{FRAME_LIMIT, split_message};
use crate::reply::Reply;

/// What a message may ask its reply to be.
const FORMATS: [&str; 2] = [AS_JSON, "format=text"];
const AS_JSON: &str = "format=json";

/// A reply for somebody who may be a person.
#[derive(Debug)]
pub(super) struct RenderedReply {
    /// The plugin did what was asked.
    pub(super) is_done: bool,
    pub(super) body: ReplyContent,
}

impl RenderedReply {
    fn of(reply: Reply, format: Option<&'static str>) -> Self {
        let is_done = reply.status_code == MEMPROF_OK;
        let is_object = reply.content_type == JSON;
        let wants_text = is_object && format != Some(AS_JSON) || reply.content_type == TEXT;
        Self {
            is_done,
            body: if wants_text {
                ReplyContent::Text(reply.into_text())
            } else {
                match reply.body.into_bytes() {
                    Ok(bytes) => ReplyContent::Bytes(bytes),
                    Err(error) => ReplyContent::Text(error.to_string()),
                }
            },
        }
    }

    /// For whoever takes one text: what was said, or as an error what went wrong.
    pub(super) fn into_result(self) -> Result<String, String> {
        let text = match self.body {
            ReplyContent::Text(text) => text,
            ReplyContent::Bytes(bytes) => String::from_utf8(bytes)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
        };
        if self.is_done { Ok(text) } else { Err(text) }
    }
}

/// What an [`RenderedReply`] says.
#[derive(Debug)]
pub(super) enum ReplyContent {
    /// To be read.
    Text(String),
    /// To be kept: a dump, or JSON.
    Bytes(Vec<u8>),
}

impl AdapterInstance {
    /// Sends a message that is one text: a name, a blank, arguments.
    pub(super) fn message(&self, data: &[u8]) -> Reply {
        if data.len() > FRAME_LIMIT {
            let message = format!(
                "a message has at most {FRAME_LIMIT} bytes, this one has {}",
                data.len()
            );
            return Reply::failed(&Failure::new(MEMPROF_INVALID_ARGUMENT, message));
        }
        // Bytes that are no text make the name unknown or the argument invalid.
        let data = String::from_utf8_lossy(data);
        let (name, args) = split_message(&data);
        self.router
            .message(&self.id, name, args)
            .unwrap_or_else(|unknown| {
                Reply::failed(&Failure::new(MEMPROF_INTERNAL, unknown.to_string()))
            })
    }

    /// The reply to a message that a person types: the text, unless the message asks for
    /// `format=json`. `stats`, which has that argument itself, gets it too.
    pub(super) fn rendered_reply(&self, data: &[u8]) -> RenderedReply {
        let (reply, format) = self.reply(data);
        RenderedReply::of(reply, format)
    }

    /// What all processes of the server answer, which this one is of: JSON, an array of objects with `pid` and `reply`
    /// or `error`. `gave_up` ends the wait for them.
    #[cfg(feature = "adapter-postgres")]
    pub(super) fn reply_for_all(&self, data: &[u8], gave_up: impl Fn() -> bool) -> String {
        let (data, format) = self.request(data);
        let text = String::from_utf8_lossy(&data);
        let (name, args) = split_message(&text);
        let own = ServerProcess {
            pid: std::process::id(),
            reply: Ok(self.message(&data)),
        };
        let others = server_processes::query_all(&self.id, name, args, gave_up);
        let answers = std::iter::once(own)
            .chain(others)
            .map(|ServerProcess { pid, reply }| {
                match reply.and_then(|reply| RenderedReply::of(reply, format).into_result()) {
                    Ok(reply) => json!({ "pid": pid, "reply": reply }),
                    Err(why) => json!({ "pid": pid, "error": why }),
                }
            });
        Value::Array(answers.collect()).to_string()
    }

    /// The reply to a program that takes it apart: JSON, which is one string where the plugin replied with text.
    ///
    /// # Errors
    /// What a person reads, where the message failed.
    pub(super) fn json(&self, data: &[u8]) -> Result<String, String> {
        let (reply, _) = self.reply(data);
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

    /// The reply, and the word that asked for a format where it is not the plugin's own argument.
    fn reply(&self, data: &[u8]) -> (Reply, Option<&'static str>) {
        let (data, format) = self.request(data);
        (self.message(&data), format)
    }

    /// The message without the word that asks for a format, where that is not the plugin's own argument.
    fn request<'a>(&self, data: &'a [u8]) -> (Cow<'a, [u8]>, Option<&'static str>) {
        let text = String::from_utf8_lossy(data);
        let (name, args) = split_message(&text);
        let is_asked = |format: &&str| args.split(' ').any(|word| word == *format);
        let format = FORMATS.into_iter().find(is_asked);
        let is_the_plugins = || self.usage(name).contains("format=");
        let data = match format {
            Some(word) if data.len() <= FRAME_LIMIT && !is_the_plugins() => {
                format!("{name} {}", args.replacen(word, "", 1))
                    .into_bytes()
                    .into()
            }
            _ => data.into(),
        };
        (data, format)
    }

    /// The arguments of a message as they are described; empty for one that is none.
    fn usage(&self, name: &str) -> String {
        let mut messages = self.messages();
        let found = messages.find(|[known, ..]| known == name);
        found.map_or_else(String::new, |[_, usage, _]| usage)
    }

    /// Each message as a person would type it, and what it does.
    pub(super) fn help(&self) -> Vec<String> {
        self.messages()
            .map(|[name, usage, help]| format!("{:<32} {help}", format!("{name} {usage}")))
            .collect()
    }

    /// Name, usage and help of each message.
    fn messages(&self) -> impl Iterator<Item = [String; 3]> {
        (0..self.entry.message_count).map(|at| {
            // SAFETY: memprof.h: `messages` points to `message_count` pointers.
            let message = unsafe { self.entry.messages.add(at) };
            // SAFETY: as above.
            let message = unsafe { *message };
            // SAFETY: each of them points to a message, which lives as long as the process.
            let message = unsafe { &*message };
            // SAFETY: and so do its texts.
            [message.name, message.usage, message.help].map(|part| unsafe { copy_text(part) })
        })
    }
}
