//! The endpoints of five other systems, held against a table of the originals' answers and, for Go, against a real
//! `net/http/pprof`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde::Deserialize;

use crate::curl::{Got, curl};
use crate::dist::{source, tool_text};
use crate::host::{Host, Setup};
use crate::server::Server;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    group: Vec<Group>,
}

/// Requests that are sent in their order to one host.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    system: String,
    host: HostKind,
    requests: Vec<Request>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HostKind {
    Sampling,
    ProfOff,
    NoJemalloc,
    Tcmalloc,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    curl: String,
    /// The original's answer; that of the running one if it is left out.
    original: Option<Answer>,
    /// memprof's answer, if it is another one, with the reason for that.
    memprof: Option<Answer>,
    because: Option<String>,
    /// Public script or document that has the request.
    from: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    status: u16,
    r#type: String,
    is: Option<String>,
    starts: Option<String>,
    has: Option<String>,
}

impl HostKind {
    /// Starts such a host, which has something to show if it can sample.
    fn start(self) -> Host {
        // Retention must not take away what a group counts.
        let keep = "keep.count = 10000";
        match self {
            Self::Sampling => {
                let host = Setup::of("rust_host").config(keep).start();
                host.memprof("activate", &[]).exits(0);
                host.dump_of(1 << 20);
                host
            }
            Self::ProfOff => Setup::that_cannot_profile("rust_host").start(),
            Self::NoJemalloc => Setup::without_profiling("c_host").start(),
            Self::Tcmalloc => {
                let setup = Setup::without_profiling("c_host");
                let host = setup.env("LD_PRELOAD", "libtcmalloc.so.4").start();
                host.memprof("activate", &["sample_interval=4KiB"]).exits(0);
                host.dump_of(1 << 20);
                host
            }
        }
    }
}

/// A program that serves `net/http/pprof`, ended when dropped.
struct GoServer {
    child: Child,
    address: String,
}

impl GoServer {
    fn start(host: &Host) -> Self {
        let program = host.place().join("pprof_server");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&program);
        build.arg(source("outside/memprof-cli/tests/fixtures/pprof_server.go"));
        build.env("HOME", host.place()).env("GO111MODULE", "off");
        tool_text("golang-go", &mut build);
        let mut child = Command::new(program)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.next().expect("it prints its address").unwrap();
        Self { child, address }
    }
}

impl Drop for GoServer {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns what is wrong with an answer, or nothing.
fn difference(got: &Got, expected: &Answer) -> Option<String> {
    let (kind, text) = (got.header("content-type"), got.text());
    let is_right = got.status == expected.status
        && kind.starts_with(&expected.r#type)
        && expected.is.as_ref().is_none_or(|all| text == *all)
        && expected
            .starts
            .as_ref()
            .is_none_or(|start| text.starts_with(start))
        && expected.has.as_ref().is_none_or(|part| text.contains(part));
    let shown: String = text.chars().take(300).collect();
    (!is_right).then(|| format!("{} {kind}: {shown:?}", got.status))
}

/// Returns how an answer differs from that of the running original: in its status, its headers, or the reason of a
/// refusal, which a remedy may follow.
fn difference_to_running(got: &Got, original: &Got) -> Option<String> {
    let headers = ["content-type", "x-go-pprof", "content-disposition"];
    let head = |one: &Got| format!("{} {:?}", one.status, headers.map(|name| one.header(name)));
    let (ours, theirs) = (head(got), head(original));
    let is_gzip = |one: &Got| one.body.starts_with(&[0x1f, 0x8b]);
    let is_alike = match original.status {
        400.. => got.text().starts_with(original.text().trim_end()),
        _ => is_gzip(got) == is_gzip(original),
    };
    (ours != theirs || !is_alike).then(|| {
        let (said, original) = (got.text(), original.text());
        format!("{ours} {said:.200?}, the original says {theirs} {original:.200?}")
    })
}

#[test]
fn answers_are_those_of_the_originals_or_explained() {
    let table = source("outside/memprof-cli/tests/fixtures/originals.toml");
    let table: Table = toml::from_str(&fs::read_to_string(table).unwrap()).unwrap();
    let mut differences = Vec::new();
    for Group {
        system,
        host: kind,
        requests,
    } in table.group
    {
        let host = kind.start();
        let server = Server::of(&host, &["--compat", &system]);
        let running = (system == "go").then(|| GoServer::start(&host));
        for Request {
            curl: line,
            original,
            memprof,
            because,
            from,
        } in requests
        {
            assert_eq!(memprof.is_some(), because.is_some(), "{line}");
            let got = curl(&server.address, &line);
            let difference = match (memprof.or(original), &running) {
                (Some(expected), _) => difference(&got, &expected),
                (None, Some(go)) => difference_to_running(&got, &curl(&go.address, &line)),
                (None, None) => panic!("{line} has no answer"),
            };
            let from = from.map(|from| format!(" ({from})")).unwrap_or_default();
            differences
                .extend(difference.map(|text| format!("{system} {kind:?} {line}{from}: {text}")));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
