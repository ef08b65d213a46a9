//! The page, driven in a real browser. What it looks like lies in `target/screenshots` afterwards.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use webdriver::Browser;

use crate::dist::{dist, source};
use crate::host::{Host, Setup};
use crate::memprof::memprof;
use crate::server::Server;

/// Names that run code in a page which takes a symbol for markup.
pub(crate) const HOSTILE: [&str; 10] = [
    "<img src=x onerror=top.pwned=1>",
    "<script>top.pwned=1</script>",
    "</script><script>top.pwned=1</script>",
    "\"><svg onload=top.pwned=1>",
    "javascript:top.pwned=1",
    "';top.pwned=1;'",
    "${top.pwned=1}`",
    "&lt;img src=x onerror=top.pwned=1&gt;",
    "<iframe srcdoc='<script>top.pwned=1</script>'>",
    "]]></style><style>*{display:none}",
];

pub(crate) fn host() -> Host {
    Setup::of("rust_host").start()
}

pub(crate) fn server(host: &Host) -> Server {
    // Others may run on this machine.
    Server::start(&host.socket_dir(), &["-t", host.socket().to_str().unwrap()])
}

/// Saves a screenshot as `target/screenshots/NAME.png`.
pub(crate) fn screenshot(browser: &Browser, name: &str) {
    let directory = source("target/screenshots");
    fs::create_dir_all(&directory).unwrap();
    browser.screenshot(&directory.join(format!("{name}.png")));
}

/// Puts a dump among those that the host keeps, and returns its id.
pub(crate) fn keep(host: &Host, dump: &str) -> &'static str {
    const ID: &str = "20260102T030405Z.4242.1.0a1b2c3d";
    host.memprof("dump", &[]).exits(0);
    let file = host.dump_dir().join(format!("{ID}.heap"));
    fs::write(&file, dump).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    ID
}

/// Puts a dump of seven functions among those that the host keeps, and returns its id.
fn keep_named(host: &Host) -> &'static str {
    let named = source("outside/memprof-report/tests/named.heap");
    keep(host, &fs::read_to_string(named).unwrap())
}

/// A dump of one function for each name.
pub(crate) fn dump_of_names(names: &[String]) -> String {
    let address = |index: usize| 0x1001 + 16 * index;
    let of = |line: &dyn Fn(usize, &String) -> String| -> String {
        let lines = names.iter().enumerate();
        lines.map(|(index, name)| line(index, name)).collect()
    };
    let symbols = of(&|index, name| format!("{:#018x} {name}\n", address(index) - 1));
    let stacks = of(&|index, _| format!("@ {:#x}\n  t*: 1: 4096 [0: 0]\n", address(index)));
    let (count, bytes) = (names.len(), 4096 * names.len());
    format!(
        "--- symbol\nbinary=/usr/bin/x\n{symbols}---\n--- heap\nheap_v2/512\n  t*: {count}: {bytes} [0: 0]\n\
         {stacks}\nMAPPED_LIBRARIES:\n00001000-00080000 r-xp 00000000 fe:00 1 /usr/bin/x\n"
    )
}

/// Faults of a loaded page: complaints in the console, requests elsewhere.
#[track_caller]
pub(crate) fn is_quiet(browser: &Browser, address: &str) {
    // A browser names each reply that is no success: that a profile is empty is one.
    let complaints = browser.take_console_messages().into_iter();
    let complaints: Vec<_> = complaints
        .filter(|line| !line.ends_with("status of 409 (Conflict)"))
        .collect();
    assert_eq!(complaints, [""; 0]);
    let elsewhere: Vec<_> = browser
        .take_requests()
        .into_iter()
        .filter(|request| !request.starts_with(address) && !request.starts_with("data:"))
        .collect();
    assert_eq!(elsewhere, [""; 0]);
}

#[test]
fn two_dumps_are_taken_and_compared() {
    let host = host();
    let server = server(&host);
    let browser = Browser::open();
    browser.navigate(&server.address);
    browser.wait_for("document.querySelector('#resident').textContent.endsWith('resident')");
    assert_eq!(
        browser.text("#name"),
        format!("rust_host, pid {}", host.pid())
    );
    assert_eq!(browser.text("#state"), "not sampling");
    browser.click("#start");
    browser.wait_for("document.querySelector('#state').textContent === 'sampling'");
    assert!(browser.text("#sampling").contains("ends by itself in "));
    // Every row of the ledger has a name and a colour here.
    let plain = "[...document.querySelectorAll('#bar div')].filter(part =>
        getComputedStyle(part).backgroundColor === 'rgba(0, 0, 0, 0)' || !/^[A-Z]/.test(part.title)).length";
    assert_eq!(browser.run_script(&format!("return {plain}")), 0);

    for count in 1..=2 {
        let before = host.dump_of(u64::from(count == 2) << 20);
        browser.click("#take");
        browser.wait_for(&format!(
            "document.querySelectorAll('#dump-rows tr').length > {count}"
        ));
        browser.wait_for(
            "document.querySelector('#notice').textContent.includes('The dump is taken: ')",
        );
        assert_ne!(before["id"], Value::Null);
    }
    screenshot(&browser, "overview");

    // The newest against the oldest: one click.
    browser.click("#dump-rows tr:first-child a:nth-of-type(2)");
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    let heading = browser.text("#heading");
    assert!(heading.contains("inuse_space: changed by"), "{heading}");
    let kinds = browser
        .run_script("return [...document.querySelectorAll('.kind')].map(kind => kind.textContent)");
    assert_eq!(kinds.as_array().unwrap().len(), 4, "{kinds}");
    screenshot(&browser, "diff_flamegraph");

    browser.click("#tab-table");
    let rows = "document.querySelectorAll('#panel-table tbody tr[aria-rowindex]')";
    browser.wait_for(&format!("{rows}.length > 0"));
    let first = browser.text("#panel-table tbody tr[aria-rowindex='2'] td.change");
    assert!(first.starts_with('▲') || first.starts_with('▼'), "{first}");
    screenshot(&browser, "diff_table");
    // What grew, alone; and all again.
    let rows = "Number(document.querySelector('#panel-table table').ariaRowCount) - 1";
    let all = browser.run_script(&format!("return {rows}"));
    browser.click(".kind.grew");
    browser.wait_for(&format!(
        "document.querySelector('.kind.grew').textContent === `▲ ${{{rows}}} grew`"
    ));
    browser.click("#whole");
    assert_eq!(browser.run_script(&format!("return {rows}")), all);
    browser.click("#tab-tree");
    browser.wait_for("document.querySelector('#panel-tree [role=treegrid] tr[aria-level=\"2\"]')");
    screenshot(&browser, "diff_tree");

    // The same address shows the same again, and other numbers of the same dumps.
    let address = browser.run_script("return location.href");
    assert!(address.as_str().unwrap().contains("show=tree"), "{address}");
    browser.navigate("about:blank");
    browser.navigate(address.as_str().unwrap());
    browser.wait_for("document.querySelector('#tab-tree').ariaSelected === 'true'");
    assert_eq!(browser.text("#heading"), heading);
    browser.run_script(
        "const type = document.querySelector('#type'); type.value = 'inuse_objects';
        type.dispatchEvent(new Event('change'));",
    );
    browser
        .wait_for("document.querySelector('#heading')?.textContent.startsWith('inuse_objects: ')");

    let downloads = "[...document.querySelectorAll('#downloads a')]";
    let names = browser.run_script(&format!(
        "return {downloads}.map(link => link.textContent).join()"
    ));
    assert_eq!(names, "pprof,collapsed,SVG,HTML,heap");
    let statuses = browser.run_async_script(&format!(
        "Promise.all({downloads}.map(async link => (await fetch(link.href)).status)).then(done);"
    ));
    assert_eq!(statuses, serde_json::json!([200, 200, 200, 200, 200]));
    is_quiet(&browser, &server.address);
}

#[test]
fn first_screen_names_the_largest_functions() {
    let host = host();
    // Newer than nothing of this process, and of another one: it is not what is asked for.
    keep_named(&host);
    host.memprof("activate", &[]).exits(0);
    host.dump_of(4 << 20);
    let server = server(&host);
    let browser = Browser::open();
    browser.navigate(&server.address);
    browser.wait_for("document.querySelectorAll('#holder-rows tr').length");
    screenshot(&browser, "first_screen");
    let first = browser.text("#holder-rows tr:first-child td:first-child");
    assert!(first.contains("grow_cache"), "{first}");
    let rows = browser.run_script("return document.querySelectorAll('#holder-rows tr').length");
    assert!((1..=10).contains(&rows.as_u64().unwrap()), "{rows}");
    let share = browser.text("#holder-rows tr:first-child td:last-child");
    assert!(share.ends_with(" %"), "{share}");
    let end = "document.querySelector('#holders').getBoundingClientRect().bottom";
    let is_seen = browser.run_script(&format!("return {end} <= window.innerHeight"));
    assert_eq!(is_seen, true);
    is_quiet(&browser, &server.address);
}

#[test]
fn inactive_host_is_dumped_by_one_click() {
    let host = host();
    let server = server(&host);
    let browser = Browser::open();
    browser.navigate(&server.address);
    browser.wait_for("document.querySelector('#take').textContent === 'Sample, and take a dump'");
    browser.wait_for("document.querySelector('#holders-note').textContent");
    let words = browser.text("#holders-note");
    assert!(words.starts_with("No dump of this process yet"), "{words}");
    let cost = browser.text("#take-cost");
    assert!(
        cost.contains("Samples for 10 minutes") && cost.contains("of each 4 KiB"),
        "{cost}"
    );
    screenshot(&browser, "no_dump_yet");
    browser.click("#take");
    browser.wait_for("document.querySelectorAll('#holder-rows tr').length");
    assert_eq!(browser.text("#state"), "sampling");
    let first = browser.text("#holder-rows tr:first-child td:first-child");
    assert!(first.contains("grow_cache"), "{first}");
    browser.wait_for("document.querySelector('#take').textContent === 'Take a dump'");
    is_quiet(&browser, &server.address);
}

#[test]
fn dump_is_compared_with_an_older_one() {
    let host = host();
    let other = keep_named(&host);
    host.memprof("activate", &[]).exits(0);
    let ids: Vec<_> = (0..3)
        .map(|_| host.dump_of(1)["id"].as_str().unwrap().to_owned())
        .collect();
    let server = server(&host);
    let browser = Browser::open();
    browser.navigate(&server.address);
    browser.wait_for("document.querySelectorAll('#dump-rows tr').length > 4");
    let bases = || {
        browser.run_script(
            "return Object.fromEntries([...document.querySelectorAll('#dump-rows a')].map(link =>
            new URLSearchParams(link.hash.slice(1))).filter(state => state.has('base')).map(state =>
            [state.get('view'), state.get('base')]))",
        )
    };
    let before = bases();
    assert_eq!(before[&ids[2]], ids[1]);
    assert_eq!(before[&ids[1]], ids[0]);
    // Neither has another process's dump a base, nor is it one.
    assert_eq!(before[other], Value::Null);
    let is_other = |base: &Value| base == other;
    assert!(
        !before.as_object().unwrap().values().any(is_other),
        "{before}"
    );
    // An older one may be chosen: what is not newer has none then.
    browser.run_script(&format!(
        "const base = document.querySelector('#base'); base.value = '{}';
        base.dispatchEvent(new Event('change'));",
        ids[1]
    ));
    let chosen = bases();
    assert_eq!(chosen.as_object().unwrap().len(), 1, "{chosen}");
    assert_eq!(chosen[&ids[2]], ids[1]);
    browser.click("#dump-rows tr:first-child a:nth-of-type(2)");
    browser.wait_for("document.querySelector('#since').value");
    let offered = browser
        .run_script("return [...document.querySelectorAll('#since option')].map(one => one.value)");
    assert!(
        !offered.as_array().unwrap().iter().any(is_other),
        "{offered}"
    );
}

#[test]
fn zoom_search_and_keys() {
    let host = host();
    let id = keep_named(&host);
    let server = server(&host);
    let browser = Browser::open();
    browser.navigate(&format!("{}#view={id}", server.address));
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    let details = || browser.text("#details");
    assert!(details().starts_with("total: "), "{}", details());

    // `/` finds the search, Enter the next place, Escape ends it.
    browser.type_text("body", "/");
    browser.wait_for("document.activeElement.id === 'search'");
    browser.type_text("#search", "^read_body$");
    browser.wait_for("document.querySelector('#found').textContent.endsWith(' in 1 place')");
    browser.type_text("#search", "\u{e007}");
    assert!(details().starts_with("read_body: "), "{}", details());
    browser.type_text("#search", "\u{e00c}");
    browser.wait_for("document.querySelector('#search').value === ''");

    // Down from the root to main, and into it.
    browser.type_text("#panel-flamegraph", "\u{e015}\u{e015}\u{e007}");
    let zoomed = browser.wait_for(
        "document.querySelector('#panel-flamegraph').dataset.drawn !== '0'
        && document.querySelector('#panel-flamegraph').dataset.drawn",
    );
    let address = browser.run_script("return location.hash");
    assert!(
        address
            .as_str()
            .unwrap()
            .contains(&format!("zoom={}", zoomed.as_str().unwrap()))
    );
    browser.type_text("#panel-flamegraph", "\u{e00c}");
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");

    // A click on main, the second row, zooms too.
    browser.run_script(
        "const canvas = document.querySelector('canvas');
        const { left, top } = canvas.getBoundingClientRect();
        canvas.dispatchEvent(new MouseEvent('click', { clientX: left + 9, clientY: top + 30 }));",
    );
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '1'");
    assert!(details().starts_with("main: "), "{}", details());

    // Every column sorts, both ways.
    browser.click("#tab-table");
    browser.click("#panel-table th.name button");
    let names = "return [...document.querySelectorAll('#panel-table tbody td.name')].map(cell => cell.textContent)";
    let rising = browser.run_script(names);
    browser.click("#panel-table th.name button");
    let mut falling = browser.run_script(names);
    falling.as_array_mut().unwrap().reverse();
    assert_eq!(rising, falling);
    assert_eq!(rising.as_array().unwrap().len(), 6);
    is_quiet(&browser, &server.address);
}

#[test]
fn hostile_names_are_escaped() {
    let host = host();
    let names = HOSTILE
        .iter()
        .flat_map(|name| (10..30).map(move |n| format!("{name}{n}")));
    let mut names: Vec<_> = names.collect();
    let id = keep(&host, &dump_of_names(&names));
    names.sort();
    let server = server(&host);
    let report = host.place().join("report.html");
    let file = host.dump_dir().join(format!("{id}.heap"));
    let (file, out) = (file.to_str().unwrap(), report.to_str().unwrap());
    let args = [
        "report",
        file,
        "--no-symbols",
        "--format",
        "html",
        "-o",
        out,
    ];
    memprof(&host.socket_dir(), &args).exits(0);
    let browser = Browser::open();
    let served = format!("{}api/v1/dumps/{id}?format=html", server.address);
    for (name, address, own) in [
        (
            "page",
            format!("{}#view={id}&show=table", server.address),
            &server.address,
        ),
        ("served", format!("{served}#show=table"), &served),
        (
            "file",
            format!("file://{out}#show=table"),
            &format!("file://{out}"),
        ),
    ] {
        browser.navigate("about:blank");
        // What the page before asked for last.
        drop(browser.take_requests());
        browser.navigate(&address);
        // The rows out of sight come into the document as the box grows.
        browser.set_viewport_size(1280, 200 * 26 + 900);
        browser.wait_for("document.querySelectorAll('#panel-table td.name').length === 200");
        let cells = browser.run_script("return [...document.querySelectorAll('#panel-table td.name')].map(cell => cell.textContent).sort()");
        assert_eq!(cells, serde_json::json!(names));
        let elements = "img, iframe, #viewer svg, main script, main style, header script";
        let made = browser.run_script(&format!(
            "return document.querySelectorAll('{elements}').length"
        ));
        assert_eq!(made, 0);
        assert_eq!(browser.run_script("return top.pwned ?? null"), Value::Null);
        browser.set_viewport_size(1280, 900);
        browser.type_text("body", "/");
        browser.type_text("#search", "onerror.*10");
        browser.wait_for("document.querySelectorAll('#panel-table td.name').length === 2");
        browser.click("#tab-tree");
        browser.wait_for("document.querySelector('#panel-tree td.hit')");
        screenshot(&browser, &format!("hostile_{name}"));
        is_quiet(&browser, own);
    }
    let drawing = format!("{}api/v1/dumps/{id}?format=flamegraph", server.address);
    browser.navigate("about:blank");
    drop(browser.take_requests());
    browser.navigate(&drawing);
    // Its own script makes its frames zoom.
    let reset = "document.querySelector('#unzoom').classList.contains('hide')";
    browser.wait_for(reset);
    browser.run_script(
        "document.querySelector('#frames g:last-child rect')
            .dispatchEvent(new MouseEvent('click', { bubbles: true }));",
    );
    browser.wait_for(&format!("!{reset}"));
    is_quiet(&browser, &drawing);
}

#[test]
fn ended_host_is_reported_and_found_again() {
    let name = format!("phoenix_{}", std::process::id());
    let named = format!("[control]\nname = {name:?}\n");
    let mut host = Setup::of("rust_host").more(&named).start();
    let server = Server::start(&host.socket_dir(), &["-t", &name]);
    let browser = Browser::open();
    browser.navigate(&server.address);
    browser.wait_for("document.querySelector('#resident').textContent");
    host.signal(Signal::SIGSTOP);
    browser.wait_for("!document.querySelector('#gone').hidden");
    host.signal(Signal::SIGCONT);
    browser.wait_for("document.querySelector('#gone').hidden");
    host.terminate();
    browser.wait_for("!document.querySelector('#gone').hidden");
    let words = browser.text("#gone");
    assert!(
        words.starts_with(&format!("{name} (pid {}) does not answer", host.pid())),
        "{words}"
    );
    assert_eq!(browser.text("#state"), "does not answer");
    screenshot(&browser, "host_gone");
    let again = Setup::of("rust_host")
        .more(&named)
        .sockets(&host.socket_dir())
        .start();
    browser.wait_for("document.querySelector('#gone').hidden");
    assert_eq!(
        browser.text("#name"),
        format!("{name}, pid {}", again.pid())
    );
    drop(server);
    browser.wait_for("!document.querySelector('#gone').hidden");
    assert!(
        browser
            .text("#gone")
            .starts_with("The server behind this page, memprof serve, does not answer")
    );
}

#[test]
fn one_of_several_hosts_is_chosen() {
    let one = host();
    let other = Setup::of("c_host").sockets(&one.socket_dir()).start();
    let server = Server::start(&one.socket_dir(), &[]);
    let browser = Browser::open();
    browser.navigate(&server.address);
    // Others may run on this machine.
    let link = |host: &Host| format!("#host-rows a[href='host/{}/']", host.pid());
    let both = format!(
        "document.querySelector(\"{}\") && document.querySelector(\"{}\")",
        link(&one),
        link(&other)
    );
    browser.wait_for(&both);
    screenshot(&browser, "hosts");
    browser.click(&link(&other));
    browser.wait_for("document.querySelector('#resident').textContent");
    assert_eq!(
        browser.text("#name"),
        format!("c_host, pid {}", other.pid())
    );
    browser.click("#all");
    browser.wait_for(&both);
    is_quiet(&browser, &server.address);
}

#[test]
fn token_in_the_path_precedes_every_request() {
    let host = host();
    let id = keep_named(&host);
    let token = "0123456789abcdef0123456789abcdef";
    let file = host.place().join("token");
    fs::write(&file, token).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let server = Server::start(
        &host.socket_dir(),
        &[
            "-t",
            host.socket().to_str().unwrap(),
            "--token-file",
            file.to_str().unwrap(),
        ],
    );
    let browser = Browser::open();
    let address = format!("{}t/{token}/", server.address);
    browser.navigate(&format!("{address}#view={id}"));
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    browser.click("#back");
    browser.wait_for("document.querySelector('#resident').textContent");
    is_quiet(&browser, &address);
}

#[test]
fn unprofilable_host_shows_the_remedy() {
    let host = Setup::that_cannot_profile("rust_host").start();
    let server = server(&host);
    let browser = Browser::open();
    browser.navigate(&server.address);
    browser.wait_for("document.querySelector('#finding-rows li.error')");
    assert_eq!(browser.text("#findings-title"), "What is wrong");
    let words = browser.text("#findings");
    assert!(
        words.contains("What helps: ") && words.contains("prof:true"),
        "{words}"
    );
    assert_eq!(
        browser.run_script("return document.querySelector('#take').disabled"),
        true
    );
    screenshot(&browser, "cannot_profile");
}

#[test]
fn narrow_and_dark_window_shows_everything() {
    let host = host();
    let id = keep_named(&host);
    let server = server(&host);
    let browser = Browser::open();
    browser.set_viewport_size(400, 800);
    browser.set_dark_mode(true);
    let fits = || {
        let width = browser.run_script("return document.documentElement.scrollWidth");
        let wide = "return [...document.querySelectorAll('body *')]
            .filter(one => one.scrollWidth > one.clientWidth && one.clientWidth > 0)
            .map(one => one.outerHTML.slice(0, 200))";
        assert!(
            width.as_u64().unwrap() <= 400,
            "{width}: {}",
            browser.run_script(wide)
        );
    };
    browser.navigate(&server.address);
    browser.wait_for("document.querySelector('#resident').textContent");
    fits();
    screenshot(&browser, "narrow_overview");
    browser.navigate(&format!("{}#view={id}", server.address));
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    for show in ["flamegraph", "table", "tree"] {
        browser.click(&format!("#tab-{show}"));
        fits();
        screenshot(&browser, &format!("narrow_{show}"));
    }
    browser.set_viewport_size(1280, 900);
    browser.click("#tab-flamegraph");
    screenshot(&browser, "dark_flamegraph");
    let dark = browser.run_script("return getComputedStyle(document.body).backgroundColor");
    browser.set_dark_mode(false);
    let light = browser.run_script("return getComputedStyle(document.body).backgroundColor");
    assert_ne!(dark, light);
}

#[test]
fn automatic_dumps_appear() {
    let rules = "[[plugin.config.watch]]\nrss_growth = \"1MiB\"\nmin_interval = \"0s\"";
    let host = Setup::of("rust_host").config(rules).start();
    let server = server(&host);
    let browser = Browser::open();
    browser.navigate(&server.address);
    browser
        .wait_for("document.querySelector('#rules').textContent.includes('rss_growth = \"1MiB\"')");
    host.memprof("activate", &[]).exits(0);
    browser.wait_for("document.querySelector('#dump-rows td:nth-child(3)').textContent === 'grew'");
    let resident = browser.text("#dump-rows td:nth-child(4)");
    assert!(resident.ends_with(" MiB"), "{resident}");
    is_quiet(&browser, &server.address);
}

#[test]
fn address_of_an_unknown_dump_is_reported() {
    let host = host();
    let server = server(&host);
    let browser = Browser::open();
    browser.navigate(&format!(
        "{}#view=20200101T000000Z.1.1.00000000",
        server.address
    ));
    browser.wait_for(
        "document.querySelector('#loading').textContent.startsWith('no kept dump has the id')",
    );
    browser.click("#back");
    browser.wait_for("!document.querySelector('#overview').hidden");
}

/// `memprof` with a browser, and one without.
#[test]
fn reports_open_in_a_browser_or_print_their_path() {
    let host = host();
    let place = host.place();
    let opened = place.join("opened");
    assert!(
        Command::new("mkfifo")
            .arg(&opened)
            .status()
            .unwrap()
            .success()
    );
    let browser = place.join("browser");
    fs::write(
        &browser,
        format!("#!/bin/sh\necho \"$1\" > {}\n", opened.display()),
    )
    .unwrap();
    fs::set_permissions(&browser, Permissions::from_mode(0o700)).unwrap();
    let pages = place.join("pages");
    fs::create_dir(&pages).unwrap();
    let (named, pid) = (
        source("outside/memprof-report/tests/named.heap"),
        host.pid().to_string(),
    );
    host.memprof("activate", &[]).exits(0);
    host.dump_of(1);
    let is_page = |path: &str| {
        let page = fs::read_to_string(path.trim_end()).unwrap();
        assert!(path.starts_with(pages.to_str().unwrap()), "{path}");
        assert!(page.starts_with("<!doctype html>"), "{page}");
    };
    for args in [
        &["report", "--no-symbols", "--open", named.to_str().unwrap()][..],
        &["dump", "-t", &pid, "--open"],
        &["record", "-t", &pid, "--for", "1ms", "--open"],
    ] {
        let mut memprof = Command::new(dist("bin/memprof"));
        memprof
            .args(args)
            .env("MEMPROF_SOCKET_DIR", host.socket_dir())
            .env("TMPDIR", &pages)
            .env_remove("DISPLAY")
            .env_remove("WAYLAND_DISPLAY");
        let alone = memprof.env_remove("BROWSER").output().unwrap();
        let stdout = String::from_utf8(alone.stdout).unwrap();
        is_page(stdout.lines().last().unwrap_or_else(|| panic!("{args:?}")));
        memprof.env("BROWSER", format!("/nowhere/browser:{}", browser.display()));
        let with = memprof.output().unwrap();
        is_page(&fs::read_to_string(&opened).unwrap());
        let notes = String::from_utf8(with.stderr).unwrap();
        assert!(
            notes.contains("note: failed to start /nowhere/browser: No such file"),
            "{notes}"
        );
    }
    let named = named.to_str().unwrap();
    let run = memprof(
        &host.socket_dir(),
        &["report", "--open", "--format", "text", named],
    )
    .exits(2);
    assert_eq!(
        run.stderr,
        "memprof: --open shows html, no other --format\n"
    );
}
