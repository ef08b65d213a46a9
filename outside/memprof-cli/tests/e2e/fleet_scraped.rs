//! What an agent serves to scrapers: asked by curl, and by a real Prometheus that discovers the hosts.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::curl::{curl, curl_as};
use crate::dist::{tool, tool_text};
use crate::fleet::Fleet;
use crate::host::TEST_TIMEOUT;
use crate::server::Server;

const TOKEN: &str = "00112233445566778899aabbccddeeff";
const NOBODY: u32 = 65534;

/// Writes the token that scrapers bring, and returns the configuration that asks for it.
fn with_token(fleet: &Fleet) -> String {
    let file = fleet.path("token");
    fs::write(&file, TOKEN).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    format!("[http]\nlisten = \"127.0.0.1:0\"\ntoken_file = {file:?}\n")
}

#[test]
fn agent_exports_metrics_of_every_host() {
    let fleet = Fleet::start();
    let config = fleet.config("[http]\nlisten = \"127.0.0.1:0\"\n");
    let agent = Server::agent(&fleet.path("run"), &config);
    let metrics = curl(&agent.address, "H/metrics").is(200).text();
    for process in &fleet.processes {
        let labels = format!("{{service=\"{}\",pid=\"{}\"", fleet.service, process.pid());
        for name in [
            "memprof_up",
            "memprof_resident_bytes",
            "memprof_profiling_active",
        ] {
            let line = format!("{name}{labels}}} ");
            assert!(metrics.contains(&line), "{line}: {metrics}");
        }
        let parts = format!("memprof_ledger_bytes{labels},part=\"live_heap\"}} ");
        assert!(metrics.contains(&parts), "{parts}: {metrics}");
    }
    let file = fleet.path("metrics");
    fs::write(&file, &metrics).unwrap();
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]);
    promtool.stdin(fs::File::open(&file).unwrap());
    let checked = tool("prometheus", &mut promtool);
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.is_empty(), "{said}");

    let pid = fleet.processes[0].pid();
    let profile = curl(&agent.address, &format!("H/host/{pid}/debug/pprof/heap"));
    assert_eq!(&profile.is(200).body[..2], b"\x1f\x8b");
    // No request here changes a host, and no other client is admitted.
    let activate = format!("-X POST H/host/{pid}/api/v1/activate");
    curl(&agent.address, &activate).is(404);
    curl_as(NOBODY, &agent.address, "H/metrics").is(401);
    curl(&agent.address, "-H Host:evil.example H/metrics").is(421);
}

#[test]
fn public_address_needs_a_token() {
    let fleet = Fleet::start();
    let config = fleet.config("[http]\nlisten = \"0.0.0.0:0\"\n");
    let args = ["agent", "--config", config.to_str().unwrap()];
    let refused = crate::memprof::memprof(&fleet.path("run"), &args).exits(2);
    let expected = "0.0.0.0:0 can be reached by other machines: set `token_file` in [http]";
    assert!(refused.stderr.contains(expected), "{refused:?}");
    let config = fleet.config(&with_token(&fleet));
    let agent = Server::agent(&fleet.path("run"), &config);
    curl(&agent.address, "H/targets").is(401);
    let bearer = format!("--oauth2-bearer {TOKEN} H/targets");
    let targets = curl(&agent.address, &bearer).is(200).json();
    let targets = targets.as_array().unwrap();
    for process in &fleet.processes {
        let pid = process.pid().to_string();
        let of = targets.iter().find(|one| one["labels"]["pid"] == *pid);
        let of = of.unwrap_or_else(|| panic!("{pid}: {targets:?}"));
        assert_eq!(
            format!("http://{}/", of["targets"][0].as_str().unwrap()),
            agent.address
        );
        assert_eq!(
            of["labels"]["__metrics_path__"],
            format!("/host/{pid}/metrics")
        );
        assert_eq!(of["labels"]["service_name"], *fleet.service);
    }
}

/// A Prometheus that ends with the test.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn prometheus(place: &Path, port: u16, agent: &str) -> Prometheus {
    // The type defaults to Bearer where metrics are scraped, but not where hosts are discovered (2.42).
    let token = format!("authorization: {{ type: Bearer, credentials: {TOKEN} }}");
    let config = format!(
        "global: {{ scrape_interval: 1s }}\nscrape_configs:\n- job_name: memprof\n  {token}\n  \
         http_sd_configs:\n  - url: {agent}targets\n    refresh_interval: 1s\n    {token}\n"
    );
    let file = place.join("prometheus.yml");
    fs::write(&file, config).unwrap();
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", file.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            place.join("tsdb").display()
        ))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Prometheus(command.spawn().expect("prometheus: run `cargo xtask test`"))
}

#[test]
fn prometheus_discovers_and_scrapes_the_hosts() {
    let fleet = Fleet::start();
    let agent = Server::agent(&fleet.path("run"), &fleet.config(&with_token(&fleet)));
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let _prometheus = prometheus(fleet.path("").as_path(), port, &agent.address);
    let query = format!("http://127.0.0.1:{port}/api/v1/query");
    let pids: Vec<_> = fleet
        .processes
        .iter()
        .map(|one| one.pid().to_string())
        .collect();
    let begun = Instant::now();
    loop {
        let mut asked = Command::new("curl");
        asked.args([
            "-sS",
            "--retry",
            "60",
            "--retry-connrefused",
            "--retry-delay",
            "1",
            "-G",
            &query,
        ]);
        asked.args([
            "--data-urlencode",
            &format!(
                "query=memprof_resident_bytes{{service_name={:?}}}",
                fleet.service
            ),
        ]);
        let reply: Value = serde_json::from_str(&tool_text("curl", &mut asked)).unwrap();
        let found = reply["data"]["result"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let has = |pid: &String| found.iter().any(|one| one["metric"]["pid"] == **pid);
        if pids.iter().all(has) {
            return;
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "{pids:?}: {reply}");
    }
}
