//! The API of `memprof serve --store`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::Value;

use crate::bus::ChildGuard;
use crate::test_dir::{CART, HOUR, Process, START, TestDir};

/// Time window of the queries.
const DAY: &str = "at=2026-11-21T23:00:00Z&for=24h";

/// Running server, stopped on drop.
struct Server {
    address: String,
    _running: ChildGuard,
}

impl Server {
    /// Starts `memprof serve` on a free port, and waits until it serves.
    fn start(dir: &TestDir) -> Self {
        let mut command = dir.command(&["serve", "--listen", "127.0.0.1:0"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut notes = BufReader::new(child.stderr.take().unwrap());
        notes.read_line(&mut line).unwrap();
        let (_, address) = line.split_once("serving http://").expect(&line);
        let address = address.split('/').next().unwrap().to_owned();
        Self {
            address,
            _running: ChildGuard(child),
        }
    }

    /// Status and body of the response to a GET request.
    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address);
        stream.write_all(head.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    /// Rows of a response for the day.
    fn rows(&self, resource: &str) -> Value {
        let (status, body) = self.get(&format!("/api/v1/{resource}?{DAY}"));
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()["rows"].clone()
    }
}

/// Creates a store with profiles of two processes in three hours. The second one has another build, and grows by a
/// leak.
fn dir_with_two_builds() -> TestDir {
    let dir = TestDir::new();
    let other = Process {
        pid: 8,
        build: "3f2a00",
        ..CART
    };
    for hour in 0..3 {
        let time = START + hour * HOUR;
        dir.spool(CART, time, &[("load", 500)]);
        dir.spool(other, time, &[("load", 500), ("leak", 1000 * (hour + 1))]);
    }
    dir.drain();
    dir
}

#[test]
fn services_processes_and_history_are_returned() {
    let dir = dir_with_two_builds();
    let server = Server::start(&dir);
    let services = server.rows("services");
    assert_eq!(services[0]["service"], "cart");
    assert_eq!(services[0]["processes"], 2);
    assert_eq!(
        services[0]["builds"],
        serde_json::json!({ "3f2a00": 1, "91cc00": 1 })
    );
    assert_eq!(services[0]["inuse_bytes"], 4000);
    assert_eq!(services[0]["growth_bytes"], 2000);
    assert_eq!(server.rows("growth"), dir.growth());
    assert_eq!(server.rows("processes").as_array().unwrap().len(), 2);
    let history = server.rows("history");
    let mut values: Vec<_> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|point| point["inuse_bytes"].as_i64().unwrap())
        .collect();
    assert_eq!(values.len(), 60);
    values.dedup();
    // The values are 0 before the first profile and after the last one.
    assert_eq!(values, [0, 2000, 3000, 4000, 0]);
}

#[test]
fn profiles_are_returned_in_report_formats() {
    let dir = dir_with_two_builds();
    let server = Server::start(&dir);
    let (status, collapsed) = server.get(&format!("/api/v1/profile?{DAY}&format=collapsed"));
    assert_eq!(
        (status, &*collapsed),
        (200, "main;leak 2000\nmain;load 1000\n")
    );
    let diff = format!("/api/v1/profile?{DAY}&build=3f2a&base=91cc&format=view");
    let view: Value = serde_json::from_str(&server.get(&diff).1).unwrap();
    assert!(
        view["heading"]
            .as_str()
            .unwrap()
            .contains("changed by 2000 bytes"),
        "{view}"
    );
    let notes = view["notes"].to_string();
    assert!(
        notes.contains("3 profiles of 1 processes, builds 3f2a00"),
        "{notes}"
    );
    let since = "/api/v1/profile?at=2026-11-21T12:30:00Z&base_at=2026-11-21T11:30:00Z&format=view";
    let view: Value = serde_json::from_str(&server.get(since).1).unwrap();
    assert!(
        view["heading"]
            .as_str()
            .unwrap()
            .contains("changed by 500 bytes"),
        "{view}"
    );
}

#[test]
fn invalid_queries_are_refused_with_reason() {
    let dir = dir_with_two_builds();
    let server = Server::start(&dir);
    let check = |path: &str, expected: u16, text: &str| {
        let (status, body) = server.get(path);
        assert_eq!(status, expected, "{path}: {body}");
        assert!(body.contains(text), "{path}: {body}");
    };
    check("/api/v1/services?at=25:00", 400, "expected a time in UTC");
    check("/api/v1/services?for=moon", 400, "for: ");
    check(
        "/api/v1/services?nonsense=1",
        400,
        "unknown field `nonsense`",
    );
    check("/api/v1/profile?format=x", 400, "unknown format");
    check("/api/v1/profile?format=heap", 400, "not a heap dump");
    check(
        "/api/v1/profile?sample_type=x",
        400,
        "inuse_space, inuse_objects",
    );
    check("/api/v1/profile?base=91cc", 400, "build is missing");
    check(
        &format!("/api/v1/profile?{DAY}&build=77"),
        404,
        "has a build id that begins with 77",
    );
    check(
        "/api/v1/history?at=2020-01-01T00:00:00Z",
        404,
        "there is no profile of the fleet",
    );
    check("/nothing", 404, "there is no such page");
    let samples = dir.files("incoming/samples").remove(0);
    std::fs::write(&samples, "not a table").unwrap();
    let path = format!("/api/v1/profile?{DAY}&format=view");
    check(&path, 200, "a file is missing or damaged");
}
