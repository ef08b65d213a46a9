//! Every page in windows of a desktop, a tablet and a telephone, light and dark, with hostile and long names: nothing
//! is wider than the window, and axe finds nothing. The keyboard alone suffices.

use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;
use webdriver::Browser;

use crate::dist::dist;
use crate::fleet::Fleet;
use crate::host::Setup;
use crate::memprof::memprof;
use crate::page::{self, HOSTILE, dump_of_names, keep, screenshot, server};
use crate::processes::Process;
use crate::server::Server;

const WIDTHS: [u32; 3] = [1400, 800, 390];

/// Checks the page that the browser shows in every window, and keeps pictures of it.
#[track_caller]
pub(crate) fn suits_every_window(browser: &Browser, name: &str) {
    for width in WIDTHS {
        browser.set_viewport_size(width, 900);
        for dark in [false, true] {
            browser.set_dark_mode(dark);
            let light = if dark { "dark" } else { "light" };
            screenshot(browser, &format!("layout_{name}_{width}_{light}"));
            let drawn = browser.run_script("return document.documentElement.scrollWidth");
            let wide = browser.run_script(
                "return [...document.querySelectorAll('body *')]
                    .filter(one => one.getBoundingClientRect().right > innerWidth)
                    .map(one => one.outerHTML.slice(0, 200))",
            );
            let found = browser.accessibility_findings();
            let is_right = drawn.as_u64().unwrap() <= u64::from(width) && found.is_empty();
            assert!(
                is_right,
                "{name} {width} {light}: {drawn} wide, {wide}, {found:#?}"
            );
        }
    }
    browser.set_viewport_size(1280, 900);
    browser.set_dark_mode(false);
}

/// Names that no line holds: with spaces, without them, and hostile ones.
fn names() -> Vec<String> {
    let long = "a_function_whose_name_has_no_end_".repeat(40);
    let template = "std::map<std::string, std::vector<int>>::".repeat(30);
    let hostile = HOSTILE.map(str::to_owned);
    hostile.into_iter().chain([long, template]).collect()
}

#[test]
fn list_of_hosts() {
    let stopped = page::host();
    let mut command = Command::new(dist("bin/memprof"));
    command.args(["run", "--active", "--", "/usr/bin/python3", "-c"]);
    command.arg("import sys\nprint('ready', flush=True)\nfor line in sys.stdin: pass");
    command.env("MEMPROF_SOCKET_DIR", stopped.socket_dir());
    let _long = Process::start(command, &[&"x".repeat(8000), HOSTILE[0]]);
    let other = Setup::of("c_host").sockets(&stopped.socket_dir()).start();
    let server = Server::start(&stopped.socket_dir(), &[]);
    let browser = Browser::open();
    browser.navigate(&server.address);
    let row = |pid: u32| {
        format!(
            "[...document.querySelectorAll('#host-rows tr')].find(row => row.cells[1].textContent === '{pid}')"
        )
    };
    browser.wait_for(&row(stopped.pid()));
    stopped.signal(Signal::SIGSTOP);
    browser.wait_for(&format!(
        "{}.textContent.includes('does not answer')",
        row(stopped.pid())
    ));
    // The others are still there.
    browser.wait_for(&format!("{}.querySelector('a')", row(other.pid())));
    browser.wait_for("document.querySelector('#host-rows').textContent.includes('xxxxxxxxxx')");
    suits_every_window(&browser, "hosts");
    stopped.signal(Signal::SIGCONT);
    browser.wait_for(&format!("{}.querySelector('a')", row(stopped.pid())));
}

#[test]
fn page_of_a_host_and_its_profiles() {
    let name = "n".repeat(60);
    let host = Setup::of("rust_host").more(&format!("[control]\nname = {name:?}\n"));
    let host = host.start();
    let id = keep(&host, &dump_of_names(&names()));
    host.memprof("activate", &[]).exits(0);
    host.dump_of(1 << 20);
    host.dump_of(1 << 20);
    let server = server(&host);
    let browser = Browser::open();
    browser.navigate(&server.address);
    browser.wait_for("document.querySelectorAll('#holder-rows tr').length");
    suits_every_window(&browser, "overview");
    browser.click("#take");
    browser.wait_for("!document.querySelector('#notice').hidden");
    suits_every_window(&browser, "notice");
    browser.click("#dump-rows tr:first-child a:nth-of-type(2)");
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    suits_every_window(&browser, "diff_flamegraph");
    browser.click("#tab-table");
    suits_every_window(&browser, "diff_table");
    browser.navigate(&format!("{}#view={id}", server.address));
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    for shown in ["flamegraph", "table", "tree"] {
        browser.click(&format!("#tab-{shown}"));
        suits_every_window(&browser, shown);
    }
    browser.navigate(&format!(
        "{}#view=20200101T000000Z.1.1.00000000",
        server.address
    ));
    browser.wait_for("document.querySelector('#loading').textContent.includes('no kept dump')");
    suits_every_window(&browser, "unknown_dump");
    drop(server);
    browser.click("#back");
    browser.wait_for("!document.querySelector('#gone').hidden");
    suits_every_window(&browser, "gone");
}

#[test]
fn page_of_a_host_that_cannot_be_profiled() {
    let host = Setup::that_cannot_profile("rust_host").start();
    let server = server(&host);
    let browser = Browser::open();
    browser.navigate(&server.address);
    browser.wait_for("document.querySelector('#finding-rows li.error')");
    suits_every_window(&browser, "cannot_profile");
}

#[test]
fn pages_of_the_fleet() {
    let fleet = Fleet::start();
    fleet.until_grown();
    let server = Server::start(&fleet.path("run"), &["--store", &fleet.store()]);
    let browser = Browser::open();
    browser.navigate(&server.address);
    browser.wait_for("document.querySelectorAll('#service-rows tr').length === 1");
    suits_every_window(&browser, "fleet");
    browser.click("#service-rows td:first-child a");
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    suits_every_window(&browser, "fleet_profile");
    browser.navigate(&format!("{}#at=2020-01-01T00:00:00Z", server.address));
    browser
        .wait_for("document.querySelector('#notice').textContent.includes('there is no profile')");
    let rows = browser.run_script("return document.querySelectorAll('tbody tr').length");
    assert_eq!(rows, 0, "rows of another time");
    suits_every_window(&browser, "fleet_empty");
}

#[test]
fn report_as_a_page() {
    let place = tempfile::tempdir().unwrap();
    let dump = place.path().join("hostile.heap");
    fs::write(&dump, dump_of_names(&names())).unwrap();
    let file = place.path().join("report.html");
    let args = ["report", "--no-symbols", "--format", "html", "-o"];
    let paths = [file.to_str().unwrap(), dump.to_str().unwrap()];
    memprof(place.path(), &[&args[..], &paths[..]].concat()).exits(0);
    let browser = Browser::open();
    browser.navigate(&format!("file://{}", file.display()));
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    for shown in ["flamegraph", "table", "tree"] {
        browser.click(&format!("#tab-{shown}"));
        suits_every_window(&browser, &format!("report_{shown}"));
    }
}

#[test]
fn keyboard_suffices() {
    let (tab, enter) = ("\u{e004}", "\u{e007}");
    let one = page::host();
    let other = Setup::of("c_host").sockets(&one.socket_dir()).start();
    let server = Server::start(&one.socket_dir(), &[]);
    let browser = Browser::open();
    browser.navigate(&server.address);
    let link = format!("a[href='host/{}/']", other.pid());
    browser.wait_for(&format!("document.querySelector(\"{link}\")"));
    // Types Tab until what a selector matches has the focus, and then a key.
    let type_at = |selector: &str, key: &str| {
        for _ in 0..100 {
            let is_there = format!("return document.activeElement.matches(\"{selector}\")");
            if browser.run_script(&is_there) == true {
                return browser.press_key(key);
            }
            browser.press_key(tab);
        }
        panic!("Tab does not reach {selector}");
    };
    type_at(&link, enter);
    browser.wait_for("document.querySelector('#resident').textContent");
    type_at("#start", enter);
    browser.wait_for("document.querySelector('#state').textContent === 'sampling'");
    type_at("#take", enter);
    browser.wait_for("document.querySelectorAll('#dump-rows tr').length");
    type_at("#dump-rows a", enter);
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    type_at("#tab-flamegraph", "\u{e014}");
    browser.wait_for("document.activeElement.id === 'tab-table'");
    type_at("#back", enter);
    browser.wait_for("!document.querySelector('#overview').hidden");
    type_at("#all", enter);
    browser.wait_for(&format!("document.querySelector(\"{link}\")"));
}
