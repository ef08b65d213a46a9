//! `memprof attach` to a Java virtual machine: by its own door where it is open, else by a borrowed thread.

use std::process::{Command, Stdio};

use crate::host::Host;
use crate::memprof::memprof;

const PROGRAM: &str = "public class Idle { public static void main(String[] a) throws Exception {
    System.err.println(\"ready\"); while (System.in.read() > 0) System.err.println(\"alive\"); } }";

const BY_ITS_DOOR: &str = "by its JVM's attach protocol";
const BY_A_THREAD: &str = "which was stopped for";

fn jvm(options: &[&str]) -> Host {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("Idle.java");
    std::fs::write(&file, PROGRAM).unwrap();
    let mut java = Command::new("java");
    java.args(options).arg(&file).stdin(Stdio::piped());
    let host = Host::spawn(java, place);
    host.wait_for_log("ready");
    host
}

fn attaches(host: &mut Host, way: &str) {
    let pid = host.pid().to_string();
    let dump_dir = format!("dump_dir={}", host.dump_dir().display());
    let attached = memprof(&host.socket_dir(), &["attach", &pid, &dump_dir]).exits(0);
    assert!(attached.stdout.contains(way), "{}", attached.stdout);
    host.memprof("activate", &["lg_sample=12"]).exits(0);
    host.memprof("dump", &[]).exits(0);
    memprof(&host.socket_dir(), &["detach", &pid]).exits(0);
    host.type_line("still");
    host.wait_for_log("alive");
}

#[test]
fn jvm_is_attached_repeatedly_by_its_attach_api() {
    let mut host = jvm(&[]);
    for _ in 0..3 {
        attaches(&mut host, BY_ITS_DOOR);
    }
    let left = format!("/tmp/.attach_pid{}", host.pid());
    assert!(!std::path::Path::new(&left).exists(), "{left} is left");
}

/// Why the plugin did not start is said by the way that can say it.
#[test]
fn jvm_with_invalid_keys_reports_the_reason() {
    let host = jvm(&[]);
    let pid = host.pid().to_string();
    let attached = memprof(&host.socket_dir(), &["attach", &pid, "dump_dirr=/tmp"]);
    let refused = attached.exits(4).stderr;
    assert!(refused.contains("dump_dirr"), "{refused}");
}

/// It has no handler of SIGQUIT, which would end it, and its socket is open from the start.
#[test]
fn jvm_without_signals_is_attached_by_its_attach_api() {
    attaches(&mut jvm(&["-Xrs"]), BY_ITS_DOOR);
}

/// SIGQUIT would have it print its threads.
#[test]
fn jvm_without_attach_api_is_attached_by_a_thread() {
    attaches(&mut jvm(&["-XX:+DisableAttachMechanism"]), BY_A_THREAD);
}
