//! `memprof doctor`: what prevents a heap profile. A process without the plugin is examined from outside.

use std::ffi::CStr;
use std::fs;

use memprof_messages::{
    DoctorReport, Finding, RuntimeHeap, RuntimeSigns, Severity, find_runtime_heaps, findings_text,
};
use memprof_ptrace::frame_memory::loaded_libraries;
use memprof_ptrace::library_image::LibraryImage;
use memprof_ptrace::maps::mappings;
use memprof_ptrace::memory::Memory;
use memprof_ptrace::{
    ExaminedProcess, Purpose, Refusal, examine_process_for, examine_process_for_load,
};
use serde::Serialize;

use crate::exit::{Outcome, UNAVAILABLE};
use crate::message::{self, MessageArgs};
use crate::output;
use crate::process_names::describe_process;
use crate::program_kind::{ProgramKinds, stripped_allocator};
use crate::reply::send_request;
use crate::subject::{Subject, find_subject};

/// Output of `memprof doctor --json` on a process without the plugin.
#[derive(Serialize)]
struct OutsideDiagnosis {
    status: &'static str,
    text: String,
    pid: u32,
    /// Whether the plugin is mapped in it.
    has_plugin: bool,
    #[serde(flatten)]
    report: DoctorReport,
    /// Allocators that the process maps or is linked with.
    allocators: Vec<&'static str>,
    language: Option<&'static str>,
    /// Command to type next.
    next: String,
}

/// Runs `memprof doctor`: requests the diagnosis of a host, or examines a process without the plugin from outside.
pub(crate) fn run(args: &MessageArgs) -> Outcome {
    let mut client = match find_subject(Some(&args.to), args.target())? {
        Subject::Host(client) => client,
        Subject::Process(pid) => return diagnose_outside(pid, args.to.json),
    };
    let arguments = message::join_args(args.key_values());
    let reply = send_request(&mut client, "doctor", &arguments)?;
    message::print_reply(&reply, args.to.json)
}

/// Diagnoses a process without a reachable plugin, and prints the findings, as JSON if `json`. The exit code is 4 if
/// the process cannot be attached to, or if its allocator lacks symbols.
fn diagnose_outside(pid: u32, json: bool) -> Outcome {
    let examined = examine_process_for_load(pid);
    let mut findings = Vec::new();
    if let Err(refusal) = &examined {
        findings.push(refusal_finding(pid, refusal));
    }
    let heaps = detect_runtime_heaps(pid);
    findings.extend(heaps.iter().map(|heap| {
        let finding = heap.to_finding();
        let remedy = finding.remedy.replace("PID", &pid.to_string());
        Finding { remedy, ..finding }
    }));
    findings.extend(examined.as_ref().ok().and_then(seccomp_notice));
    let stripped = stripped_allocator(pid);
    findings.extend(stripped.map(|name| stripped_allocator_finding(pid, name)));
    let has_plugin = examined.as_ref().is_ok_and(|process| process.has_plugin);
    findings.extend(has_plugin.then(|| plugin_without_socket_finding(pid)));
    let kind = ProgramKinds::default().kind_for_pid(pid);
    let next = match stripped {
        // A stripped jemalloc is found by its tables in memory, so `holders` works.
        Some("jemalloc") => suggested_command(pid, false),
        Some(_) => format!("memprof ledger {pid}"),
        None => suggested_command(pid, examined.is_ok()),
    };
    let allocators = match &*kind.allocators {
        [] => "no allocator that memprof knows by name".to_owned(),
        names => names.join(", "),
    };
    let can = match (&examined, has_plugin) {
        (Ok(_), false) => "it can be attached to",
        (Ok(_), true) => "it can be attached to again if memprof has loaded the plugin",
        (Err(_), _) => "it cannot be attached to",
    };
    let text = format!(
        "{}: {}; {}{allocators}; {can}\n{}\nnext: {next}",
        describe_process(pid),
        match has_plugin {
            true => "with the plugin, but without a control socket",
            false => "without the plugin",
        },
        kind.language
            .map_or_else(String::new, |language| format!("{language}; ")),
        findings_text(&findings)
    );
    let is_refused = examined.is_err() || stripped.is_some();
    let diagnosis = OutsideDiagnosis {
        status: if is_refused { "error" } else { "ok" },
        text,
        pid,
        has_plugin,
        report: DoctorReport {
            healthy: findings.is_empty(),
            findings,
        },
        allocators: kind.allocators,
        language: kind.language,
        next,
    };
    match json {
        true => output::print(&serde_json::to_string(&diagnosis)?),
        false => output::print(&diagnosis.text),
    }
    Ok(if is_refused { UNAVAILABLE } else { 0 }.into())
}

/// Returns the command to type next about a process without the plugin. The choice depends on whether the process can
/// be attached to (`can_attach`), and on whether memprof may read its memory.
pub(crate) fn suggested_command(pid: u32, can_attach: bool) -> String {
    match (can_attach, examine_process_for(Purpose::Read, pid).is_ok()) {
        (true, _) => format!("memprof record {pid}"),
        (false, true) => format!("memprof holders {pid}"),
        (false, false) => "memprof ps --all".to_owned(),
    }
}

/// Builds the finding that the plugin cannot be loaded. If memprof may read the process nevertheless, the remedy also
/// names the commands that need no plugin.
fn refusal_finding(pid: u32, refusal: &Refusal) -> Finding {
    let remedy = memprof_attach::refusal_remedy(pid, refusal);
    let remedy = remedy.unwrap_or_else(|| "nothing helps while it runs".to_owned());
    let remedy = match examine_process_for(Purpose::Read, pid) {
        Ok(_) => format!(
            "{remedy}; `memprof leaks --prove {pid}` and `memprof holders {pid}` need no plugin"
        ),
        Err(_) => remedy,
    };
    Finding {
        kind: "not_attachable".into(),
        severity: Severity::Error.into(),
        message: format!("no profile can be taken: the process {refusal}"),
        remedy,
    }
}

/// Builds the finding that the process has the plugin, but no control socket. The text names both possible reasons,
/// because it is not visible from outside whether the program has loaded the plugin itself.
fn plugin_without_socket_finding(pid: u32) -> Finding {
    Finding {
        kind: "no_control_socket".into(),
        severity: Severity::Notice.into(),
        message: "the plugin has no control socket: either memprof was attached before and has left, or the program \
                  has loaded the plugin itself, which then answers, and may sample, by the program's own command alone"
            .to_owned(),
        remedy: format!(
            "after an attachment, none is needed: `memprof record {pid}` attaches again; a plugin that the program has loaded \
             needs `control=on` in its configuration (in Redis `control on`) from the program's start"
        ),
    }
}

/// Builds the finding that the functions of an allocator that is linked into the program have no symbols.
fn stripped_allocator_finding(pid: u32, allocator: &str) -> Finding {
    Finding {
        kind: "stripped_allocator".into(),
        severity: Severity::Error.into(),
        message: stripped_allocator_text(allocator),
        remedy: stripped_allocator_remedy(pid, allocator),
    }
}

/// Returns the message about an allocator that is linked into the program and whose functions have no symbols.
pub(crate) fn stripped_allocator_text(allocator: &str) -> String {
    format!(
        "the program contains {allocator}, but was stripped, so nothing tells which functions are {allocator}'s: what it \
         gives out is in no profile"
    )
}

/// Returns the remedy for an allocator whose functions have no symbols: keep the symbols in the next build. Also names
/// the commands that work without symbols on the running process.
pub(crate) fn stripped_allocator_remedy(pid: u32, allocator: &str) -> String {
    let now = match allocator {
        "jemalloc" => format!(
            "as it runs, `memprof leaks --prove {pid}`, `memprof holders {pid}` and `memprof ledger {pid}` work"
        ),
        _ => format!("as it runs, `memprof ledger {pid}` works"),
    };
    format!(
        "keep its symbols (Cargo: strip = \"debuginfo\"; strip --strip-debug), and start it again; {now}"
    )
}

/// Returns the notice that attaching will read the process's seccomp filter, and may refuse because of it. `None` if
/// the process has no filter.
fn seccomp_notice(process: &ExaminedProcess) -> Option<Finding> {
    process.has_seccomp_filter().then(|| Finding {
        kind: "seccomp_filter".into(),
        severity: Severity::Notice.into(),
        message: "a seccomp filter limits its system calls; attaching reads the filter, and refuses if it could kill the process"
            .to_owned(),
        remedy: "nothing to do".to_owned(),
    })
}

/// Finds the language runtimes of a process that keep objects in a heap of their own, not in malloc's. Detects them by
/// symbols and names of the mapped files, by the environment and by the arguments. Empty if the process's memory may
/// not be read.
fn detect_runtime_heaps(pid: u32) -> Vec<RuntimeHeap> {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let words = |bytes: Vec<u8>| -> Vec<String> {
        let words = bytes.split(|byte| *byte == 0);
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    };
    let maps = read("maps");
    let Ok(memory) = Memory::open_by_child(pid) else {
        return Vec::new();
    };
    let loaded = loaded_libraries(&memory, &maps).unwrap_or_default();
    // The first file that is mapped from its start is the program.
    let programs = mappings(&maps).filter(|mapping| mapping.inode != 0 && mapping.offset == 0);
    let program = programs.map(|mapping| mapping.range.start).next();
    let images: Vec<_> = program
        .into_iter()
        .chain(loaded)
        .filter_map(|base| LibraryImage::read(&memory, base).ok())
        .collect();
    let is_exported = |name: &CStr| {
        let name = name.to_str().unwrap_or_default();
        images
            .iter()
            .any(|image| image.symbol_address(name).is_some())
    };
    let files: Vec<_> = mappings(&maps)
        .filter(|mapping| mapping.is_executable())
        .map(|mapping| String::from_utf8_lossy(mapping.file_name()).into_owned())
        .collect();
    let variables = words(read("environ"));
    let variable = |name: &str| {
        let mut variables = variables.iter();
        variables.find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    };
    find_runtime_heaps(&RuntimeSigns {
        is_exported: &is_exported,
        files: &files,
        variable: &variable,
        arguments: &words(read("cmdline")),
    })
}
