//! Speed of the HTML viewer with a large profile, in headless Chromium.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use webdriver::Browser;

use xtask::dist::dist_dir;
use xtask::packages;
use xtask::run::{project_root, run};

use crate::limits::Measurements;
use crate::synthetic;

/// Nodes of the call tree.
const NODES: usize = 100_000;
const ROUNDS: usize = 10;

/// Script that returns the milliseconds from the navigation to the first contentful paint.
const FIRST_PAINT: &str = "
    new PerformanceObserver(list => {
        const paint = list.getEntriesByName('first-contentful-paint')[0];
        if (paint) done(paint.startTime);
    }).observe({ type: 'paint', buffered: true });";

/// Script that defines `time(act)`, which returns the milliseconds from the call of `act` to the end of the next frame.
const TIME_FUNCTION: &str = "
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

/// Records the viewer's size, and the times of its first paint, zooms and searches.
pub(crate) fn measure_viewer(measurements: &mut Measurements) -> Result<()> {
    let directory = project_root().join("target/bench");
    packages::ensure_installed(&["chromium", "chromium-driver"])?;
    let (dump, page) = (directory.join("viewer.heap"), directory.join("viewer.html"));
    fs::write(&dump, synthetic::named_dump(NODES)?)?;
    let mut report = Command::new(dist_dir().join("bin/memprof"));
    report.args(["report", "--format=html", "--no-symbols", "-o"]);
    run(report.arg(&page).arg(&dump))?;
    let html = fs::read_to_string(&page)?;
    let data = html.find("<script id=\"data\"").context("no data")?;
    let end = data + html[data..].find("</script>").context("no end of data")?;
    let viewer = gzip_len(&[&html[..data], &html[end..]].concat())?;
    measurements.record("viewer in gzip", viewer as f64 / 1e3, "")?;

    let browser = Browser::open();
    let address = format!("file://{}", page.display());
    browser.navigate(&address);
    let nodes = browser.run_script(
        "return JSON.parse(document.querySelector('#data').textContent).tree.depth.length;",
    );
    println!("viewer: the call tree has {nodes} nodes");
    let load = || {
        browser.navigate("about:blank");
        browser.navigate(&address);
        browser.run_async_script(FIRST_PAINT)
    };
    let search = |wanted: &str| {
        browser.run_async_script(&format!(
            "{TIME_FUNCTION} const search = document.querySelector('#search');
            time(() => {{ search.value = '{wanted}'; search.dispatchEvent(new Event('input')); }});"
        ))
    };
    let zoom = |x: u32, y: u32| {
        browser.run_async_script(&format!(
            "{TIME_FUNCTION} const canvas = document.querySelector('canvas');
            const {{ left, top }} = canvas.getBoundingClientRect();
            const at = {{ clientX: left + {x}, clientY: top + {y} }};
            time(() => canvas.dispatchEvent(new MouseEvent('click', at)));"
        ))
    };
    let mut record = |figure: &str, round: &dyn Fn() -> serde_json::Value| {
        let times = measure_sorted_times(round).with_context(|| figure.to_owned())?;
        let median = times[ROUNDS / 2];
        measurements.record(figure, times[0], format_args!("median {median:.0}"))
    };
    record("viewer, first paint", &load)?;
    record("viewer, zoom into a callee", &|| {
        zoom(3, 3);
        zoom(500, 70)
    })?;
    record("viewer, zoom out to the whole", &|| {
        zoom(500, 70);
        zoom(3, 3)
    })?;
    record("viewer, search", &|| {
        search("");
        search("operation_35")
    })?;
    record("viewer, search that finds everything", &|| {
        search("");
        search("operation")
    })?;
    let frame = measure_sorted_times(|| {
        browser.run_async_script(&format!("{TIME_FUNCTION} time(() => {{}});"))
    })?;
    println!(
        "viewer, a frame in which nothing changes: {:.0} ms",
        frame[0]
    );
    Ok(())
}

/// Runs [`ROUNDS`] rounds, and returns the milliseconds that they return, sorted. Fails if a round returns no number.
fn measure_sorted_times(round: impl Fn() -> serde_json::Value) -> Result<Vec<f64>> {
    let rounds = (0..ROUNDS).map(|_| {
        let value = round();
        let time = value.as_f64();
        time.with_context(|| format!("a round returned no number: {value}"))
    });
    let mut times = rounds.collect::<Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Bytes of a text after `gzip -9`.
fn gzip_len(text: &str) -> Result<usize> {
    let mut gzip = Command::new("gzip")
        .args(["-9", "-c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("gzip")?;
    // The output fits into the pipe's buffer of 64 KiB, so gzip never waits for a reader while this process writes.
    gzip.stdin
        .take()
        .context("gzip has no stdin")?
        .write_all(text.as_bytes())?;
    let packed = gzip.wait_with_output()?;
    ensure!(packed.status.success(), "gzip: {}", packed.status);
    Ok(packed.stdout.len())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn round_without_a_number_fails() {
        assert_eq!(measure_sorted_times(|| json!(7)).unwrap(), [7.0; ROUNDS]);
        let error = measure_sorted_times(|| Value::Null).unwrap_err();
        assert!(error.to_string().contains("null"), "{error}");
    }
}
