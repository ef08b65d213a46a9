//! Who is let in: every combination of name, page, method and token; and names that are attacks.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use crate::curl::curl;
use crate::host::{Host, Setup};
use crate::memprof::memprof;
use crate::server::Server;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn token_file(host: &Host) -> String {
    let file = host.place().join("token");
    fs::write(&file, TOKEN).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    file.display().to_string()
}

/// The status of a request that is sent as it stands.
fn status(server: &Server, request: &str) -> u16 {
    let address = server
        .address
        .trim_start_matches("http://")
        .trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let status = reply.split(' ').nth(1).and_then(|word| word.parse().ok());
    status.unwrap_or_else(|| panic!("{request}: {reply}"))
}

#[test]
fn only_allowed_requests_pass() {
    let host = Setup::of("rust_host").start();
    let file = token_file(&host);
    let args = ["--token-file", &file, "--allow-host", "box.example"];
    let server = Server::of(&host, &args);
    let port = server
        .address
        .trim_end_matches('/')
        .rsplit_once(':')
        .unwrap()
        .1;

    let names = [
        (format!("127.0.0.1:{port}"), true),
        (format!("localhost:{port}"), true),
        ("box.example".to_owned(), true),
        ("evil.example".to_owned(), false),
        (format!("localhost.evil.example:{port}"), false),
        (String::new(), false),
    ];
    // What a browser tells of the page that asks; `HOST` stands for the request's own.
    let pages = [
        ("", true),
        (
            "Origin: http://HOST\r\nSec-Fetch-Site: same-origin\r\n",
            true,
        ),
        ("Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\n", true),
        ("Origin: http://evil.example\r\n", false),
        ("Origin: http://localhost:1\r\n", false),
        ("Origin: null\r\n", false),
        // An <img>, or a link, sends no Origin.
        (
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n",
            false,
        ),
        (
            "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: navigate\r\n",
            false,
        ),
    ];
    let calls = [
        ("GET", "/api/v1/status"),
        ("POST", "/api/v1/activate"),
        ("GET", "/flags/je_prof_active?setvalue=true"),
        ("POST", "/service/jemalloc/prof/enable"),
    ];
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    let wrong = format!("Authorization: Bearer {}\r\n", TOKEN.replace('0', "1"));
    let prefix = format!("/t/{TOKEN}");
    let tokens = [
        ("", "", "", false),
        (&*bearer, "", "", true),
        ("", &*prefix, "", true),
        (&*wrong, "", "", false),
        ("", "/t/0123456789abcdef0123456789abcdee", "", false),
        // A query ends up in logs.
        ("", "", TOKEN, false),
    ];
    let mut combinations = 0;
    let mut passed = 0;
    for (name, is_name) in &names {
        for (page, is_page) in pages {
            for (method, path) in calls {
                for (header, prefix, query, is_token) in tokens {
                    let page = page.replace("HOST", name);
                    let path = match query {
                        "" => format!("{prefix}{path}"),
                        token => format!(
                            "{path}{}token={token}",
                            if path.contains('?') { '&' } else { '?' }
                        ),
                    };
                    let request = format!(
                        "{method} {path} HTTP/1.1\r\nHost: {name}\r\n{page}{header}\
                         Content-Length: 0\r\nConnection: close\r\n\r\n"
                    );
                    let expected = match (is_name, is_page, is_token) {
                        (false, _, _) => 421,
                        (true, false, _) => 403,
                        (true, true, false) => 401,
                        (true, true, true) => 200,
                    };
                    assert_eq!(status(&server, &request), expected, "{request}");
                    combinations += 1;
                    passed += usize::from(expected == 200);
                }
            }
        }
    }
    println!("{combinations} combinations, {passed} passed");
    assert_eq!((combinations, passed), (6 * 8 * 4 * 6, 3 * 3 * 4 * 2));
}

#[test]
fn request_with_two_hosts_is_refused() {
    let host = Setup::of("rust_host").start();
    let server = Server::of(&host, &[]);
    let check = |head: &str, expected: u16| {
        let request = format!("{head}Connection: close\r\n\r\n");
        assert_eq!(status(&server, &request), expected, "{request}");
    };
    check("GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n", 200);
    check(
        "GET http://evil.example/api/v1/status HTTP/1.1\r\nHost: localhost\r\n",
        421,
    );
    check(
        "GET http://localhost/api/v1/status HTTP/1.1\r\nHost: localhost\r\n",
        200,
    );
    check(
        "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n",
        421,
    );
    check("GET /api/v1/status HTTP/1.1\r\n", 421);
}

#[test]
fn second_header_does_not_hide_the_first() {
    let host = Setup::of("rust_host").start();
    let server = Server::of(&host, &[]);
    let check = |headers: &str, expected: u16| {
        let request = format!(
            "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n"
        );
        assert_eq!(status(&server, &request), expected, "{request}");
    };
    let (own, foreign) = (
        "Origin: http://localhost\r\n",
        "Origin: http://evil.example\r\n",
    );
    check(own, 200);
    check(foreign, 403);
    check(&[own, foreign].concat(), 403);
    check(&[foreign, own].concat(), 403);
    let (own, foreign) = ("Sec-Fetch-Site: none\r\n", "Sec-Fetch-Site: cross-site\r\n");
    check(&[own, foreign].concat(), 403);
    check(&[foreign, own].concat(), 403);
}

#[test]
fn cross_site_link_opens_only_the_page() {
    let host = Setup::of("rust_host").start();
    let server = Server::of(&host, &[]);
    let link = |path: &str| {
        let headers = "-H Sec-Fetch-Site:cross-site -H Sec-Fetch-Mode:navigate";
        curl(&server.address, &format!("{headers} H{path}")).status
    };
    assert_eq!(link("/"), 200);
    assert_eq!(link(&format!("/host/{}/", host.pid())), 200);
    for other in [
        "/pprof/heap",
        "/pprof/heap/",
        "//pprof/heap/",
        "/mtev/heap_profile?active=true",
        "/flags/je_prof_reset/?setvalue=19",
        "/service/jemalloc/pprof/heap/",
        &format!("/host/{}/flags/je_prof_active/?setvalue=true", host.pid()),
    ] {
        assert_eq!(link(other), 403, "{other}");
    }
}

#[test]
fn changes_need_post() {
    let host = Setup::of("rust_host").start();
    let server = Server::of(&host, &[]);
    for message in [
        "activate",
        "deactivate",
        "reset",
        "purge",
        "background_thread",
        "gdump",
        "dump",
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            let got = curl(&server.address, &format!("-X {method} H/api/v1/{message}")).is(405);
            assert_eq!(got.header("allow"), "POST");
        }
    }
    assert_eq!(
        host.memprof("status", &["--json"]).json()["profiling"],
        "inactive"
    );
}

#[test]
fn every_reply_is_confined() {
    let host = Setup::of("rust_host").start();
    host.memprof("activate", &[]).exits(0);
    host.dump_of(1 << 20);
    let server = Server::of(&host, &[]);
    let id = curl(&server.address, "-X POST H/api/v1/dump").json()["id"].clone();
    let id = id.as_str().unwrap();
    let dump = |format: &str| format!("H/api/v1/dumps/{id}?format={format}");
    let lines = [
        "H/".to_owned(),
        "H/api/v1/status".to_owned(),
        "H/nothing".to_owned(),
        "H/pprof/heap".to_owned(),
        "-H Host:evil.example H/".to_owned(),
        dump("html"),
        dump("flamegraph"),
        dump("svg"),
        dump("text"),
    ];
    for line in lines {
        let got = curl(&server.address, &line);
        let policy = got.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; "),
            "{line}: {policy}"
        );
        assert!(
            policy.contains("frame-ancestors 'none'"),
            "{line}: {policy}"
        );
        let scripts = policy
            .split("; ")
            .find(|part| part.starts_with("script-src"));
        assert!(
            scripts.is_none_or(|scripts| !scripts.contains("'unsafe-inline'")),
            "{policy}"
        );
        assert_eq!(got.header("x-content-type-options"), "nosniff", "{line}");
        assert_eq!(got.header("cache-control"), "no-store", "{line}");
        assert_eq!(got.header("referrer-policy"), "no-referrer", "{line}");
        assert_eq!(got.header("access-control-allow-origin"), "", "{line}");
        assert_eq!(
            policy.contains("sandbox"),
            line.contains("dumps/"),
            "{line}: {policy}"
        );
    }
}

#[test]
fn oversized_body_is_refused() {
    let host = Setup::of("rust_host").start();
    let server = Server::of(&host, &[]);
    let file = host.place().join("body");
    fs::write(&file, vec![b'x'; 65 << 20]).unwrap();
    for path in [
        "/api/v1/activate",
        "/debug/prof/mem/symbol",
        "/pprof/symbol",
        "/debug/prof/mem/gdump",
    ] {
        let line = format!(
            "-H Expect: -X POST --data-binary @{} H{path}",
            file.display()
        );
        curl(&server.address, &line).is(413);
    }
    fs::write(&file, vec![b'x'; 5000]).unwrap();
    let line = format!(
        "-X POST --data-binary @{} H/api/v1/activate",
        file.display()
    );
    curl(&server.address, &line).is(413);
}

#[test]
fn public_address_needs_two_more_options() {
    let host = Setup::of("rust_host").start();
    let sockets = host.socket_dir();
    let refused = memprof(&sockets, &["serve", "--listen", "0.0.0.0:0"]).exits(2);
    assert!(
        refused.stderr.contains("add --allow-remote --token-file"),
        "{refused:?}"
    );
    let refused = memprof(
        &sockets,
        &["serve", "--listen", "0.0.0.0:0", "--allow-remote"],
    )
    .exits(2);
    assert!(refused.stderr.contains("--token-file"), "{refused:?}");
    let token = |text: &str, mode| {
        let file = host.place().join("weak");
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let args = [
            "serve",
            "--allow-remote",
            "--listen",
            "0.0.0.0:0",
            "--token-file",
        ];
        memprof(&sockets, &[&args[..], &[file.to_str().unwrap()]].concat())
            .exits(1)
            .stderr
    };
    assert!(token("short", 0o600).contains("the token is too short"));
    assert!(token(TOKEN, 0o644).contains("chmod 600"));
}

/// Names that attack a page which does not escape them.
fn hostile_names() -> Vec<String> {
    let payloads = [
        "<img src=x onerror=alert(N)>",
        "</script><script>alert(N)</script>",
        "</title><svg onload=alert(N)>",
        "]]><script>alert(N)</script>",
        "\"><b onmouseover=alert(N)>",
        "' onload='alert(N)",
        "<a href=javascript:alert(N)>",
        "<!--N--><style>*{display:none}</style>",
        "\u{1b}[2JN",
        "\u{202e}N\u{2066}",
    ];
    let numbers = 0..200usize;
    numbers
        .map(|n| payloads[n % payloads.len()].replace('N', &n.to_string()))
        .collect()
}

#[test]
fn hostile_names_are_escaped() {
    const ID: &str = "20260102T030405Z.4242.1.0a1b2c3d";
    let host = Setup::of("rust_host").start();
    host.memprof("dump", &[]).exits(0);
    let names = hostile_names();
    let mut dump = String::from("--- symbol\nbinary=/<b>x\n");
    for (at, name) in names.iter().enumerate() {
        dump += &format!("{:#x} {name}\n", 0x1000 + at);
    }
    dump += "---\n--- heap\nheap profile: 200: 200000 [0: 0] @ heapprofile\n";
    for at in 0..names.len() {
        dump += &format!("1: 1000 [0: 0] @ {:#x}\n", 0x1000 + at);
    }
    dump += "\nMAPPED_LIBRARIES:\n1000-9000 r-xp 00000000 00:00 0 /<b>x\n";
    let file = host.dump_dir().join(format!("{ID}.heap"));
    fs::write(&file, &dump).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();

    let server = Server::of(&host, &[]);
    let mut unescaped = 0;
    let formats = [
        "html",
        "flamegraph",
        "view",
        "json",
        "text",
        "tree",
        "collapsed",
        "dot",
        "svg",
    ];
    let mut check = |what: &str, body: &str| {
        assert!(
            body.contains("alert(0)"),
            "{what} does not show the names: {body}"
        );
        let is_invisible =
            |c: char| (c.is_control() && !"\n\t\r".contains(c)) || "\u{202e}\u{2066}".contains(c);
        unescaped += body.chars().filter(|c| is_invisible(*c)).count();
        // What is markup; in plain text, names stand as they are.
        if ["html", "flamegraph", "svg", "upload"].contains(&what) {
            unescaped += names
                .iter()
                .filter(|name| name.contains('<') && body.contains(*name))
                .count();
            unescaped += body.matches("<img").count() + body.matches("<script>alert").count();
        }
    };
    for format in formats {
        let got = curl(
            &server.address,
            &format!("H/api/v1/dumps/{ID}?format={format}"),
        )
        .is(200);
        check(format, &got.text());
    }
    let upload = format!(
        "-X POST --data-binary @{} H/debug/prof/mem/symbol",
        file.display()
    );
    check("upload", &curl(&server.address, &upload).is(200).text());
    println!(
        "{} names in {} formats, {unescaped} unescaped",
        names.len(),
        formats.len() + 1
    );
    assert_eq!(unescaped, 0);
}

#[test]
fn ids_are_never_paths() {
    let host = Setup::of("rust_host").start();
    host.memprof("activate", &[]).exits(0);
    host.memprof("dump", &[]).exits(0);
    let server = Server::of(&host, &[]);
    let ids = [
        "..%2f..%2fetc%2fpasswd",
        "%2fetc%2fpasswd",
        "x%00",
        "..",
        "x%20format=heap",
        "%22",
        "x%0a",
        "20260102T030405Z.4242.1.0a1b2c3d",
    ];
    for id in ids {
        for format in ["heap", "text"] {
            let line = format!("--path-as-is H/api/v1/dumps/{id}?format={format}");
            curl(&server.address, &line).is(404);
        }
        let newest = curl(&server.address, "H/api/v1/dumps").json()["dumps"][0]["id"].clone();
        let newest = newest.as_str().unwrap();
        curl(
            &server.address,
            &format!("H/api/v1/dumps/{newest}?format=text&base={id}"),
        )
        .is(404);
    }
}
