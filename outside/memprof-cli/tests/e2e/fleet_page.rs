//! The page of a store, driven in a real browser over profiles of real processes.

use webdriver::Browser;

use crate::curl::curl;
use crate::fleet::Fleet;
use crate::page::{is_quiet, screenshot};
use crate::server::Server;

#[test]
fn page_links_service_to_leaking_function() {
    let fleet = Fleet::start();
    fleet.until_grown();
    let server = Server::start(&fleet.path("run"), &["--store", &fleet.store()]);
    let browser = Browser::open();
    browser.navigate(&server.address);
    browser.wait_for("document.querySelectorAll('#service-rows tr').length === 1");
    let service = browser.text("#service-rows tr");
    let expected = format!("@{} 3 ", fleet.service);
    assert!(service.starts_with(&expected), "{service}");
    let leaking = fleet.processes[2].pid();
    let grown = browser.text("#growth-rows tr:first-child");
    let expected = format!("/{leaking} {}", fleet.service);
    assert!(grown.contains(&expected), "{grown}");
    screenshot(&browser, "fleet_overview");

    // All processes together, and the line of the time.
    browser.click("#service-rows td:first-child a");
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    let heading = browser.text("#heading");
    assert!(heading.starts_with("inuse_space: "), "{heading}");
    let trend = browser.text("#trend");
    assert!(trend.contains("a click on the line"), "{trend}");
    screenshot(&browser, "fleet_flamegraph");
    browser.click("#tab-table");
    browser.wait_for(
        "document.querySelector('#panel-table').textContent.includes('remember_visitor')",
    );

    // What one build holds more than the other.
    browser.click("#back");
    browser.wait_for("!document.querySelector('#overview').hidden");
    browser.run_script("[...document.querySelectorAll('#service-rows a')].at(-1).click()");
    browser.wait_for("document.querySelector('#heading')?.textContent.includes('changed by')");
    let kinds = browser.run_script("return document.querySelectorAll('.kind').length");
    assert_eq!(kinds, 4);
    let changed = browser.text(".kind.new") + &browser.text(".kind.gone");
    assert!(changed.contains('1'), "{changed}");
    screenshot(&browser, "fleet_diff");

    // The same as files; the page that is one file runs its own script only.
    let downloads = "[...document.querySelectorAll('#downloads a')]";
    let statuses = browser.run_async_script(&format!(
        "Promise.all({downloads}.map(async link => (await fetch(link.href)).status)).then(done);"
    ));
    assert_eq!(statuses, serde_json::json!([200, 200, 200, 200]));
    is_quiet(&browser, &server.address);
}

#[test]
fn hour_without_profiles_is_reported() {
    let fleet = Fleet::start();
    fleet.memprof(&["agent", "--once"]).exits(0);
    let server = Server::start(&fleet.path("run"), &["--store", &fleet.store()]);
    let browser = Browser::open();
    browser.navigate(&format!("{}#at=2020-01-01T00:00:00Z", server.address));
    browser.wait_for("document.querySelector('#notice').textContent.includes('there is no profile of the fleet')");
    let empty = curl(&server.address, "H/api/v1/services?at=2020-01-01T00:00:00Z");
    assert_eq!(empty.is(404).json()["error"]["kind"], "no_data");
}
