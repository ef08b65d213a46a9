//! Messages to plugins.

use std::fs::File;
use std::path::Path;

use anyhow::Context;
use memprof_host::client::Client;
use memprof_plugin_abi::Arguments;

use crate::args::{Send, Short};
use crate::exit::{Outcome, code_of_status};
use crate::reply::{Body, Reply, ask};
use crate::{browser, output, report, target};

/// `memprof msg PLUGIN MESSAGE …`
pub(crate) fn send(send: &Send) -> Outcome {
    let mut client = target::connect_to(&send.to)?;
    let reply = client.message(&send.plugin, &send.message, &words(&send.args), None)?;
    show(&Reply::of(reply)?, send.to.json)
}

/// A message to `memory_profile` under its own name.
pub(crate) fn short(message: &str, short: &Short) -> Outcome {
    let mut client = target::connect_to(&short.to)?;
    let reply = ask(&mut client, message, &words(&short.args))?;
    show(&reply, short.to.json)
}

/// `memprof dump`: takes a dump, and fetches it when it is wanted here.
pub(crate) fn dump(short: &Short, file: Option<&Path>, open: bool) -> Outcome {
    let mut client = target::connect_to(&short.to)?;
    let reply = ask(&mut client, "dump", &words(&short.args))?;
    let (0, Some(id)) = (reply.status, reply.field("id").as_str()) else {
        return show(&reply, short.to.json);
    };
    let to_stdout = file == Some(Path::new("-"));
    if open {
        let place = tempfile::tempdir().context("failed to make a directory for the dump")?;
        let fetched = place.path().join(format!("{}.heap", file_name(id)));
        fetch(&mut client, id, &fetched)?;
        if let Some(file) = file {
            let mut bytes = File::open(&fetched).context("failed to read the dump again")?;
            written(output::save(&mut bytes, file)?, file);
        }
        output::tell(&reply.text());
        let page = report::page(&fetched, target::pid_of(&mut client)?)?;
        if to_stdout {
            browser::open_beside_data(&page)?;
        } else {
            browser::open(&page)?;
        }
        return Ok(0.into());
    }
    if let Some(file) = file {
        written(fetch(&mut client, id, file)?, file);
    }
    if to_stdout {
        output::tell(&reply.text());
        return Ok(0.into());
    }
    show(&reply, short.to.json)
}

fn written(length: u64, file: &Path) {
    if file != Path::new("-") {
        output::tell(&format!("wrote {length} bytes to {}", file.display()));
    }
}

/// An id as a name of a file, which a hostile host's may not be.
fn file_name(id: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    let name: String = id.chars().filter(|c| is_plain(*c)).take(64).collect();
    name
}

/// Writes a kept dump to `file`, or to stdout for `-`. Returns its length.
pub(crate) fn fetch(client: &mut Client, id: &str, file: &Path) -> anyhow::Result<u64> {
    output::save(&mut client.fetch(id)?, file)
}

fn show(reply: &Reply, json: bool) -> Outcome {
    match &reply.body {
        Body::Bytes(bytes) => drop(output::save(&mut bytes.as_slice(), Path::new("-"))?),
        Body::Object(object) if json => output::print(&object.to_string())?,
        Body::Text(text) if json || reply.status == 0 => output::print(text)?,
        // What a doctor finds is data, whatever its status.
        Body::Object(object) if object.get("findings").is_some() => output::print(&reply.text())?,
        _ if reply.status != 0 => output::tell(&format!("memprof: {}", reply.text())),
        _ => output::print(&reply.text())?,
    }
    Ok(code_of_status(reply.status).into())
}

fn words(args: &[String]) -> String {
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
