//! Servers that every test machine has: started, asked, given work, and ended.

use std::path::Path;

use testkit::{ExitReport, SERVERS, Server};

fn server(name: &str) -> &'static Server {
    let found = SERVERS.iter().find(|server| server.name == name);
    found.unwrap_or_else(|| panic!("no server is called {name}"))
}

fn check(name: &str, code: Option<i32>, signal: Option<i32>) {
    let mut running = server(name).start().unwrap();
    let before = running.query().unwrap();
    running.run_load().unwrap();
    running.run_load().unwrap();
    assert_eq!(running.query().unwrap(), before);
    assert_eq!(running.end().unwrap(), ExitReport { code, signal });
}

#[test]
fn redis_serves_and_ends() {
    check("redis", Some(0), None);
}

#[test]
fn mosquitto_serves_and_ends() {
    check("mosquitto", Some(0), None);
}

#[test]
fn python_serves_and_ends() {
    check("python", None, Some(15));
}

#[test]
fn one_that_is_dropped_leaves_nothing() {
    let mut running = server("redis").start().unwrap();
    let place = running.place().path().to_owned();
    let process = format!("/proc/{}", running.pid().unwrap());
    assert!(Path::new(&process).exists());
    drop(running);
    assert!(!Path::new(&process).exists());
    assert!(!place.exists());
}
