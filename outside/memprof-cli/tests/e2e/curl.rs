//! Requests by curl, as scripts send them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::dist::tool;

/// Response that curl got.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    /// In lower case, with their values.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Got {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The value of a header, or nothing.
    pub(crate) fn header(&self, name: &str) -> &str {
        let header = self.headers.iter().find(|(known, _)| known == name);
        header.map_or("", |(_, value)| value)
    }

    /// Checks the status of the response.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }
}

/// Runs `curl -i ARGS`, with the address in place of `H`.
pub(crate) fn curl(address: &str, args: &str) -> Got {
    run(Command::new("curl"), address, args)
}

/// Like [`curl`], as another user. Only root can do this.
pub(crate) fn curl_as(uid: u32, address: &str, args: &str) -> Got {
    run(as_user(uid, "curl".as_ref()), address, args)
}

/// A program that is run by another user.
pub(crate) fn as_user(uid: u32, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args([format!("--reuid={uid}"), format!("--regid={uid}")])
        .arg("--clear-groups")
        .arg(program);
    command
}

fn run(mut command: Command, address: &str, args: &str) -> Got {
    let args = args.split(' ').map(|word| match word.strip_prefix('H') {
        Some(path) if path.starts_with('/') => format!("{}{path}", address.trim_end_matches('/')),
        _ => word.to_owned(),
    });
    command.args(["-sS", "-i", "--max-time", "60"]).args(args);
    let output = tool("curl", &mut command);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {complaint}");
    parse(&output.stdout)
}

/// Parses a response; of those that `-L` followed, the last.
fn parse(reply: &[u8]) -> Got {
    let end = memchr::memmem::find(reply, b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&reply[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.expect("a status");
    let body = &reply[end + 4..];
    if (300..400).contains(&status) && body.starts_with(b"HTTP/") {
        return parse(body);
    }
    let headers = lines.filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_lowercase(), value.to_owned()))
    });
    Got {
        status,
        headers: headers.collect(),
        body: body.to_vec(),
    }
}
