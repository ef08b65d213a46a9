//! A headless Chromium for tests and benches, driven over `WebDriver` (w3.org/TR/webdriver2).
//!
//! Whatever goes wrong is a panic that says what: a test can do nothing else about it.
//!
//! Not fantoccini: it needs an asynchronous runtime, does not start chromedriver, and leaves the console, the requests
//! and the colours to commands of Chromium's own, which would be written by hand all the same.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

/// No sandbox, because CI runs as root; and nothing that asks the network by itself.
const CHROMIUM: [&str; 9] = [
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
/// Longer than anything takes on a busy machine.
const PATIENCE_MS: u64 = 120_000;
/// How `WebDriver` names an element in JSON.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one window, ended when dropped.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    /// Its profile directory.
    _profile: TempDir,
}

impl Browser {
    /// Starts Debian's chromium and chromedriver, with a new profile.
    pub fn open() -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("chromedriver: {error}; apt-get install chromium chromium-driver")
            });
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Self {
            driver,
            port: port.expect("chromedriver tells its port"),
            session: String::new(),
            _profile: profile,
        };
        let directory = format!("--user-data-dir={}", browser._profile.path().display());
        let args: Vec<_> = CHROMIUM.into_iter().chain([&*directory]).collect();
        let session = browser.post(
            "/session",
            &json!({ "capabilities": { "alwaysMatch": {
                "timeouts": { "script": PATIENCE_MS },
                "goog:chromeOptions": { "args": args },
                "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
            } } }),
        );
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        browser.size(1280, 900);
        // The page that it opens by itself is nobody's business.
        browser.go("about:blank");
        drop((browser.console(), browser.requests()));
        browser
    }

    /// Loads an address.
    pub fn go(&self, address: &str) {
        self.session("url", &json!({ "url": address }));
    }

    /// Runs a script, which may return something.
    pub fn run(&self, script: &str) -> Value {
        self.session("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs a script that calls `done(value)`.
    pub fn run_async(&self, script: &str) -> Value {
        let script = format!("const done = arguments[0]; {script}");
        self.session("execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true, and returns it.
    pub fn wait(&self, expression: &str) -> Value {
        self.run_async(&format!(
            "const look = () => {{
                let value;
                try {{ value = ({expression}); }} catch (error) {{ if (!(error instanceof TypeError)) throw error; }}
                if (value) done(value); else setTimeout(look, 20);
            }};
            look();"
        ))
    }

    /// Clicks in the middle of the element that a CSS selector finds, as a person would.
    pub fn click(&self, selector: &str) {
        let element = self.find(selector);
        self.session(&format!("element/{element}/click"), &json!({}));
    }

    /// Types into an element.
    pub fn type_text(&self, selector: &str, text: &str) {
        let element = self.find(selector);
        self.session(
            &format!("element/{element}/value"),
            &json!({ "text": text }),
        );
    }

    /// The text of an element as it is seen.
    pub fn text(&self, selector: &str) -> String {
        let element = self.find(selector);
        let text = self.get(&format!("element/{element}/text"));
        text.as_str().unwrap().to_owned()
    }

    fn find(&self, selector: &str) -> String {
        let found = self.session(
            "element",
            &json!({ "using": "css selector", "value": selector }),
        );
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    /// Sets the size of what the page sees, in pixels.
    pub fn size(&self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Prefers dark colours, or light ones.
    pub fn dark(&self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let feature = json!({ "name": "prefers-color-scheme", "value": value });
        self.devtools(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [feature] }),
        );
    }

    fn devtools(&self, command: &str, params: &Value) {
        self.session(
            "goog/cdp/execute",
            &json!({ "cmd": command, "params": params }),
        );
    }

    /// Draws what is seen into a file.
    pub fn screenshot(&self, file: &Path) {
        // What was asked for last is drawn first.
        self.run_async("requestAnimationFrame(() => requestAnimationFrame(done));");
        let png = self.get("screenshot");
        fs::write(file, BASE64_STANDARD.decode(png.as_str().unwrap()).unwrap()).unwrap();
    }

    /// What the console says since the last call, errors of the network and of the policy included.
    pub fn console(&self) -> Vec<String> {
        let log = self.session("se/log", &json!({ "type": "browser" }));
        let lines = log.as_array().unwrap().iter();
        lines
            .map(|line| line["message"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The addresses that pages asked for since the last call.
    pub fn requests(&self) -> Vec<String> {
        let log = self.session("se/log", &json!({ "type": "performance" }));
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

    fn session(&self, command: &str, body: &Value) -> Value {
        self.post(&format!("{}/{command}", self.session), body)
    }

    fn get(&self, command: &str) -> Value {
        self.call("GET", &format!("{}/{command}", self.session), "")
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.call("POST", path, &body.to_string())
    }

    #[track_caller]
    fn call(&self, method: &str, path: &str, body: &str) -> Value {
        let (status, reply) = self
            .request(method, path, body)
            .expect("chromedriver replies");
        let mut reply: Value = serde_json::from_slice(&reply).expect("WebDriver is JSON");
        assert!(status == 200, "{method} {path} {body}: {reply}");
        reply["value"].take()
    }

    /// The status and the body of a reply.
    fn request(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, Vec<u8>)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
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
        // Ends Chromium with its children; chromedriver's own end does not.
        if let Err(error) = self.request("DELETE", &self.session, "") {
            eprintln!("failed to end Chromium: {error}");
        }
        self.driver.kill().unwrap();
        self.driver.wait().unwrap();
    }
}
