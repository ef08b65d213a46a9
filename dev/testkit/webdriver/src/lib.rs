//! A headless Chromium for tests and benches, driven over `WebDriver` (w3.org/TR/webdriver2).
//!
//! Every failure is a panic, because a test cannot handle it.
//!
//! The crate fantoccini is not used: it needs an asynchronous runtime, does not start chromedriver, and has no
//! functions for the console, the requests and the colours, which need Chromium's own commands.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::LineReader;

/// Arguments of Chromium: no sandbox, because CI runs as root, and no network requests but those of the pages.
const CHROMIUM_ARGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--lang=en-GB",
];
/// Timeout of a script in milliseconds, long enough for a busy machine.
const SCRIPT_TIMEOUT_MS: u64 = 120_000;
/// Time that chromedriver may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that it may take to reply: longer than its own limits, of which that of a page's load is the longest, 300 s.
const REPLY_TIMEOUT: Duration = Duration::from_secs(330);
/// Package of Python's index that has axe.min.js, the accessibility checker; pip needs none of its dependencies.
const AXE: [&str; 2] = ["--no-deps", "axe-playwright-python==0.1.8"];
/// Key of an element's id in `WebDriver`'s JSON (w3.org/TR/webdriver2, "web element identifier").
const ELEMENT_KEY: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one window; dropping it closes the browser.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    port: u16,
    /// Path of the session's commands.
    session: String,
    /// Chromium's profile directory.
    _profile: TempDir,
}

impl Browser {
    /// Starts Debian's chromium and chromedriver, with a new profile, and opens an empty page of 1280 by 900 pixels.
    pub fn open() -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("chromedriver: {error}; apt-get install chromium chromium-driver")
            });
        let mut lines = LineReader::new(driver.stdout.take().unwrap());
        let port = lines.find_line(START_TIMEOUT, |line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Self {
            driver,
            port: port.expect("chromedriver prints its port"),
            session: String::new(),
            _profile: profile,
        };
        let directory = format!("--user-data-dir={}", browser._profile.path().display());
        let args: Vec<_> = CHROMIUM_ARGS.into_iter().chain([&*directory]).collect();
        let session = browser.post(
            "/session",
            &json!({ "capabilities": { "alwaysMatch": {
                "timeouts": { "script": SCRIPT_TIMEOUT_MS },
                "goog:chromeOptions": { "args": args },
                "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
            } } }),
        );
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        browser.set_viewport_size(1280, 900);
        // Discards the messages and requests of Chromium's start page.
        browser.navigate("about:blank");
        drop((browser.take_console_messages(), browser.take_requests()));
        browser
    }

    /// Loads a URL and waits until the page has loaded.
    pub fn navigate(&self, address: &str) {
        self.post_command("url", &json!({ "url": address }));
    }

    /// Runs the body of a JavaScript function, and returns what it returns; null if it returns nothing.
    pub fn run_script(&self, script: &str) -> Value {
        self.post_command("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs a script of JavaScript, and returns the value with which it calls `done(value)`. Panics if it has not
    /// called it after `SCRIPT_TIMEOUT_MS`.
    pub fn run_async_script(&self, script: &str) -> Value {
        let script = format!("const done = arguments[0]; {script}");
        self.post_command("execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Polls every 20 ms until an expression of JavaScript is truthy, and returns its value. A `TypeError` counts as
    /// false. Panics on another error, and after `SCRIPT_TIMEOUT_MS`.
    pub fn wait_for(&self, expression: &str) -> Value {
        self.run_async_script(&format!(
            "const look = () => {{
                let value;
                try {{ value = ({expression}); }} catch (error) {{ if (!(error instanceof TypeError)) throw error; }}
                if (value) done(value); else setTimeout(look, 20);
            }};
            look();"
        ))
    }

    /// Clicks in the middle of the first element that a CSS selector matches.
    pub fn click(&self, selector: &str) {
        let element = self.find_element(selector);
        self.post_command(&format!("element/{element}/click"), &json!({}));
    }

    /// Types into the first element that a CSS selector matches.
    pub fn type_text(&self, selector: &str, text: &str) {
        let element = self.find_element(selector);
        self.post_command(
            &format!("element/{element}/value"),
            &json!({ "text": text }),
        );
    }

    /// Presses and releases a key, wherever the focus is.
    pub fn press_key(&self, key: &str) {
        let presses = ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key }));
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": presses });
        self.post_command("actions", &json!({ "actions": [keyboard] }));
    }

    /// Returns the visible text of the first element that a CSS selector matches.
    pub fn text(&self, selector: &str) -> String {
        let element = self.find_element(selector);
        let text = self.get(&format!("element/{element}/text"));
        text.as_str().unwrap().to_owned()
    }

    /// Returns the id of the first element that a CSS selector matches.
    fn find_element(&self, selector: &str) -> String {
        let found = self.post_command(
            "element",
            &json!({ "using": "css selector", "value": selector }),
        );
        found[ELEMENT_KEY].as_str().unwrap().to_owned()
    }

    /// Sets the size of the viewport, in pixels.
    pub fn set_viewport_size(&self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.run_devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Sets the colour scheme that the user prefers: dark, or light if `dark` is false.
    pub fn set_dark_mode(&self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let feature = json!({ "name": "prefers-color-scheme", "value": value });
        self.run_devtools(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [feature] }),
        );
    }

    /// Runs a command of the Chrome `DevTools` Protocol.
    fn run_devtools(&self, command: &str, params: &Value) {
        self.post_command(
            "goog/cdp/execute",
            &json!({ "cmd": command, "params": params }),
        );
    }

    /// Writes the viewport as a PNG file, after the latest changes of the page are drawn.
    pub fn screenshot(&self, file: &Path) {
        // Two frames later, the latest changes are drawn.
        self.run_async_script("requestAnimationFrame(() => requestAnimationFrame(done));");
        let png = self.get("screenshot");
        fs::write(file, BASE64_STANDARD.decode(png.as_str().unwrap()).unwrap()).unwrap();
    }

    /// Returns the messages of the console since the last call, with errors of the network and of the content security
    /// policy.
    pub fn take_console_messages(&self) -> Vec<String> {
        let log = self.post_command("se/log", &json!({ "type": "browser" }));
        let lines = log.as_array().unwrap().iter();
        lines
            .map(|line| line["message"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Returns the URLs that pages requested since the last call.
    pub fn take_requests(&self) -> Vec<String> {
        let log = self.post_command("se/log", &json!({ "type": "performance" }));
        let lines = log.as_array().unwrap().iter();
        lines
            .map(|line| serde_json::from_str(line["message"].as_str().unwrap()).unwrap())
            .filter(|event: &Value| event["message"]["method"] == "Network.requestWillBeSent")
            .map(|event| {
                event["message"]["params"]["request"]["url"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    }

    /// Runs the checker axe in the page as it is. Returns its findings: the rule and the first element that breaks it.
    pub fn accessibility_findings(&self) -> Vec<String> {
        let python = testkit::python::install_packages(&AXE).expect("pip installs axe");
        let libraries = python.parent().unwrap().with_file_name("lib");
        let mut versions = fs::read_dir(&libraries).unwrap();
        // The only entry is the directory of Python's version.
        let version = versions.next().unwrap().unwrap().path();
        let script = version.join("site-packages/axe_playwright_python/axe.min.js");
        self.run_script(&fs::read_to_string(script).unwrap());
        let findings = self.run_async_script(
            "axe.run({ resultTypes: ['violations'] }).then(({ violations }) =>
                done(violations.map(({ id, nodes }) => `${id}: ${nodes[0].html} ${nodes[0].failureSummary}`)));",
        );
        let findings = findings.as_array().unwrap().iter();
        findings
            .map(|finding| finding.as_str().unwrap().to_owned())
            .collect()
    }

    /// Posts a command of `WebDriver` in this session, and returns its value.
    fn post_command(&self, command: &str, body: &Value) -> Value {
        self.post(&format!("{}/{command}", self.session), body)
    }

    /// Gets a value of `WebDriver` in this session, such as `screenshot`.
    fn get(&self, command: &str) -> Value {
        self.send("GET", &format!("{}/{command}", self.session), "")
    }

    /// Posts a JSON body to a path of chromedriver, and returns the `value` of the reply.
    fn post(&self, path: &str, body: &Value) -> Value {
        self.send("POST", path, &body.to_string())
    }

    /// Sends a request to chromedriver, and returns the `value` of the reply. Panics if its status is not 200.
    #[track_caller]
    fn send(&self, method: &str, path: &str, body: &str) -> Value {
        let (status, reply) = self
            .request(method, path, body)
            .expect("chromedriver replies");
        let mut reply: Value = serde_json::from_slice(&reply).expect("WebDriver is JSON");
        assert!(status == 200, "{method} {path} {body}: {reply}");
        reply["value"].take()
    }

    /// Sends an HTTP request to chromedriver; returns the status and the body of the response.
    fn request(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, Vec<u8>)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.port,
            body.len()
        )?;
        let mut reader = BufReader::new(stream);
        let (mut status, mut length) = (0, 0);
        for line in reader.by_ref().lines() {
            let line = line?.to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().expect("a status");
            } else if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        Ok((status, body))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Deleting the session closes Chromium and its children; killing chromedriver does not.
        if let Err(error) = self.request("DELETE", &self.session, "") {
            eprintln!("failed to close Chromium: {error}");
        }
        self.driver.kill().unwrap();
        self.driver.wait().unwrap();
    }
}
