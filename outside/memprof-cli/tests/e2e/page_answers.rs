//! How old memory is and whose, as the page draws it.

use serde_json::{Value, json};
use webdriver::Browser;

use crate::host::Host;
use crate::page::{host, is_quiet, keep, screenshot, server};
use crate::server::Server;

const MINUTES: u64 = 12;
/// When the dump was taken, in seconds since 1970.
const TAKEN: u64 = 6060;

/// An allocation at an address under a label, some minutes before the dump.
fn stack(address: &str, label: Option<u64>, minutes: u64, bytes: u64) -> String {
    let mark = |kind: u64, number: u64| format!(" {:#x}", kind << 40 | number << 1 | 1);
    let label = label.map(|set| mark(0x4d_5001, set)).unwrap_or_default();
    let birth = mark(0x4d_5002, TAKEN - 60 - 60 * minutes);
    format!("@ {address} 0x1f00{label}{birth}\n  t*: 1: {bytes} [0: 0]\n")
}

/// A leak of one route, a cache that loses half of what it holds each minute, of another route but for one entry,
/// and what the start loaded under no label.
fn dump() -> String {
    const SEARCH: Option<u64> = Some(1);
    const BUY: Option<u64> = Some(2);
    let mut stacks = stack("0x1201", None, MINUTES - 1, 40 << 10);
    let mut total = 40 << 10;
    for minutes in 0..MINUTES {
        let cached = (64 << 10) >> minutes;
        stacks += &stack("0x1301", BUY, minutes, cached);
        stacks += &stack("0x1401", SEARCH, minutes, 8 << 10);
        total += cached + (8 << 10);
    }
    stacks += &stack("0x1301", SEARCH, 0, 4 << 10);
    total += 4 << 10;
    let objects = 2 * MINUTES + 2;
    format!(
        "--- symbol\nbinary=/usr/bin/x\n0x0000000000001200 load_tables\n0x0000000000001300 fill_cache\n\
         0x0000000000001400 leak\n0x0000000000001eff main\n---\n--- heap\nheap_v2/1\n  t*: {objects}: {total} [0: 0]\n\
         {stacks}\nMAPPED_LIBRARIES:\n00001000-00080000 r-xp 00000000 fe:00 1 /usr/bin/x\n# ages: 60 {TAKEN}\n\
         # labels: route\n# label: 1 route=/search\n# label: 2 route=/buy\n"
    )
}

fn shown() -> (Host, Server, Browser) {
    let host = host();
    let id = keep(&host, &dump());
    let server = server(&host);
    let browser = Browser::open();
    browser.navigate(&format!("{}#view={id}", server.address));
    browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
    (host, server, browser)
}

/// Height of a line above its base for each age, young to old; 16 is the highest.
fn heights(browser: &Browser, path: &str) -> Vec<f64> {
    let script = format!(
        "const path = {path};
        if (path.getBoundingClientRect().width < 8 * {MINUTES}) throw new Error('it is not drawn');
        return [...path.getAttribute('d').matchAll(/V([0-9.]+)H/g)].map(match => 16 - match[1]);"
    );
    let heights = browser.run_script(&script);
    let heights: Vec<_> = heights
        .as_array()
        .unwrap()
        .iter()
        .map(Value::as_f64)
        .collect();
    heights.into_iter().map(Option::unwrap).collect()
}

/// The functions that the table shows, and what each allocated itself.
fn rows(browser: &Browser) -> Value {
    browser.wait_for("document.querySelector('#panel-table tbody tr[aria-rowindex] td.name')");
    browser.run_script(
        "const rows = [...document.querySelectorAll('#panel-table tbody tr[aria-rowindex]')];
        return rows.map(row => [row.querySelector('td.name').textContent, row.querySelector('td').textContent])
            .filter(([, own]) => own !== '0 B');",
    )
}

#[test]
fn start_cache_and_leak_are_drawn_as_three_shapes() {
    let (_host, server, browser) = shown();
    let lines = "return document.querySelectorAll('#survival path').length";
    assert_eq!(browser.run_script(lines), 1);
    let reported = browser.text("#survival");
    assert!(
        reported.ends_with("young to old, 60 s a step"),
        "{reported}"
    );
    let all = heights(&browser, "document.querySelector('#survival path')");
    assert_eq!(all.len() as u64, MINUTES);

    browser.click("#tab-table");
    browser.wait_for("document.querySelectorAll('#panel-table td.ages path').length === 4");
    let of = |function: &str| {
        let row = format!(
            "[...document.querySelectorAll('#panel-table tbody tr[aria-rowindex]')]
                .find(row => row.querySelector('td.name').textContent === '{function}')"
        );
        heights(&browser, &format!("{row}.querySelector('td.ages path')"))
    };
    assert_eq!(of("leak"), [16.0; MINUTES as usize]);
    let start = of("load_tables");
    let (oldest, younger) = start.split_last().unwrap();
    assert_eq!(*oldest, 16.0);
    assert!(younger.iter().all(|height| *height == 0.0), "{start:?}");
    let cache = of("fill_cache");
    assert_eq!(cache[0], 16.0);
    assert!(
        cache.is_sorted_by(|younger, older| younger >= older),
        "{cache:?}"
    );
    assert!(cache[4] < 1.1 && cache[11] < 0.1, "{cache:?}");
    let half = "[...document.querySelectorAll('#panel-table tbody tr[aria-rowindex]')]
        .map(row => [row.querySelector('td.name').textContent, row.querySelector('td.ages').textContent])";
    let half = browser.run_script(&format!("return Object.fromEntries({half})"));
    let is = |function: &str, age: &str| half[function].as_str().unwrap().ends_with(age);
    assert!(is("leak", "6 min"), "{half}");
    assert!(is("fill_cache", "60 s"), "{half}");
    assert!(is("load_tables", "12 min"), "{half}");
    screenshot(&browser, "ages_table");
    is_quiet(&browser, &server.address);
}

#[test]
fn chosen_label_shows_only_its_memory() {
    let (_host, server, browser) = shown();
    let choose = |value: &str, heading: &str, total: &str| {
        browser.click(&format!("#label option[value='{value}']"));
        let is_shown = "document.querySelector('#heading').textContent";
        browser.wait_for(&format!(
            "{is_shown}.startsWith('inuse_space: {heading} bytes')"
        ));
        // The root of the flamegraph is what there is in all.
        browser.click("#tab-flamegraph");
        browser.wait_for("document.querySelector('#panel-flamegraph').dataset.drawn === '0'");
        let details = browser.text("#details");
        assert!(
            details.starts_with(&format!("total: {total}, 100.0 %")),
            "{details}"
        );
        browser.click("#tab-table");
        rows(&browser)
    };
    let search = json!([["leak", "96 KiB"], ["fill_cache", "4 KiB"]]);
    assert_eq!(choose("route=/search", "102400", "100 KiB"), search);
    screenshot(&browser, "label_table");
    let address = browser.run_script("return location.hash").to_string();
    assert!(address.contains("label=route%3D%2Fsearch"), "{address}");
    let none = json!([["load_tables", "40 KiB"]]);
    assert_eq!(choose("route=[none]", "40960", "40 KiB"), none);
    let buy = choose("route=/buy", "131040", "128 KiB");
    assert_eq!(buy, json!([["fill_cache", "128 KiB"]]));
    let all = choose("", "274400", "268 KiB");
    assert_eq!(all.as_array().unwrap().len(), 3, "{all}");
    is_quiet(&browser, &server.address);
}
