//! Containers that processes are in, by the names of their cgroups and by what Docker and Podman store.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use memprof_ptrace::process::ProcStatus;
use memprof_ptrace::read_proc_text;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use serde_json::Value;

/// Digits of an id, as `docker ps` shows them.
const SHORT_ID: usize = 12;
/// Least length of a prefix of an id.
const MIN_PREFIX: usize = 4;

/// Container that a process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Container {
    /// Hexadecimal id, or the name of a container without one.
    id: String,
    has_id: bool,
}

impl Container {
    /// Returns the container of a process. `None` if its cgroups name none, or cannot be read.
    pub(crate) fn for_pid(pid: u32) -> Option<Self> {
        let cgroups = read_proc_text(format!("/proc/{pid}/cgroup")).ok()?;
        Self::parse(&cgroups)
    }

    /// Returns the innermost container that the text of /proc/PID/cgroup names. A line of the text is
    /// `ID:CONTROLLERS:PATH` (cgroups(7)); the first line whose path names a container decides. `None` if no line names
    /// one.
    pub(crate) fn parse(cgroups: &str) -> Option<Self> {
        let paths = cgroups
            .lines()
            .filter_map(|line| line.splitn(3, ':').nth(2));
        let mut found = paths.filter_map(|path| {
            let mut parts = path.rsplit('/').peekable();
            while let Some(part) = parts.next() {
                let parent = parts.peek().copied().unwrap_or_default();
                if let Some(container) = Self::from_cgroup_directory(part, parent) {
                    return Some(container);
                }
            }
            None
        });
        found.next()
    }

    /// Returns the container that one directory of a cgroup's path (`part`) names; `parent` is the directory above it.
    /// `None` if the directory names none.
    fn from_cgroup_directory(part: &str, parent: &str) -> Option<Self> {
        let scope = part.strip_suffix(".scope");
        // The directory is docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope, or the id alone,
        // which has 64 digits.
        let id = scope.unwrap_or(part).rsplit('-').next().unwrap_or_default();
        let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        // conmon watches the container, and is not in it.
        if is_id && !part.starts_with("libpod-conmon") {
            let id = id.to_owned();
            return Some(Self { id, has_id: true });
        }
        let name = scope
            .and_then(|scope| scope.strip_prefix("machine-"))
            .or_else(|| part.strip_prefix("lxc.payload."))
            .or_else(|| (parent == "lxc").then_some(part))?;
        // systemd escapes dashes.
        let id = name.replace("\\x2d", "-");
        Some(Self { id, has_id: false })
    }

    /// Returns the name, or the short id if only an id is known. Looks the name of an id up in the files of Docker and
    /// Podman.
    pub(crate) fn name(&self) -> String {
        let name = self.has_id.then(|| read_container_name(&self.id)).flatten();
        name.unwrap_or_else(|| match self.has_id {
            true => self.id[..SHORT_ID].to_owned(),
            false => self.id.clone(),
        })
    }

    /// Returns whether `text`, which a user typed, names this container: it is its name, the start of its id, or its
    /// host name, which Kubernetes sets to the pod's name. The host name is read in the root directory of `pid`, a
    /// process of this container.
    fn has_name(&self, pid: u32, text: &str) -> bool {
        let is_prefix = self.has_id && text.len() >= MIN_PREFIX && self.id.starts_with(text);
        is_prefix
            || self.name() == text
            || read_host_name(Path::new(&format!("/proc/{pid}/root")))
                .is_some_and(|host| host.trim() == text)
    }
}

/// Most bytes of a host name (`HOST_NAME_MAX`), and its line end.
const MAX_HOST_NAME: u64 = 65;

/// Reads /etc/hostname in the root directory of a process. The process may have chosen the file, so no link leads out
/// of its root, and only a regular file is read. `None` if there is no such file, or if it cannot be read as UTF-8.
fn read_host_name(root: &Path) -> Option<String> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, root, directory, Mode::empty()).ok()?;
    let open = |flags: OFlags| {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        openat2(
            &root,
            "etc/hostname",
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            resolve,
        )
        .ok()
        .map(File::from)
    };
    // Another file may be a device, whose opening has an effect.
    let is_regular = |file: File| file.metadata().is_ok_and(|found| found.is_file());
    if !open(OFlags::PATH).is_some_and(is_regular) {
        return None;
    }
    let mut name = String::new();
    let file = open(OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK)?;
    file.take(MAX_HOST_NAME).read_to_string(&mut name).ok()?;
    Some(name)
}

/// Returns the name of a container by its id, as Docker and Podman store it for root. `None` if neither has it, or
/// their files cannot be read.
fn read_container_name(id: &str) -> Option<String> {
    let read = |path: &str| serde_json::from_slice::<Value>(&fs::read(path).ok()?).ok();
    let docker = || {
        let config = read(&format!("/var/lib/docker/containers/{id}/config.v2.json"))?;
        Some(config["Name"].as_str()?.trim_start_matches('/').to_owned())
    };
    let podman = || {
        let all = read("/var/lib/containers/storage/overlay-containers/containers.json")?;
        let mut all = all.as_array()?.iter();
        let container = all.find(|container| container["id"] == id)?;
        Some(container["names"][0].as_str()?.to_owned())
    };
    docker().or_else(podman)
}

/// Finds a process by the text after `container:`. `NAME` selects the only process of the container, `NAME/PID` the one
/// that has this pid in the container or outside of it.
///
/// # Errors
/// The text behind the slash is no pid, no container has the name, it has no process with that pid, or it has several
/// processes and no pid was given.
pub(crate) fn find_process_in_container(text: &str) -> Result<u32, String> {
    let (name, wanted) = match text.rsplit_once('/') {
        Some((name, pid)) => {
            let parsed = pid.parse::<u32>();
            let pid = parsed.map_err(|_| {
                format!("\"{pid}\" is not a pid: expected container:NAME or container:NAME/PID")
            })?;
            (name, Some(pid))
        }
        None => (text, None),
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_in = |pid: &u32| Container::for_pid(*pid).is_some_and(|one| one.has_name(*pid, name));
    let mut found: Vec<u32> = pids.filter(is_in).collect();
    found.sort_unstable();
    if found.is_empty() {
        return Err(format!(
            "no container has the name or id {name}; `memprof ps --all` lists them"
        ));
    }
    if let Some(wanted) = wanted {
        found.retain(|pid| *pid == wanted || innermost_pid(*pid) == Some(wanted));
    }
    match *found {
        [pid] => Ok(pid),
        [] => Err(format!("no process of container {name} has that pid")),
        _ => {
            let names = found.iter().map(|pid| {
                let command = read_proc_text(Path::new("/proc").join(pid.to_string()).join("comm"));
                let command = command.unwrap_or_default();
                format!("container:{name}/{pid} ({})", command.trim())
            });
            let names = names.collect::<Vec<_>>().join(", ");
            Err(format!(
                "the container has several processes, choose one: {names}"
            ))
        }
    }
}

/// Returns the pid of a process in its innermost pid namespace. `None` if its status cannot be read, as after its end,
/// or lists no namespaces.
fn innermost_pid(pid: u32) -> Option<u32> {
    let status = ProcStatus::read_thread(pid).ok()?;
    status.ns_pids.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_is_named_by_its_cgroup() {
        let id = "0123456789abcdef".repeat(4);
        let check = |cgroups: &str, expected: Option<&str>| {
            let found = Container::parse(&cgroups.replace("ID", &id));
            assert_eq!(
                found.map(|one| one.name()).as_deref(),
                expected,
                "{cgroups}"
            );
        };
        let short = Some("0123456789ab");
        check("0::/system.slice/docker-ID.scope", short);
        check("12:memory:/docker/ID\n0::/", short);
        check(
            "0::/kubepods.slice/pod7.slice/cri-containerd-ID.scope",
            short,
        );
        check("0::/kubepods/besteffort/pod7-a-b/ID", short);
        check("0::/machine.slice/libpod-ID.scope/container", short);
        check("0::/system.slice/docker-ID.scope/init.scope", short);
        check("0::/machine.slice/libpod-conmon-ID.scope", None);
        check("0::/machine.slice/machine-my\\x2dbox.scope", Some("my-box"));
        check("0::/lxc.payload.web/system.slice/ssh.service", Some("web"));
        check("1:name=systemd:/lxc/web", Some("web"));
        check("0::/user.slice/user-0.slice/session-1.scope", None);
        check("0::/system.slice/docker.service", None);
        check("0::/", None);
        check("", None);
    }

    #[test]
    fn container_with_a_word_in_place_of_a_pid_is_refused() {
        for text in ["web/abc", "web/", "web/-1"] {
            let error = find_process_in_container(text).unwrap_err();
            assert!(error.contains("is not a pid: expected"), "{text}: {error}");
        }
    }

    #[test]
    fn host_name_is_read_of_a_regular_file_below_the_root_only() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("etc/hostname");
        fs::create_dir(place.path().join("etc")).unwrap();
        let name = || read_host_name(place.path());
        assert_eq!(name(), None);
        fs::write(&file, "pod-7\n").unwrap();
        assert_eq!(name().as_deref(), Some("pod-7\n"));
        fs::write(&file, "x".repeat(1 << 20)).unwrap();
        assert_eq!(name().unwrap().len() as u64, MAX_HOST_NAME);
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
        assert_eq!(name(), None);
        fs::remove_file(&file).unwrap();
        // Its opening would wait for a writer.
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(name(), None);
    }
}
