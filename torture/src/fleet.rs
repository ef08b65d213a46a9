//! An agent that is killed again and again while dumps arrive, a store that fails in every way, and a NATS
//! server that is gone meanwhile: each sample is in the store once.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tempfile::TempDir;
use testkit::s3::{BUCKET, Fault, S3};

use xtask::dist::dist;

use crate::Form;

/// 2026-11-21T10:00:00Z, in milliseconds.
const START: u64 = 1_795_255_200_000;
const MINUTE: u64 = 60_000;
const FAULTS: [Fault; 6] = [
    Fault::Conflict,
    Fault::ConflictAfterWriting,
    Fault::LostAnswer,
    Fault::Refused,
    Fault::Broken,
    Fault::Forbidden,
];
/// How long an agent may take to answer again, or to drain.
const PATIENCE: Duration = Duration::from_secs(90);

pub(super) fn run(form: Form) -> Result<String> {
    let fleet = Fleet::new()?;
    let nats = Nats::start(&fleet)?;
    let mut dumped = Vec::new();
    let kills = form.pick(20, 200);
    for kill in 0..kills {
        dumped.push(fleet.dump(kill)?);
        let fault = FAULTS[kill as usize % FAULTS.len()];
        fleet
            .s3
            .fail(&[fault, FAULTS[kill as usize / 7 % FAULTS.len()]]);
        let mut agent = fleet.agent(&nats)?;
        // Each kill meets another step of the agent's.
        thread::sleep(Duration::from_millis(20 + kill * 37 % 900));
        agent.end()?;
        if kill % 5 == 4 {
            fleet.run(&["fleet", "compact"])?;
        }
    }
    fleet.s3.fail(&[]);
    let mut agent = fleet.agent(&nats)?;
    nats.answers(&fleet)?;
    let url = nats.url.clone();
    let gone = Duration::from_secs(form.pick(3, 30));
    let port = nats.port;
    drop(nats);
    dumped.push(fleet.dump(kills)?);
    fleet.drained()?;
    thread::sleep(gone);
    let nats = Nats::start_at(&fleet, port, url)?;
    nats.answers(&fleet)?;
    agent.end()?;
    fleet.total(&dumped)?;
    fleet.run(&["fleet", "compact"])?;
    fleet.total(&dumped)?;
    Ok(format!(
        "{kills} agents killed, {} writes tried, NATS gone for {} s: {} dumps once each",
        fleet.s3.writes(),
        gone.as_secs(),
        dumped.len()
    ))
}

/// A spool, and a store on S3.
struct Fleet {
    place: TempDir,
    s3: S3,
}

impl Fleet {
    fn new() -> Result<Self> {
        let place = tempfile::tempdir()?;
        let config = format!(
            "store = \"s3://{BUCKET}/prod\"\nspool = {:?}\nbatch = \"0s\"\nservice = []\n",
            place.path().join("spool")
        );
        fs::write(place.path().join("fleet.toml"), config)?;
        fs::create_dir_all(place.path().join("spool/dumps"))?;
        Ok(Self {
            place,
            s3: S3::start()?,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(dist().join("bin/memprof-fleet"));
        command
            .args(args)
            .arg("--config")
            .arg(self.path("fleet.toml"));
        command.envs(self.s3.environment());
        command.env("MEMPROF_SOCKET_DIR", self.path("run"));
        command
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        let output = self.command(args).output()?;
        let notes = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{args:?}: {}\n{notes}",
            output.status
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    fn agent(&self, nats: &Nats) -> Result<Running> {
        let mut command = self.command(&["agent", "--nats", &nats.url]);
        Ok(Running(command.stderr(Stdio::null()).spawn()?))
    }

    /// Puts a dump into the spool as an agent does. Returns its bytes.
    fn dump(&self, number: u64) -> Result<u64> {
        let (time, bytes) = (START + number * MINUTE, 1000 + number);
        let sample = |id: u64, bytes: u64| json!({ "stack_id": id, "inuse_bytes": bytes, "inuse_objects": 1, "alloc": null });
        let stack = |id: u64| {
            let frame = json!({ "function": format!("f{id}"), "module": "cart" });
            json!({ "stack_id": id, "function": format!("f{id}"), "frames": [frame] })
        };
        let dumped = json!({
            "context": {
                "time": time, "start_time": START, "service": "cart", "instance": format!("node/{number}.1"),
                "host": "node", "pid": number, "build_id": "91cc00", "trigger": "agent", "labels": {},
                "sample_interval": 524_288, "rss_bytes": 1 << 20, "clock_offset_ms": null,
            },
            "samples": [sample(1, bytes), sample(2, 7)],
            "stacks": [stack(1), stack(2)],
        });
        let fresh = self.path("spool/dumps/.fresh");
        fs::write(&fresh, dumped.to_string())?;
        let name = format!("spool/dumps/{time:015}.{number}.json");
        // A killed agent may have just taken the directory away, and makes it anew.
        fs::create_dir_all(self.path("spool/dumps"))?;
        fs::rename(&fresh, self.path(&name)).context("the dump")?;
        Ok(bytes + 7)
    }

    /// Waits until nothing is in the spool.
    fn drained(&self) -> Result<()> {
        until("the spool is not drained", || {
            let mut waiting = 0;
            for part in ["dumps", "batch", "outbox"] {
                waiting += fs::read_dir(self.path("spool").join(part)).map_or(0, Iterator::count);
            }
            waiting == 0
        })
    }

    /// Checks that the store holds each dump once.
    fn total(&self, dumped: &[u64]) -> Result<()> {
        let day = ["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
        let flame = ["fleet", "flame", "--format", "collapsed"];
        let lines = self.run(&[&flame[..], &day].concat())?;
        let values = lines
            .lines()
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        let (found, expected) = (values.sum::<u64>(), dumped.iter().sum::<u64>());
        ensure!(
            found == expected,
            "the store has {found} bytes of {expected} that were dumped"
        );
        Ok(())
    }
}

fn until(otherwise: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is_so() {
        ensure!(begun.elapsed() < PATIENCE, "{otherwise} after {PATIENCE:?}");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A process, killed when dropped.
struct Running(Child);

impl Running {
    fn end(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("fleet: {error}");
        }
    }
}

/// Debian's nats-server.
struct Nats {
    url: String,
    port: u16,
    _server: Running,
}

impl Nats {
    fn start(fleet: &Fleet) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        Self::start_at(fleet, port, format!("nats://127.0.0.1:{port}"))
    }

    fn start_at(fleet: &Fleet, port: u16, url: String) -> Result<Self> {
        let config = fleet.path("nats.conf");
        fs::write(&config, format!("listen: \"127.0.0.1:{port}\"\n"))?;
        let mut command = Command::new("/usr/sbin/nats-server");
        command.arg("-c").arg(&config).stderr(Stdio::null());
        let server = Running(command.spawn().context("nats-server")?);
        Ok(Self {
            url,
            port,
            _server: server,
        })
    }

    /// Waits until the agent answers.
    fn answers(&self, fleet: &Fleet) -> Result<()> {
        let ps = [
            "fleet",
            "ps",
            "-t",
            "@nobody-is-called-so",
            "--nats",
            &self.url,
        ];
        until("no agent answers", || fleet.run(&ps).is_ok())
    }
}
