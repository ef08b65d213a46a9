//! `memprof serve` behind nginx, below a path.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use webdriver::Browser;

use crate::bus::free_port;
use crate::host::Host;
use crate::page;
use crate::server::Server;

/// An nginx that passes requests on, ended when dropped.
struct Nginx(Child);

impl Nginx {
    /// Serves `upstream` below /tools/memprof/ at this port.
    fn start(host: &Host, port: u16, upstream: &str) -> Self {
        let place = host.place().display();
        let config = format!(
            "daemon off; master_process off; pid {place}/nginx.pid; error_log stderr notice;\n\
             events {{}}\n\
             http {{ access_log off; client_body_temp_path {place}; proxy_temp_path {place};\n\
             server {{ listen 127.0.0.1:{port};\n\
             location /tools/memprof/ {{ proxy_pass {upstream}; }} }} }}\n"
        );
        let path = host.place().join("proxy.conf");
        fs::write(&path, config).unwrap();
        let mut nginx = Command::new("/usr/sbin/nginx");
        nginx.args(["-e", "stderr", "-c"]).arg(&path);
        let mut child = nginx.stderr(Stdio::piped()).spawn().expect("nginx");
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        // Its last line before it serves.
        let started = log.find(|line| line.as_ref().is_ok_and(|line| line.contains("getrlimit")));
        started.expect("nginx serves").unwrap();
        std::thread::spawn(move || log.for_each(drop));
        Self(child)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn page_behind_nginx_works_with_a_base_url() {
    let host = page::host();
    let port = free_port();
    let base = format!("http://127.0.0.1:{port}/tools/memprof/");
    let server = Server::of(&host, &["--base-url", &base]);
    // With a slash nginx takes the path away, without it the server has to.
    for upstream in [&*server.address, server.address.trim_end_matches('/')] {
        let _nginx = Nginx::start(&host, port, upstream);
        let browser = Browser::open();
        browser.navigate(&base);
        browser.wait_for("document.querySelector('#resident').textContent.endsWith('resident')");
        browser.click("#start");
        browser.wait_for("document.querySelector('#state').textContent === 'sampling'");
        browser.click("#stop");
        browser.wait_for("document.querySelector('#state').textContent === 'not sampling'");
    }
}

#[test]
fn page_behind_nginx_without_a_base_url_names_the_option() {
    let host = page::host();
    let server = Server::of(&host, &[]);
    let port = free_port();
    let _nginx = Nginx::start(&host, port, &server.address);
    let browser = Browser::open();
    browser.navigate(&format!("http://127.0.0.1:{port}/tools/memprof/"));
    let text = browser.text("#unloaded");
    assert!(text.contains("--base-url"), "{text}");
    browser.navigate(&server.address);
    browser.wait_for("document.querySelector('#unloaded') === null");
}
