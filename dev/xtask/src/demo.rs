//! `cargo xtask demo`: a leak, found in a host that loads the plugin, and in an unmodified program that runs already.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use xtask::dist::{self, dist_dir};
use xtask::run::{output, project_root, run};

/// Time for which the demo lets the leak grow.
const GROWTH_TIME: Duration = Duration::from_secs(5);

/// Longer than a host needs to open its control socket.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Builds what the demo needs, and runs it.
pub(crate) fn build_and_run_demo() -> Result<()> {
    println!("Building (the first time takes some minutes: it compiles jemalloc too) ...");
    dist::build_demo_programs()?;
    run_demo()
}

/// Runs the demo with the programs in `target/dist`. Fails if a command fails, or if a report does not name the leak
/// that the demo's program has.
pub(crate) fn run_demo() -> Result<()> {
    let directory = project_root().join("target/demo");
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let config = directory.join("host.toml");
    fs::write(&config, host_config(&directory)).with_context(|| config.display().to_string())?;

    println!("\nStarting rust_host: it grows a cache and never shrinks it. Its config:\n");
    println!("{}", indent(&host_config(&directory)));
    let host = DemoProgram::start(&config, &directory.join("host.log"))?;

    let pid = host.child.id().to_string();
    run_and_print(&["activate", "-t", &pid])?;
    println!(
        "\n... letting it run for {} seconds\n",
        GROWTH_TIME.as_secs()
    );
    thread::sleep(GROWTH_TIME);
    let dump = directory.join("leak.heap");
    run_and_print(&["dump", "-t", &pid, "-o", &dump.display().to_string()])?;
    let stats = run_memprof(&["stats", "-t", &pid])?;
    println!("\n$ memprof stats        (the first lines; all of it is in the host's log)");
    println!("{}", indent(&first_lines(&stats, 7)));
    run_and_print(&["deactivate", "-t", &pid])?;

    println!("\nWhere the memory went:\n");
    let dump = dump.display().to_string();
    let report = run_memprof(&["report", &dump])?;
    println!("$ memprof report leak.heap");
    println!("{}", indent(&report));
    ensure!(
        report
            .lines()
            // The first row, after the heading and the titles of the columns.
            .nth(2)
            .is_some_and(|row| row.contains("grow_cache")),
        "the profile does not begin with grow_cache:\n{report}"
    );
    for (format, file) in [("flamegraph", "flamegraph.svg"), ("html", "report.html")] {
        let file = directory.join(file).display().to_string();
        run_memprof(&["report", &dump, "--format", format, "-o", &file])?;
    }
    println!(
        "\ngrow_cache holds it. In target/demo: report.html and flamegraph.svg for a browser,\n\
         leak.heap for any reader of jemalloc's dumps, and host.log."
    );
    drop(host);
    record_unprepared_program()
}

/// Records a program that was started without memprof, prints the report of its leak, and checks that memprof is
/// detached.
fn record_unprepared_program() -> Result<()> {
    println!(
        "\nThe other way: a program that nobody prepared, started without anything of memprof's.\n"
    );
    let child = Command::new(dist_dir().join("examples/unprepared"))
        .spawn()
        .context("failed to start unprepared")?;
    let program = DemoProgram { child };
    let pid = program.child.id().to_string();
    let seconds = format!("{}s", GROWTH_TIME.as_secs());
    let record = ["record", "--pid", &pid, "--for", &seconds];
    println!("$ memprof {}", record.join(" "));
    let report = run_memprof(&record)?;
    println!("{}", indent(&report));
    ensure!(
        report.contains("open_session"),
        "the profile does not name open_session:\n{report}"
    );
    ensure!(
        run_memprof(&["status", "-t", &pid]).is_err(),
        "it is a host still"
    );
    println!("\nopen_session holds it. The program goes on without memprof.");
    Ok(())
}

/// Returns the text of the configuration of a host that keeps its dumps in `dumps` below `directory`.
fn host_config(directory: &Path) -> String {
    format!(
        "[[plugin]]\npath = {:?}\n\n[plugin.config]\ndump_dir = {:?}\n",
        dist_dir().join("plugins/memory_profile.so"),
        directory.join("dumps")
    )
}

/// A running program, ended when dropped.
struct DemoProgram {
    child: Child,
}

impl DemoProgram {
    /// Starts rust_host, with its stderr in `log`, and waits until it answers. Fails if it ends, or does not answer
    /// within [`START_TIMEOUT`].
    fn start(config: &Path, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| log.display().to_string())?;
        let child = Command::new(dist_dir().join("examples/rust_host"))
            .arg("--config")
            .arg(config)
            .env(
                "_RJEM_MALLOC_CONF",
                "prof:true,prof_active:false,lg_prof_sample:14",
            )
            .stderr(file)
            .spawn()
            .context("failed to start rust_host")?;
        let mut host = Self { child };
        let pid = host.child.id().to_string();
        let begun = Instant::now();
        while run_memprof(&["status", "-t", &pid]).is_err() {
            if let Some(status) = host.child.try_wait()? {
                bail!("rust_host ended: {status}\n{}", fs::read_to_string(log)?);
            }
            ensure!(
                begun.elapsed() < START_TIMEOUT,
                "rust_host opened no control socket; see {log:?}"
            );
            thread::sleep(Duration::from_millis(50));
        }
        Ok(host)
    }
}

impl Drop for DemoProgram {
    fn drop(&mut self) {
        let pid = self.child.id().to_string();
        let ended = run(Command::new("kill").arg(&pid)).and_then(|()| Ok(self.child.wait()?));
        if let Err(error) = ended {
            eprintln!("failed to end a program of the demo: {error:#}");
        }
    }
}

/// Runs a command of memprof, and prints it with its output.
fn run_and_print(args: &[&str]) -> Result<()> {
    println!("$ memprof {}", args.join(" "));
    println!("{}", indent(&run_memprof(args)?));
    Ok(())
}

/// Runs `memprof` of `target/dist`, and returns what it writes to stdout. Fails if the command fails.
fn run_memprof(args: &[&str]) -> Result<String> {
    output(Command::new(dist_dir().join("bin/memprof")).args(args))
}

/// Returns the first `count` lines of a text, without the last newline.
fn first_lines(text: &str, count: usize) -> String {
    text.lines().take(count).collect::<Vec<_>>().join("\n")
}

/// Indents each line by two blanks.
fn indent(text: &str) -> String {
    text.lines()
        .map(|line| format!("  {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}
