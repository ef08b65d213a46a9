//! Servers whose certificates a known authority has signed, or an unknown one.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use testkit::s3::{BUCKET, S3};
use testkit::tls::{TlsFiles, create_tls_files};

use crate::bus::{ChildGuard, free_port, server, wait_for_line};
use crate::test_dir::{CART, Run, START, TestDir};

/// Remedy if the certificate of a NATS server is not trusted.
const NATS_REMEDY: &str = "`ca_file` must hold the certificate that signed the server's";
/// Remedy if the certificate of a store is not trusted.
const STORE_REMEDY: &str =
    "SSL_CERT_FILE must name a file with the certificate that signed the server's";

/// Certificates of the server's authority, and of another one.
fn authorities(dir: &TestDir) -> [TlsFiles; 2] {
    ["own", "other"].map(|name| create_tls_files(&dir.path(name)).unwrap())
}

/// Starts a NATS server with a certificate, and returns its port.
fn nats(dir: &TestDir, certified: &TlsFiles) -> (ChildGuard, u16) {
    let port = free_port();
    let (certificate, key) = (&certified.certificate, &certified.key);
    let tls = format!("tls {{ cert_file: {certificate:?}, key_file: {key:?} }}");
    (server(dir.path("").as_path(), port, &tls), port)
}

#[test]
fn nats_server_is_trusted_by_its_authority_only() {
    let dir = TestDir::new();
    let [own, other] = authorities(&dir);
    let (_server, port) = nats(&dir, &own);
    // The server requires TLS with both schemes.
    for scheme in ["tls", "nats"] {
        let url = format!("{scheme}://127.0.0.1:{port}");
        let run = |authority: Option<&Path>| {
            let mut command = dir.command(&["fleet", "ps", "--nats", &url]);
            if let Some(file) = authority {
                command.arg("--ca-file").arg(file);
            }
            Run::from_output(command.output().unwrap()).exits(3).stderr
        };
        for authority in [None, Some(&*other.authority), Some(&*other.key)] {
            let refused = run(authority);
            let message = format!("failed to connect to {url}");
            assert!(refused.contains(&message), "{authority:?}: {refused}");
            assert!(refused.contains(NATS_REMEDY), "{authority:?}: {refused}");
        }
        let trusted = run(Some(&own.authority));
        assert!(trusted.contains("no agent answered"), "{trusted}");
    }
}

#[test]
fn agent_without_trusted_nats_server_stores_profiles() {
    let dir = TestDir::new();
    let [own, other] = authorities(&dir);
    let (_server, port) = nats(&dir, &own);
    dir.spool(CART, START, &[("leak", 1000)]);
    let url = format!("tls://127.0.0.1:{port}");
    let authority = other.authority.to_str().unwrap();
    let mut agent = dir.command(&["agent", "--nats", &url, "--ca-file", authority]);
    let mut agent = ChildGuard(agent.stderr(Stdio::piped()).spawn().unwrap());
    wait_for_line(&mut agent.0, NATS_REMEDY);
    kill_process(Pid::from_child(&agent.0), Signal::TERM).unwrap();
    assert!(agent.0.wait().unwrap().success());
    assert!(dir.is_drained());
    assert_eq!(dir.total(), 1000);
}

/// Starts a TLS server with a certificate that forwards to a port.
fn start_tls_proxy(certified: &TlsFiles, target_port: u16) -> (ChildGuard, u16) {
    let port = free_port();
    let listen = format!(
        "OPENSSL-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork,verify=0,cert={},key={}",
        certified.certificate.display(),
        certified.key.display()
    );
    let mut socat = Command::new("socat");
    socat
        .args(["-d", "-d", &listen, &format!("TCP:127.0.0.1:{target_port}")])
        .stderr(Stdio::piped());
    let child = socat.spawn();
    let mut child = child.expect("socat: run `cargo xtask test`, or apt-get install socat");
    wait_for_line(&mut child, "listening on");
    (ChildGuard(child), port)
}

#[test]
fn store_is_trusted_by_its_authority_only() {
    let dir = TestDir::new();
    let [own, other] = authorities(&dir);
    let s3 = S3::start().unwrap();
    let (_tls, port) = start_tls_proxy(&own, s3.port());
    dir.spool(CART, START, &[("leak", 1000)]);
    let run = |args: &[&str], authority: Option<&Path>| {
        let mut command = dir.command(args);
        command.args(["--store", &format!("s3://{BUCKET}/prod")]);
        command.envs(s3.environment()).env_remove("AWS_ALLOW_HTTP");
        command.env("AWS_ENDPOINT_URL", format!("https://127.0.0.1:{port}"));
        if let Some(file) = authority {
            command.env("SSL_CERT_FILE", file);
        }
        Run::from_output(command.output().unwrap())
    };
    for authority in [None, Some(&*other.authority)] {
        let refused = run(&["agent", "--once"], authority).exits(3).stderr;
        let message = format!("s3://{BUCKET}/prod: failed to write");
        assert!(refused.contains(&message), "{authority:?}: {refused}");
        assert!(refused.contains(STORE_REMEDY), "{authority:?}: {refused}");
        assert!(!dir.is_drained(), "{authority:?}");
    }
    run(&["agent", "--once"], Some(&own.authority)).exits(5);
    assert!(dir.is_drained());
    let day = ["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
    let flame = ["fleet", "flame", "--format", "collapsed"];
    let flame = run(&[&flame[..], &day].concat(), Some(&own.authority)).exits(0);
    assert_eq!(flame.stdout, "main;leak 1000\n");
}
