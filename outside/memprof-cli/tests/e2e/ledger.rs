//! Ledgers of live hosts after changes of their memory.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::available_parallelism;
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;
use testkit::processes::status_number;

use crate::bus::{CONF, Load, Server};
use crate::bus_redis::Redis;
use crate::dist::{preloadable, tool_text};
use crate::host::{Host, Setup, TEST_TIMEOUT};

const MIB: u64 = 1 << 20;

/// The program behind `inject.c`, and the way to it.
struct Injection {
    fifo: PathBuf,
    library: PathBuf,
    _place: TempDir,
}

impl Injection {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let fifo = place.path().join("orders");
        tool_text("coreutils", Command::new("mkfifo").arg(&fifo));
        Self {
            library: preloadable("inject.c", place.path()),
            fifo,
            _place: place,
        }
    }

    /// Runs `check` with each of the hosts on which a ledger has to hold.
    fn each_host(check: impl Fn(&Self, &Host)) {
        for program in ["rust_host", "c_host"] {
            let injection = Self::new();
            let jemalloc = if program == "c_host" {
                "libjemalloc.so.2 "
            } else {
                ""
            };
            let host = Setup::of(program)
                .env(
                    "LD_PRELOAD",
                    &format!("{jemalloc}{}", injection.library.display()),
                )
                .env("INJECT", injection.fifo.to_str().unwrap())
                .start();
            check(&injection, &host);
        }
        let injection = Self::new();
        let redis = Redis::start(&Load {
            env: &[
                CONF,
                ("LD_PRELOAD", injection.library.to_str().unwrap()),
                ("INJECT", injection.fifo.to_str().unwrap()),
            ],
            config: &[("control", "on")],
            twice: false,
        });
        redis.host().wait_for_log("control socket ");
        check(&injection, redis.host());
    }

    /// Gives an order, and waits until it was obeyed.
    fn order(&self, host: &Host, order: &str) {
        let mut fifo = self.open();
        writeln!(fifo, "{order}").unwrap();
        drop(fifo);
        host.wait_for_log(&format!("injected {order}"));
    }

    /// Waits until the other end is read: until then there is no such device.
    fn open(&self) -> File {
        let begun = Instant::now();
        loop {
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(libc::O_NONBLOCK);
            match options.open(&self.fifo) {
                Ok(fifo) => return fifo,
                Err(error) => assert!(begun.elapsed() < TEST_TIMEOUT, "nobody reads: {error}"),
            }
            testkit::pause();
        }
    }
}

fn ledger(host: &Host) -> Value {
    host.memprof("ledger", &["--json"]).exits(0).json()
}

pub(crate) fn row(ledger: &Value, name: &str) -> u64 {
    let mut rows = ledger["rows"].as_array().unwrap().iter();
    let row = rows.find(|row| row["name"] == name).unwrap();
    row["bytes"].as_u64().unwrap()
}

/// Resident memory of a process according to the kernel.
fn kernel_rss(host: &Host) -> u64 {
    status_number(host.pid(), "VmRSS:").unwrap() * 1024
}

#[test]
fn rows_sum_to_the_rss_of_the_kernel() {
    Injection::each_host(|_, host| {
        host.memprof("activate", &[]).exits(0);
        let before = kernel_rss(host);
        let reported = ledger(host);
        let after = kernel_rss(host);
        let rows = reported["rows"].as_array().unwrap().iter();
        let sum: u64 = rows.map(|row| row["bytes"].as_u64().unwrap()).sum();
        assert_eq!(reported["rss_bytes"], sum);
        // Some hosts grow all the while.
        let within = before as f64 * 0.99..=after as f64 * 1.01;
        assert!(within.contains(&(sum as f64)), "{sum} is not in {within:?}");
    });
}

/// Memory that is not the allocator's, once every arena is there and two looks agree. A thread whose
/// predecessors have not ended makes a new arena, whose metadata counts before it is touched.
fn settled(host: &Host) -> u64 {
    let processors = available_parallelism().map_or(1, NonZeroUsize::get);
    // jemalloc has four arenas for each processor, the host takes 32 connections.
    let mut clients: Vec<_> = (0..30.min(4 * processors + 2))
        .map(|_| host.client())
        .collect();
    for client in &mut clients {
        client
            .message("memory_profile", "status", "", None)
            .unwrap();
    }
    drop(clients);
    let begun = Instant::now();
    // Their stacks count until they end.
    let connections = || {
        let threads = host.threads().into_iter();
        threads.filter(|name| name == "memprof-conn").count()
    };
    while connections() > 1 {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", host.threads());
        testkit::pause();
    }
    let look = || row(&ledger(host), "not_the_allocator");
    let mut last = look();
    loop {
        let next = look();
        if next.abs_diff(last) < MIB / 4 {
            return next;
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "{last} and then {next}");
        last = next;
    }
}

#[test]
fn program_s_own_mapping_is_not_the_allocator_s() {
    Injection::each_host(|injection, host| {
        let before = settled(host);
        injection.order(host, "map 50");
        let reported = ledger(host);
        let risen = row(&reported, "not_the_allocator").saturating_sub(before);
        eprintln!("risen by {:.2} MiB", risen as f64 / MIB as f64);
        // The stack of a thread that ended, on a huge page of 2 MiB, may have gone meanwhile.
        assert!(
            (47 * MIB..=51 * MIB).contains(&risen),
            "{risen}: {reported}"
        );
        let mut verdicts = reported["verdicts"].as_array().unwrap().iter();
        assert!(
            verdicts.any(|verdict| verdict["kind"] == "not_the_allocator"),
            "{reported}"
        );
    });
}

#[test]
fn fragmentation_is_reported_and_not_purged() {
    Injection::each_host(|injection, host| {
        let status = host.memprof("status", &["--json"]).exits(0).json();
        if status["allocators"][0]["owns_malloc"] == false {
            // A jemalloc of Rust's own, which malloc does not reach.
            return;
        }
        injection.order(host, "fragment 100");
        let reported = ledger(host);
        let mut verdicts = reported["verdicts"].as_array().unwrap().iter();
        let fragmented = verdicts.find(|verdict| verdict["kind"] == "fragmentation");
        let remedy = fragmented.unwrap()["remedy"].as_str().unwrap();
        assert!(remedy.starts_with("purging will not help"), "{remedy}");
        let lost = row(&reported, "fragmentation");
        assert!(lost > 80 * MIB, "{reported}");
        let purged = host.memprof("purge", &["--json"]).exits(0).json();
        let released = purged["released_bytes"].as_u64().unwrap();
        let left = row(&ledger(host), "fragmentation");
        eprintln!(
            "{} MiB fragmented, purge gave back {} MiB",
            lost / MIB,
            released / MIB
        );
        assert!(released < lost / 5, "{purged}: {reported}");
        assert!(left > lost * 9 / 10, "{left} of {lost}");
    });
}
