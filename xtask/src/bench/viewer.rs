//! The viewer of a large profile, in headless Chromium.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use webdriver::Browser;

use crate::dist::dist;
use crate::packages;
use crate::run::run;

const NODES: usize = 100_000;
const FUNCTIONS: usize = 6000;
const ROUNDS: usize = 10;

/// Resolves with the time of the first paint with content, since the page was asked for.
const FIRST_PAINT: &str = "
    new PerformanceObserver(list => {
        const paint = list.getEntriesByName('first-contentful-paint')[0];
        if (paint) done(paint.startTime);
    }).observe({ type: 'paint', buffered: true });";

/// From an event to the end of the frame that shows what came of it.
const TIME: &str = "
    const frame = () => new Promise(ended => requestAnimationFrame(() => {
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = ended;
        port2.postMessage(0);
    }));
    const time = async act => {
        await frame();
        const begun = performance.now();
        act();
        await frame();
        done(performance.now() - begun);
    };";

/// Measures.
pub(super) fn measure(place: &Path) -> Result<()> {
    packages::require(&["chromium", "chromium-driver"])?;
    let (dump, page) = (place.join("viewer.heap"), place.join("viewer.html"));
    fs::write(&dump, large_dump()?)?;
    let mut report = Command::new(dist().join("bin/memprof"));
    report.args(["report", "--format=html", "--no-symbols", "-o"]);
    run(report.arg(&page).arg(&dump))?;
    let html = fs::read_to_string(&page)?;
    let data = html.find("<script id=\"data\"").context("no data")?;
    let end = data + html[data..].find("</script>").context("no end of data")?;
    let viewer = gzip(&[&html[..data], &html[end..]].concat())?;
    println!("viewer: {:.1} kB in gzip, limit 25 kB", viewer as f64 / 1e3);

    let browser = Browser::open();
    let address = format!("file://{}", page.display());
    browser.go(&address);
    let nodes = browser
        .run("return JSON.parse(document.querySelector('#data').textContent).tree.depth.length;");
    println!("viewer: the call tree has {nodes} nodes");
    let load = || {
        browser.go("about:blank");
        browser.go(&address);
        browser.run_async(FIRST_PAINT)
    };
    let search = |wanted: &str| {
        browser.run_async(&format!(
            "{TIME} const search = document.querySelector('#search');
            time(() => {{ search.value = '{wanted}'; search.dispatchEvent(new Event('input')); }});"
        ))
    };
    let zoom = |x: u32, y: u32| {
        browser.run_async(&format!(
            "{TIME} const canvas = document.querySelector('canvas');
            const {{ left, top }} = canvas.getBoundingClientRect();
            const at = {{ clientX: left + {x}, clientY: top + {y} }};
            time(() => canvas.dispatchEvent(new MouseEvent('click', at)));"
        ))
    };
    show("first paint", 300.0, load);
    show("zoom into a callee", 50.0, || {
        zoom(3, 3);
        zoom(500, 70)
    });
    show("zoom out to the whole", 50.0, || {
        zoom(500, 70);
        zoom(3, 3)
    });
    show("search", 50.0, || {
        search("");
        search("operation_35")
    });
    show("search that finds everything", 50.0, || {
        search("");
        search("operation")
    });
    let frame = fastest(|| browser.run_async(&format!("{TIME} time(() => {{}});")));
    println!(
        "viewer, a frame in which nothing changes: {:.0} ms",
        frame[0]
    );
    Ok(())
}

/// Prints the fastest and the middle of several rounds, in milliseconds.
fn show(what: &str, limit: f64, round: impl Fn() -> serde_json::Value) {
    let times = fastest(round);
    println!(
        "viewer, {what}: {:.0} ms (median {:.0}), limit {limit} ms",
        times[0],
        times[ROUNDS / 2]
    );
}

/// The times of several rounds, the shortest first.
fn fastest(round: impl Fn() -> serde_json::Value) -> Vec<f64> {
    let rounds = (0..ROUNDS).map(|_| round().as_f64().unwrap_or(f64::NAN));
    let mut times: Vec<f64> = rounds.collect();
    times.sort_by(f64::total_cmp);
    times
}

fn gzip(text: &str) -> Result<usize> {
    let mut gzip = Command::new("gzip")
        .args(["-9", "-c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("gzip")?;
    // gzip reads all of so short a text before it writes.
    gzip.stdin
        .take()
        .context("gzip has no stdin")?
        .write_all(text.as_bytes())?;
    Ok(gzip.wait_with_output()?.stdout.len())
}

/// A named dump whose call tree has about [`NODES`] nodes: each stack is the beginning of an earlier one, with
/// other callees.
fn large_dump() -> Result<Vec<u8>> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut stacks = vec![vec![0]];
    let (mut text, mut samples) = (Vec::new(), Vec::new());
    writeln!(text, "--- symbol\nbinary=/usr/bin/large")?;
    for function in 0..FUNCTIONS {
        let (module, policy) = (function % 97, function % 13);
        writeln!(
            text,
            "{:#018x} app::module_{module}::Component<std::string, Policy{policy}>::operation_{function}(Request const&)",
            address(function) - 1
        )?;
    }
    let (mut nodes, mut objects, mut bytes) = (1, 0, 0);
    while nodes < NODES {
        let recent = stacks.len().min(400);
        let before: &Vec<usize> = &stacks[stacks.len() - 1 - random.below(recent)];
        let cut = 1 + random.below(before.len().min(100));
        let added = (1 + random.below(24)).min(NODES - nodes);
        let callees = (0..added).map(|_| random.below(FUNCTIONS));
        let stack: Vec<_> = before[..cut].iter().copied().chain(callees).collect();
        nodes += added;
        let count = 1 + random.below(4);
        let size = count * [16, 64, 256, 4096, 65536][random.below(5)];
        objects += count;
        bytes += size;
        write!(samples, "@")?;
        for function in stack.iter().rev() {
            write!(samples, " {:#x}", address(*function))?;
        }
        writeln!(samples, "\n  t*: {count}: {size} [0: 0]")?;
        stacks.push(stack);
    }
    writeln!(
        text,
        "---\n--- heap\nheap_v2/524288\n  t*: {objects}: {bytes} [0: 0]"
    )?;
    text.extend(samples);
    writeln!(
        text,
        "\nMAPPED_LIBRARIES:\n00001000-00080000 r-xp 00000000 fe:00 1 /usr/bin/large"
    )?;
    Ok(text)
}

fn address(function: usize) -> usize {
    0x1001 + 16 * function
}

/// xorshift64: the same dump every time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}
