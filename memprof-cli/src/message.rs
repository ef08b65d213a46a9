//! Messages to plugins.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use memprof_host::client::{Client, Delivered};
use memprof_host::protocol::Deliver;
use memprof_plugin_abi::Arguments;
use serde_json::Value;

use crate::args::{Send, Short, To};
use crate::exit::{Outcome, code_of_status};
use crate::{output, report, target};

const MEMORY_PROFILE: &str = "memory_profile";

/// `memprof msg PLUGIN MESSAGE …`
pub(crate) fn send(send: &Send) -> Outcome {
    let mut client = target::connect(send.to.target.as_deref())?;
    let reply = client.message(&send.plugin, &send.message, &words(&send.args), None)?;
    show(reply, send.to.json)
}

/// A message to `memory_profile` under its own name.
pub(crate) fn short(message: &str, short: &Short) -> Outcome {
    let mut client = target::connect(short.to.target.as_deref())?;
    let reply = client.message(MEMORY_PROFILE, message, &words(&short.args), None)?;
    show(reply, short.to.json)
}

/// `memprof dump`: takes a dump, and fetches it when it is wanted here.
pub(crate) fn dump(short: &Short, file: Option<&Path>, open: bool) -> Outcome {
    let Short {
        to: To { target, json },
        args,
    } = short;
    let mut client = target::connect(target.as_deref())?;
    let reply = client.message(MEMORY_PROFILE, "dump", &words(args), None)?;
    let id = match &reply.result.body {
        Some(Value::Object(object)) => object.get("id").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    let (0, Some(id)) = (reply.result.status_code, id) else {
        return show(reply, *json);
    };
    if let Some(file) = file {
        let length = fetch(&mut client, &id, file)?;
        if file == Path::new("-") {
            eprintln!("{}", text(&reply));
            return Ok(0.into());
        }
        eprintln!("wrote {length} bytes to {}", file.display());
    }
    if open {
        let place = tempfile::tempdir().context("failed to make a directory for the dump")?;
        let fetched = place.path().join(format!("{id}.heap"));
        fetch(&mut client, &id, &fetched)?;
        eprintln!("{}", text(&reply));
        report::open(&fetched, client.host()?.pid)?;
        return Ok(0.into());
    }
    show(reply, *json)
}

/// Writes a kept dump to `file`, or to stdout for `-`. Returns its length.
pub(crate) fn fetch(client: &mut Client, id: &str, file: &Path) -> anyhow::Result<u64> {
    let args = format!("id={id}");
    let mut reply = client.message(MEMORY_PROFILE, "fetch", &args, Some(Deliver::Fd))?;
    let Some(mut body) = reply.file.take() else {
        bail!("the host passed no dump: {}", text(&reply));
    };
    if reply.result.status_code != 0 {
        let mut refusal = String::new();
        body.read_to_string(&mut refusal)?;
        bail!("the host refused to pass the dump: {refusal}");
    }
    output::save(&mut body, file)
}

fn show(reply: Delivered, json: bool) -> Outcome {
    let status = reply.result.status_code;
    if reply.file.is_some() {
        let bytes = reply.into_bytes().context("failed to read the reply")?;
        return match std::str::from_utf8(&bytes) {
            Ok(text) => show_text(text, status, json),
            Err(_) => {
                output::save(&mut bytes.as_slice(), Path::new("-"))?;
                Ok(code_of_status(status).into())
            }
        };
    }
    match &reply.result.body {
        Some(Value::String(text)) => output::print(text)?,
        Some(object) if json => output::print(&object.to_string())?,
        // What a doctor finds is data, whatever its status.
        Some(object) if object.get("findings").is_some() => output::print(&text(&reply))?,
        _ if status != 0 => eprintln!("memprof: {}", text(&reply)),
        _ => output::print(&text(&reply))?,
    }
    Ok(code_of_status(status).into())
}

fn show_text(body: &str, status: i32, json: bool) -> Outcome {
    let object: Option<Value> = serde_json::from_str(body).ok();
    let text = object
        .as_ref()
        .and_then(|object| object.get("text")?.as_str());
    output::print(if json { body } else { text.unwrap_or(body) })?;
    Ok(code_of_status(status).into())
}

/// What a person reads of a reply.
fn text(reply: &Delivered) -> String {
    match &reply.result.body {
        Some(Value::String(text)) => text.clone(),
        Some(object) => match object.get("text").and_then(Value::as_str) {
            Some(text) => text.to_owned(),
            None => object.to_string(),
        },
        None => "an empty reply".to_owned(),
    }
}

fn words(args: &[String]) -> String {
    Arguments::join(args.iter().map(String::as_str))
}
