//! Debian packages that commands need.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use crate::run::run;

/// For `c_host_static` and `jeprof`.
pub const BUILD: &[&str] = &["g++", "libjemalloc-dev", "libjemalloc2"];

/// For the tests.
pub const TEST: &[&str] = &[
    "abigail-tools",
    "apache2",
    "binutils",
    "celery",
    "chromium",
    "chromium-driver",
    "clang",
    "curl",
    "default-jdk-headless",
    "dnsdist",
    "dwz",
    "erlang-base",
    "golang-go",
    "google-perftools",
    "graphviz",
    "gunicorn",
    "haproxy",
    "knot-resolver",
    "libfaketime",
    "libgoogle-perftools-dev",
    "libgoogle-perftools4",
    "libmimalloc2.0",
    "libtcmalloc-minimal4",
    "llvm",
    "lua5.1",
    "lua5.3",
    "lua5.4",
    "luajit",
    "mariadb-client",
    "mariadb-server",
    "mosquitto",
    "mosquitto-clients",
    "musl-tools",
    "nats-server",
    "nginx",
    "nodejs",
    "openssl",
    "pdns-recursor",
    "perl",
    "php-cli",
    "postgresql",
    "prometheus",
    "python3",
    "python3-redis",
    "python3-venv",
    "redis-server",
    "redis-tools",
    "ruby",
    "socat",
    "strace",
    "tcl",
    "trafficserver",
    "valgrind",
    "xz-utils",
];

/// For the benchmarks, beside those for the tests.
pub const BENCH: &[&str] = &["heaptrack", "lld"];

/// For the packages, and for the systems in which they are tried.
pub const PACKAGE: &[&str] = &["binutils", "mmdebstrap", "python3-venv", "rpm"];

/// Installs the missing ones of `packages` if this is root, without starting their servers. Otherwise fails with the
/// command that installs them.
pub fn ensure_installed(packages: &[&str]) -> Result<()> {
    if find_missing(packages).is_empty() {
        return Ok(());
    }
    let _guard = APT.lock().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have installed them meanwhile.
    let missing = find_missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    let line = format!(
        "apt-get install -y --no-install-recommends {}",
        missing.join(" ")
    );
    ensure!(
        is_root()?,
        "Debian packages are missing; run as root: {line}"
    );
    eprintln!("installing Debian packages: {}", missing.join(" "));
    let _servers_stay_down = ServicePolicyGuard::install()?;
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null());
        run(&mut command)
    };
    apt(&["update", "-q"])?;
    apt(&[
        &["install", "-qy", "--no-install-recommends"],
        missing.as_slice(),
    ]
    .concat())
}

/// Held while apt-get runs, which fails beside another one.
static APT: Mutex<()> = Mutex::new(());

/// Returns those of `packages` that are not installed.
fn find_missing<'a>(packages: &[&'a str]) -> Vec<&'a str> {
    let missing = packages.iter().filter(|package| !is_installed(package));
    missing.copied().collect()
}

/// Returns whether a Debian package is installed; false in a system without dpkg.
fn is_installed(package: &str) -> bool {
    let query = Command::new("dpkg-query")
        .args(["-W", "-f", "${db:Status-Status}", package])
        .stderr(Stdio::null())
        .output();
    query.is_ok_and(|query| query.stdout == b"installed")
}

/// Returns whether this process runs as root, by the owner of its /proc/self.
fn is_root() -> Result<bool> {
    Ok(fs::metadata("/proc/self")
        .context("failed to read /proc/self")?
        .uid()
        == 0)
}

/// Until it is dropped, installing a server does not start it (deb-systemd-invoke(1p)).
struct ServicePolicyGuard {
    /// Whether this guard wrote the policy, and so removes it.
    is_own_file: bool,
}

const POLICY: &str = "/usr/sbin/policy-rc.d";

impl ServicePolicyGuard {
    /// Writes a policy that forbids to start servers, unless the system has a policy already.
    fn install() -> Result<Self> {
        let is_own_file = !Path::new(POLICY).exists();
        if is_own_file {
            // Exit code 101 forbids each action on a service.
            fs::write(POLICY, "#!/bin/sh\nexit 101\n").context(POLICY)?;
            fs::set_permissions(POLICY, PermissionsExt::from_mode(0o755)).context(POLICY)?;
        }
        Ok(Self { is_own_file })
    }
}

impl Drop for ServicePolicyGuard {
    fn drop(&mut self) {
        if self.is_own_file
            && let Err(error) = fs::remove_file(POLICY)
        {
            eprintln!("failed to remove {POLICY}: {error}");
        }
    }
}
