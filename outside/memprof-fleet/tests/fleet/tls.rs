//! Servers whose certificates an authority signed that is, or is not, the one that we know.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use testkit::s3::{BUCKET, S3};
use testkit::tls::{TlsFiles, create_tls_files};

use crate::bus::{Running, free_port, server, wait_for_line};
use crate::place::{CART, Place, Run, START};

/// What helps where a server's certificate is not trusted, over NATS.
const NATS: &str = "`ca_file` must hold the certificate that signed the server's";
/// And over S3.
const STORE: &str = "SSL_CERT_FILE must name a file with the certificate that signed the server's";

/// One of the server's, and that of somebody else.
fn authorities(place: &Place) -> [TlsFiles; 2] {
    ["ours", "other"].map(|name| create_tls_files(&place.path(name)).unwrap())
}

/// A NATS server that shows a certificate, and its port.
fn nats(place: &Place, certified: &TlsFiles) -> (Running, u16) {
    let port = free_port();
    let (certificate, key) = (&certified.certificate, &certified.key);
    let tls = format!("tls {{ cert_file: {certificate:?}, key_file: {key:?} }}");
    (server(place.path("").as_path(), port, &tls), port)
}

#[test]
fn a_nats_server_is_trusted_by_its_authority_alone() {
    let place = Place::new();
    let [ours, other] = authorities(&place);
    let (_server, port) = nats(&place, &ours);
    // The server asks for TLS whatever the address says.
    for scheme in ["tls", "nats"] {
        let url = format!("{scheme}://127.0.0.1:{port}");
        let ask = |authority: Option<&Path>| {
            let mut command = place.command(&["fleet", "ps", "--nats", &url]);
            if let Some(file) = authority {
                command.arg("--ca-file").arg(file);
            }
            Run::of(command.output().unwrap()).exits(3).stderr
        };
        for authority in [None, Some(&*other.authority), Some(&*other.key)] {
            let refused = ask(authority);
            let told = format!("failed to connect to {url}");
            assert!(refused.contains(&told), "{authority:?}: {refused}");
            assert!(refused.contains(NATS), "{authority:?}: {refused}");
        }
        let trusted = ask(Some(&ours.authority));
        assert!(trusted.contains("no agent answered"), "{trusted}");
    }
}

#[test]
fn an_agent_goes_on_without_a_nats_server_that_it_does_not_trust() {
    let place = Place::new();
    let [ours, other] = authorities(&place);
    let (_server, port) = nats(&place, &ours);
    place.spool(CART, START, &[("leak", 1000)]);
    let url = format!("tls://127.0.0.1:{port}");
    let authority = other.authority.to_str().unwrap();
    let mut agent = place.command(&["agent", "--nats", &url, "--ca-file", authority]);
    let mut agent = Running(agent.stderr(Stdio::piped()).spawn().unwrap());
    wait_for_line(&mut agent.0, NATS);
    kill_process(Pid::from_child(&agent.0), Signal::TERM).unwrap();
    assert!(agent.0.wait().unwrap().success());
    assert!(place.is_drained());
    assert_eq!(place.total(), 1000);
}

/// Answers TLS with a certificate, and hands on to a port.
fn behind_tls(certified: &TlsFiles, to: u16) -> (Running, u16) {
    let port = free_port();
    let listen = format!(
        "OPENSSL-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork,verify=0,cert={},key={}",
        certified.certificate.display(),
        certified.key.display()
    );
    let mut socat = Command::new("socat");
    socat
        .args(["-d", "-d", &listen, &format!("TCP:127.0.0.1:{to}")])
        .stderr(Stdio::piped());
    let child = socat.spawn();
    let mut child = child.expect("socat: run `cargo xtask test`, or apt-get install socat");
    wait_for_line(&mut child, "listening on");
    (Running(child), port)
}

#[test]
fn a_store_is_trusted_by_its_authority_alone_and_nothing_is_lost() {
    let place = Place::new();
    let [ours, other] = authorities(&place);
    let s3 = S3::start().unwrap();
    let (_tls, port) = behind_tls(&ours, s3.port());
    place.spool(CART, START, &[("leak", 1000)]);
    let run = |args: &[&str], authority: Option<&Path>| {
        let mut command = place.command(args);
        command.args(["--store", &format!("s3://{BUCKET}/prod")]);
        command.envs(s3.environment()).env_remove("AWS_ALLOW_HTTP");
        command.env("AWS_ENDPOINT_URL", format!("https://127.0.0.1:{port}"));
        if let Some(file) = authority {
            command.env("SSL_CERT_FILE", file);
        }
        Run::of(command.output().unwrap())
    };
    for authority in [None, Some(&*other.authority)] {
        let refused = run(&["agent", "--once"], authority).exits(3).stderr;
        let told = format!("s3://{BUCKET}/prod: failed to write");
        assert!(refused.contains(&told), "{authority:?}: {refused}");
        assert!(refused.contains(STORE), "{authority:?}: {refused}");
        assert!(!place.is_drained(), "{authority:?}");
    }
    run(&["agent", "--once"], Some(&ours.authority)).exits(5);
    assert!(place.is_drained());
    let day = ["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
    let flame = ["fleet", "flame", "--format", "collapsed"];
    let flame = run(&[&flame[..], &day].concat(), Some(&ours.authority)).exits(0);
    assert_eq!(flame.stdout, "main;leak 1000\n");
}
