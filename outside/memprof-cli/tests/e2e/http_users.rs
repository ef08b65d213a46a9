//! Who is let in without a token: the server's user and root, no other user of the machine.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use crate::curl::{Got, curl, curl_as};
use crate::dist::dist;
use crate::host::{Host, Setup};
use crate::place::copy_program;
use crate::server::Server;

/// Uid of Debian's user nobody.
const NOBODY: u32 = 65534;
/// A user without an entry, as a container's is.
const SOMEBODY: u32 = 64321;

fn as_nobody(address: &str, args: &str) -> Got {
    curl_as(NOBODY, address, args)
}

/// Server for the user nobody, of a host that can be profiled.
fn served() -> (Host, Server) {
    let host = Setup::of("rust_host").start();
    let server = Server::of(&host, &[]);
    (host, server)
}

fn profiling(host: &Host) -> String {
    let status = host.memprof("status", &["--json"]).json();
    status["profiling"].as_str().unwrap().to_owned()
}

#[test]
fn another_user_is_refused_everything() {
    let (host, server) = served();
    for line in [
        "H/",
        "H/api/v1/status",
        "H/api/v1/hosts",
        "H/metrics",
        "H/pprof/heap",
        "-X POST H/api/v1/activate",
        "-X POST H/api/v1/dump",
        "-X POST H/service/jemalloc/prof/enable",
        "H/flags/je_prof_active?setvalue=true",
        "H/mtev/heap_profile?active=true",
        "-X POST H/debug/prof/mem/activate",
        "H/t/00112233445566778899aabbccddeeff/api/v1/status",
    ] {
        let refused = as_nobody(&server.address, line).is(401);
        assert_eq!(refused.header("www-authenticate"), "Bearer", "{line}");
        let error = refused.json()["error"].take();
        assert_eq!(error["kind"], "unauthorized", "{line}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("comes from uid 65534"), "{message}");
        assert!(error["remedy"].as_str().unwrap().contains("TOKEN"));
    }
    assert_eq!(profiling(&host), "inactive");
    // The server's own user needs nothing for the same.
    curl(&server.address, "-X POST H/service/jemalloc/prof/enable").is(200);
    assert_eq!(profiling(&host), "active");
}

#[test]
fn printed_address_admits_another_user() {
    let (_host, server) = served();
    let (_, token) = server.printed.split_once("/t/").unwrap();
    let token = token.trim_end_matches('/');
    assert_eq!(token.len(), 32, "{}", server.printed);
    as_nobody(&server.printed, "H/api/v1/status").is(200);
    as_nobody(&server.printed, "-X POST H/api/v1/activate").is(200);
    let line = format!("--oauth2-bearer {token} H/api/v1/status");
    as_nobody(&server.address, &line).is(200);
    // Here it works too, and so does that of a server that has ended meanwhile.
    curl(&server.printed, "H/api/v1/status").is(200);
    curl(
        &server.address,
        "H/t/00112233445566778899aabbccddeeff/api/v1/status",
    )
    .is(200);
}

#[test]
fn server_of_another_user_admits_root() {
    let place = tempfile::tempdir().unwrap();
    let own = place.path().join("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    // A program in a place that only root may enter cannot be run by others.
    let memprof = own.join("memprof");
    copy_program(dist("bin/memprof"), &memprof);
    let server = Server::run_by(SOMEBODY, &memprof, &own);
    curl(&server.address, "H/api/v1/hosts").is(200);
    curl_as(SOMEBODY, &server.address, "H/api/v1/hosts").is(200);
    as_nobody(&server.address, "H/api/v1/hosts").is(401);
}

#[test]
fn closed_connection_belongs_to_no_user() {
    let (host, server) = served();
    let address = server
        .address
        .trim_start_matches("http://")
        .trim_end_matches('/');
    // The kernel's table gives a closed socket to root.
    let script = format!(
        "exec 3<>/dev/tcp/{}; printf 'POST /api/v1/activate HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 0\\r\\n\\r\\n' >&3",
        address.replace(':', "/")
    );
    for _ in 0..20 {
        let mut bash = Command::new("setpriv");
        bash.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "bash",
            "-c",
            &script,
        ]);
        assert!(bash.status().unwrap().success());
    }
    // It answers in the order in which they came.
    curl(&server.address, "H/api/v1/status").is(200);
    assert_eq!(profiling(&host), "inactive");
}

#[test]
fn half_closed_client_gets_a_reply() {
    let (_host, server) = served();
    let address = server
        .address
        .trim_start_matches("http://")
        .trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
}

#[test]
fn open_unix_socket_still_serves_only_its_user() {
    let host = Setup::of("rust_host").start();
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let socket = place.path().join("http.sock");
    let path = socket.to_str().unwrap();
    let _server = Server::at(&host, path);
    fs::set_permissions(&socket, Permissions::from_mode(0o777)).unwrap();
    let line = format!("--unix-socket {path} http://localhost/api/v1/status");
    curl("", &line).is(200);
    let refused = as_nobody("", &line).is(401).text();
    assert!(refused.contains("uid 65534"), "{refused}");
}
