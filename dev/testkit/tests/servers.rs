//! Life of the servers that every test machine has installed: start, query, load, termination.

use std::path::Path;

use testkit::{ExitReport, SERVERS, Server};

fn server(name: &str) -> &'static Server {
    let found = SERVERS.iter().find(|server| server.name == name);
    found.unwrap_or_else(|| panic!("no server is called {name}"))
}

fn check_server(name: &str, code: Option<i32>, signal: Option<i32>) {
    let mut running = server(name).start().unwrap();
    let before = running.query().unwrap();
    running.run_load().unwrap();
    running.run_load().unwrap();
    assert_eq!(running.query().unwrap(), before);
    assert_eq!(running.terminate().unwrap(), ExitReport { code, signal });
}

#[test]
fn redis_serves_and_terminates() {
    check_server("redis", Some(0), None);
}

#[test]
fn mosquitto_serves_and_terminates() {
    check_server("mosquitto", Some(0), None);
}

#[test]
fn python_serves_and_terminates() {
    check_server("python", None, Some(15));
}

#[test]
fn dropped_server_leaves_no_process_and_no_directory() {
    let mut running = server("redis").start().unwrap();
    let directory = running.dir().path().to_owned();
    let process = format!("/proc/{}", running.pid().unwrap());
    assert!(Path::new(&process).exists());
    drop(running);
    assert!(!Path::new(&process).exists());
    assert!(!directory.exists());
}
