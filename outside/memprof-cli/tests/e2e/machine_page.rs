//! The page of the machine's processes, in a real browser: from the list to a profile, its callers and proven leaks.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use testkit::processes::plugin_threads;
use webdriver::Browser;

use crate::curl::curl;
use crate::page::{is_quiet, screenshot};
use crate::page_layout::suits_every_window;
use crate::prove_sampled::losing;
use crate::server::Server;

/// Finds a process on the page, and starts an action for it. The filter alone does not select it: command lines of other
/// processes may contain the pid's digits.
fn start_job(browser: &Browser, pid: u32, action: &str) {
    browser.type_text("#filter", &pid.to_string());
    let button = format!("#process-rows [data-action={action}][aria-label$=\", pid {pid}\"]");
    browser.wait_for(&format!("document.querySelector('{button}')"));
    browser.click(&button);
}

#[test]
fn process_is_recorded_and_searched_in_five_clicks() {
    let (_place, mut process) = losing();
    let sockets = tempfile::tempdir().unwrap();
    fs::set_permissions(sockets.path(), Permissions::from_mode(0o700)).unwrap();
    let server = Server::start(sockets.path(), &[]);
    let browser = Browser::open();
    let address = format!("{}machine/", server.address);
    browser.navigate(&address);
    browser.wait_for("document.querySelector('#process-rows tr')");
    screenshot(&browser, "machine");
    start_job(&browser, process.pid, "record");
    assert!(browser.text("#listed").contains(", seen "));
    browser.wait_for("document.querySelector('#job-rows progress[value]')");
    screenshot(&browser, "machine_recording");
    browser.wait_for("document.querySelector('#job-rows a')");
    suits_every_window(&browser, "machine_recorded");
    browser.click("#job-rows a");
    let row = "[...document.querySelectorAll('tr[aria-rowindex]')].find(row => row.textContent.includes('lose_report'))";
    browser.wait_for("document.querySelector('#tab-table')");
    screenshot(&browser, "machine_profile");
    browser.click("#tab-table");
    browser.wait_for(row);
    // As the browser's button does, but without the filter that it fills in.
    browser.navigate(&address);
    browser.wait_for("document.querySelector('#process-rows tr')");
    start_job(&browser, process.pid, "leaks");
    browser.wait_for("document.querySelector('#job-rows li:first-child progress')");
    browser.wait_for("document.querySelector('#job-rows li:first-child a')");
    browser.click("#job-rows li:first-child a");
    browser.wait_for(row);
    screenshot(&browser, "machine_leaks");
    is_quiet(&browser, &server.address);
    assert!(plugin_threads(process.pid).unwrap().is_empty());
    process.is_unharmed();
}

#[test]
fn cancelled_job_leaves_the_process_as_it_was() {
    let (_place, mut process) = losing();
    let sockets = tempfile::tempdir().unwrap();
    fs::set_permissions(sockets.path(), Permissions::from_mode(0o700)).unwrap();
    let server = Server::start(sockets.path(), &[]);
    let browser = Browser::open();
    browser.navigate(&format!("{}machine/", server.address));
    browser.wait_for("document.querySelector('#process-rows tr')");
    start_job(&browser, process.pid, "record");
    browser.wait_for("document.querySelector('#job-rows progress[value]')");
    browser.click("#job-rows button");
    browser.wait_for("document.querySelector('#job-rows').textContent.includes('was cancelled')");
    assert!(plugin_threads(process.pid).unwrap().is_empty());
    process.is_unharmed();
}

#[test]
fn job_of_another_site_or_of_another_process_is_refused() {
    let (_place, process) = losing();
    let sockets = tempfile::tempdir().unwrap();
    fs::set_permissions(sockets.path(), Permissions::from_mode(0o700)).unwrap();
    let server = Server::start(sockets.path(), &[]);
    let body = format!(
        r#"{{"pid":{},"name":"target","action":"attach"}}"#,
        process.pid
    );
    let check = |headers: &str, body: &str, expected: u16| {
        let args = format!("{headers} -d {body} H/machine/api/v1/jobs");
        curl(&server.address, args.trim_start()).is(expected);
        assert!(plugin_threads(process.pid).unwrap().is_empty());
    };
    check("-H origin:http://evil.example", &body, 403);
    check("-H sec-fetch-site:cross-site", &body, 403);
    check("-H host:evil.example", &body, 421);
    check("", &body.replace("target", "redis-server"), 404);
    check("", &body.replace("attach", "kill"), 400);
    check("", "{}", 400);
    // A server of one host, or for other machines, has no such page.
    let one = Server::start(sockets.path(), &["-t", &process.pid.to_string()]);
    curl(&one.address, "H/machine/api/v1/processes").is(404);
}
