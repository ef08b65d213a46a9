//! `memprof serve` behind nginx and `HAProxy`, below a path.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use webdriver::Browser;

use crate::bus::free_port;
use crate::curl::curl;
use crate::host::Host;
use crate::page;
use crate::server::Server;

/// A proxy, ended when dropped.
struct Proxy(Child);

/// Starts an nginx that passes requests on.
enum Nginx {}

impl Nginx {
    /// Serves `upstream` below /tools/memprof/ at this port.
    fn start(host: &Host, port: u16, upstream: &str) -> Proxy {
        Self::start_with(host, port, upstream, "")
    }

    /// Like [`start`](Self::start), with further directives.
    fn start_with(host: &Host, port: u16, upstream: &str, more: &str) -> Proxy {
        let place = host.place().display();
        let config = format!(
            "daemon off; master_process off; pid {place}/nginx.pid; error_log stderr notice;\n\
             events {{}}\n\
             http {{ access_log off; client_body_temp_path {place}; proxy_temp_path {place};\n\
             server {{ listen 127.0.0.1:{port};\n\
             location /tools/memprof/ {{ proxy_pass {upstream}; {more} }} }} }}\n"
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
        Proxy(child)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Opens the page at this address, and changes the host by it.
fn page_works(base: &str) {
    let browser = Browser::open();
    browser.navigate(base);
    browser.wait_for("document.querySelector('#resident').textContent.endsWith('resident')");
    browser.click("#start");
    browser.wait_for("document.querySelector('#state').textContent === 'sampling'");
    browser.click("#stop");
    browser.wait_for("document.querySelector('#state').textContent === 'not sampling'");
}

/// Headers that nginx must send for `--trust-proxy`.
const FORWARD: &str = "proxy_set_header X-Forwarded-Host $http_host; \
                       proxy_set_header X-Forwarded-Proto $scheme; \
                       proxy_set_header X-Forwarded-Prefix /tools/memprof;";

#[test]
fn page_behind_nginx_works_with_a_base_url() {
    let host = page::host();
    let port = free_port();
    let base = format!("http://127.0.0.1:{port}/tools/memprof/");
    let server = Server::of(&host, &["--base-url", &base]);
    // With a slash nginx takes the path away, without it the server has to.
    for upstream in [&*server.address, server.address.trim_end_matches('/')] {
        let _nginx = Nginx::start(&host, port, upstream);
        page_works(&base);
    }
}

#[test]
fn page_behind_nginx_works_with_forwarded_headers() {
    let host = page::host();
    let port = free_port();
    let base = format!("http://127.0.0.1:{port}/tools/memprof/");
    let server = Server::of(&host, &["--trust-proxy", "127.0.0.0/8"]);
    let _nginx = Nginx::start_with(&host, port, &server.address, FORWARD);
    page_works(&base);
    let targets = curl(&base, "H/targets").is(200).json();
    assert_eq!(targets[0]["targets"][0], format!("127.0.0.1:{port}"));
    let path = targets[0]["labels"]["__metrics_path__"].as_str().unwrap();
    assert!(path.starts_with("/tools/memprof/host/"), "{path}");
}

#[test]
fn page_behind_haproxy_works_with_forwarded_headers() {
    let host = page::host();
    let port = free_port();
    let server = Server::of(&host, &["--trust-proxy", "127.0.0.1"]);
    let upstream = server.address.trim_start_matches("http://");
    let upstream = upstream.trim_end_matches('/');
    let config = format!(
        "defaults\n mode http\n timeout connect 60s\n timeout client 60s\n timeout server 60s\n\
         frontend tools\n bind 127.0.0.1:{port}\n use_backend memprof if {{ path_beg /tools/memprof/ }}\n\
         backend memprof\n http-request set-header X-Forwarded-Host %[req.hdr(host)]\n \
         http-request set-header X-Forwarded-Prefix /tools/memprof\n \
         http-request replace-path /tools/memprof/(.*) /\\1\n server own {upstream}\n"
    );
    let path = host.place().join("haproxy.cfg");
    fs::write(&path, config).unwrap();
    let mut haproxy = Command::new("/usr/sbin/haproxy");
    haproxy.args(["-db", "-f"]).arg(&path);
    let _haproxy = Proxy(haproxy.spawn().expect("haproxy"));
    let base = format!("http://127.0.0.1:{port}/tools/memprof/");
    let retry = format!("--retry-connrefused --retry 60 --retry-delay 1 {base}");
    curl(&base, &retry).is(200);
    page_works(&base);
}

#[test]
fn forwarded_headers_of_others_are_ignored() {
    let host = page::host();
    let headers = "-H X-Forwarded-Host:tools.example -H Origin:http://tools.example";
    let activate = format!("-X POST {headers} H/api/v1/activate");
    let check = |trusted: &str, status: u16| {
        let server = Server::of(&host, &["--trust-proxy", trusted]);
        curl(&server.address, &activate).is(status);
        let targets = curl(&server.address, &format!("{headers} H/targets"));
        let address = "tools.example";
        let is_believed = targets.text().contains(&format!("[\"{address}\"]"));
        assert_eq!(is_believed, status == 200, "{trusted}: {}", targets.text());
    };
    check("127.0.0.1", 200);
    check("10.0.0.0/8", 403);
    let server = Server::of(&host, &["--trust-proxy", "127.0.0.1"]);
    let refused = curl(&server.address, "-H X-Forwarded-Proto:ftp H/").is(400);
    assert!(
        refused.text().contains("X-Forwarded-Prefix"),
        "{}",
        refused.text()
    );
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
