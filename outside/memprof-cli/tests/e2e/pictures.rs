//! The pictures of README and the book: what the page shows of a Redis that is being filled. They lie in
//! `target/screenshots` afterwards; `cargo xtask pictures` takes them into the book.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use webdriver::Browser;

use crate::dist::{dist, source, tool_text};
use crate::host::Host;
use crate::page::screenshot;
use crate::server::Server;

/// Under `memprof run`, with all that a shop may keep in it.
fn redis() -> Host {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("redis.sock");
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$0\" \"$@\" >&2"])
        .arg(dist("bin/memprof"));
    command.args(["run", "--active", "--lg-sample", "16", "--dump-dir"]);
    command.arg(place.path().join("dumps"));
    command.args(["--", "redis-server", "--port", "0", "--save", ""]);
    // What the page shows as its command line.
    command.args(["--proc-title-template", "redis-server", "--unixsocket"]);
    command.arg(&socket);
    let host = Host::spawn(command, place);
    host.wait_for_log("ready to accept connections");
    let mut commands = String::new();
    for number in 0..3000 {
        let text = "x".repeat(200 + number % 7 * 100);
        writeln!(commands, "SET cart:{number} {text}").unwrap();
        writeln!(
            commands,
            "HSET user:{number} name {text} mail {text} city {text}"
        )
        .unwrap();
        writeln!(commands, "RPUSH orders:{} {text} {text}", number % 50).unwrap();
        writeln!(commands, "ZADD prices {number} {text}{number}").unwrap();
        writeln!(commands, "SADD tags:{} {text}{number}", number % 20).unwrap();
        writeln!(commands, "XADD events * item {text} by {number}").unwrap();
    }
    let script = host.place().join("commands");
    fs::write(&script, commands).unwrap();
    let mut client = Command::new("sh");
    client.args(["-c", "redis-cli -s \"$0\" < \"$1\""]);
    tool_text("redis-tools", client.arg(&socket).arg(script));
    host
}

#[test]
fn pictures_are_of_a_run() {
    let host = redis();
    host.memprof("dump", &[]).exits(0);
    let server = Server::of(&host, &[]);
    let browser = Browser::open();
    browser.set_viewport_size(1000, 620);
    browser.navigate(&server.address);
    browser.wait_for("document.querySelectorAll('#holder-rows tr').length");
    screenshot(&browser, "page");
    browser.click("#dump-rows tr:first-child a");
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    let drawn = browser.text("body");
    assert!(drawn.contains("redis-server"), "{drawn}");
    browser.set_viewport_size(1000, 660);
    screenshot(&browser, "flamegraph");
}

/// Readers on a slow line wait for them.
#[test]
fn pictures_of_readme_and_book_are_small() {
    let pages = ["README.md", "docs/src/start.md", "docs/src/serve.md"];
    let texts = pages.map(|page| fs::read_to_string(source(page)).unwrap());
    let pictures = texts
        .iter()
        .flat_map(|text| text.split("pictures/").skip(1));
    let pictures: Vec<_> = pictures
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .collect();
    assert_eq!(pictures, ["page.png", "flamegraph.png", "page.png"]);
    for picture in pictures {
        let bytes = fs::read(source("docs/src/pictures").join(picture)).unwrap();
        assert!(bytes.starts_with(b"\x89PNG"), "{picture}");
        assert!(bytes.len() < 150_000, "{picture}: {} bytes", bytes.len());
    }
}
