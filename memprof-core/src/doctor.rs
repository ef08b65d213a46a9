//! What is wrong with the profiling of a process, and the line that mends it.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::backend::{Backend, Kind};
use crate::facts::is_shared;
use crate::jemalloc::Jemalloc;
use crate::tcmalloc;

/// Fewer samples than these of the live heap make a poor profile.
const FEW_SAMPLES: u64 = 100;
/// Finer than one sample for 4 KiB, sampling itself shows in the host's latency.
const FINE_LG_SAMPLE: u64 = 12;
/// A dump directory with less room than this is nearly full.
const LITTLE_ROOM: u64 = 64 << 20;
/// What the environment has to say before a program starts.
const CONF: &str = "prof:true,prof_active:false";

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Profiling cannot be on, or a dump cannot be kept.
    Error,
    /// It works, with a catch.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A word for scripts.
    pub kind: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, naming the thing.
    pub message: String,
    /// What mends it.
    pub remedy: String,
}

/// What is known of the process; gathered by the profiler, so that the judgement is pure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// All of them, jemallocs too.
    pub allocators: Vec<Seen>,
    pub jemallocs: Vec<Examined>,
    /// The file whose `malloc` serves the process, where that is none of the allocators.
    pub unknown_malloc: Option<PathBuf>,
    /// The program's file holds jemalloc's messages, so one is linked in.
    pub program_contains_jemalloc: bool,
    /// The environment is ignored.
    pub secure_execution: bool,
    /// The variables for allocators that are set, with their values.
    pub environment: Vec<(String, String)>,
    /// The loader offers `_dl_find_object`, so libgcc unwinds without a lock.
    pub lock_free_unwinding: bool,
    /// The C library is musl.
    pub is_musl: bool,
    /// The file whose `dl_iterate_phdr` stands before the C library's.
    pub interposer: Option<String>,
    /// Allocators whose stacks our walk did not find.
    pub given_up_walks: Vec<String>,
    pub dump_dir: DumpDir,
}

/// Any allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// `tcmalloc 2.10`.
    pub name: String,
    pub kind: Kind,
    pub owns_malloc: bool,
    /// Why it cannot be profiled, with the remedy.
    pub unavailable: Option<(String, String)>,
    /// Symbols that it should have.
    pub missing: Vec<&'static str>,
    pub sample_interval: Option<u64>,
}

impl Seen {
    pub(crate) fn of(backend: &dyn Backend) -> Self {
        let identity = backend.identity();
        let unavailable = backend.require_profiling().err();
        Self {
            name: identity.to_string(),
            kind: identity.kind,
            owns_malloc: identity.owns_malloc,
            unavailable: unavailable.map(|error| (error.message, error.remedy)),
            missing: backend.missing().to_vec(),
            sample_interval: backend.sample_interval(),
        }
    }
}

/// A jemalloc and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Examined {
    pub version: String,
    pub conf_variable: Option<String>,
    /// What the program sets in a variable of its own that this jemalloc cannot see.
    pub hidden_conf: Option<String>,
    pub config_prof: bool,
    pub config_stats: bool,
    pub opt_prof: bool,
    pub lg_sample: Option<u64>,
    pub allocated: Option<u64>,
    /// `opt.prof_prefix`.
    pub prefix: String,
    /// Everybody may write to the directory of `prefix`.
    pub prefix_is_shared: bool,
    /// It dumps by itself: `prof_final`, `prof_gdump` or `lg_prof_interval`.
    pub dumps_by_itself: bool,
}

impl Examined {
    pub(crate) fn of(
        jemalloc: &Jemalloc,
        allocated: Option<u64>,
        hidden_conf: Option<String>,
    ) -> Self {
        let mallctl = &jemalloc.mallctl;
        let on = |name| mallctl.read_bool(name).unwrap_or(false);
        // -1 (all bits set) means never.
        let interval = mallctl
            .read::<usize>(c"opt.lg_prof_interval")
            .unwrap_or(usize::MAX);
        let prefix = mallctl.read_text(c"opt.prof_prefix");
        let prefix = prefix.unwrap_or_else(|_| String::new());
        Self {
            version: jemalloc.identity.version.clone(),
            conf_variable: jemalloc.conf_variable.clone(),
            hidden_conf,
            config_prof: jemalloc.config_prof,
            config_stats: jemalloc.config_stats,
            opt_prof: jemalloc.opt_prof,
            lg_sample: jemalloc.lg_sample(),
            allocated,
            prefix_is_shared: is_shared(&prefix),
            prefix,
            dumps_by_itself: on(c"opt.prof_final") || on(c"prof.gdump") || interval < 64,
        }
    }
}

/// The dump directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct DumpDir {
    pub path: PathBuf,
    /// Why dumps cannot be kept there, with the remedy.
    pub unusable: Option<(String, String)>,
    /// Bytes that this user may still write there.
    pub room: Option<u64>,
    /// The file system may block for long, as NFS and FUSE do.
    pub may_block: bool,
}

/// Judges.
pub(crate) fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    whole_process(facts, &mut findings);
    for allocator in &facts.allocators {
        one_allocator(allocator, &mut findings);
    }
    for jemalloc in &facts.jemallocs {
        one_jemalloc(jemalloc, facts, &mut findings);
    }
    dump_dir(&facts.dump_dir, &mut findings);
    findings
}

fn finding(
    kind: &'static str,
    severity: Severity,
    message: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding {
        kind,
        severity,
        message: message.into(),
        remedy: remedy.into(),
    }
}

impl Facts {
    fn can_profile(&self) -> bool {
        self.allocators
            .iter()
            .any(|each| each.unavailable.is_none())
    }
}

fn whole_process(facts: &Facts, findings: &mut Vec<Finding>) {
    use Severity::Warning;
    if facts.jemallocs.is_empty() && !facts.can_profile() {
        findings.push(without_profiler(facts));
    }
    // The C library's own is there beside each of them.
    let serving = facts
        .allocators
        .iter()
        .filter(|each| each.kind != Kind::Glibc);
    let serving: Vec<&str> = serving.map(|each| each.name.as_str()).collect();
    if serving.len() > 1 {
        findings.push(finding(
            "several_allocators",
            Warning,
            format!(
                "{} allocators serve this process ({}); a profile of one shows nothing of the others",
                serving.len(),
                serving.join(", ")
            ),
            "`dump` writes one file for each that is driven; `status` tells which one serves malloc, \
             allocator=NAME drives another",
        ));
    }
    if let Some(path) = &facts.unknown_malloc {
        findings.push(finding(
            "unknown_malloc",
            Warning,
            format!(
                "malloc is served by {}, which memprof does not know: no profile shows what it \
                 gives out",
                path.display()
            ),
            "start the program without it, or with `memprof run`",
        ));
    }
    if facts.jemallocs.iter().any(|jemalloc| jemalloc.opt_prof) {
        findings.extend(unwinder(facts));
    }
    for walk in &facts.given_up_walks {
        findings.push(finding(
            "unwinder_given_up",
            Warning,
            format!("memprof's own stack walk was given up, the allocator walks since: {walk}"),
            "nothing is lost but speed; unwinder=allocator (in [plugin.config], or with \
             `activate`) does not try again",
        ));
    }
}

/// What a sample may meet while it walks the stack.
fn unwinder(facts: &Facts) -> Option<Finding> {
    use Severity::Warning;
    if facts.is_musl {
        return Some(finding(
            "musl",
            Warning,
            "the C library is musl: a sample that is taken during dlopen may deadlock or crash",
            "run the program with glibc (a Debian image instead of Alpine), or activate only \
             after it has loaded everything",
        ));
    }
    if !facts.lock_free_unwinding {
        return Some(finding(
            "exposed_unwinder",
            Warning,
            "this C library has no _dl_find_object (glibc 2.35): a sample that is taken during \
             dlopen takes the loader's lock",
            "activate when no library is being loaded, or use a newer glibc",
        ));
    }
    let interposer = facts.interposer.as_ref()?;
    Some(finding(
        "interposed_unwinder",
        Warning,
        format!(
            "{interposer} stands before the C library's dl_iterate_phdr: an unwinder that calls \
             it runs that code in each sample, inside of malloc"
        ),
        "it must neither allocate nor lock; activate for a while on a test instance first",
    ))
}

/// Why nothing in the process can be profiled, where it has no jemalloc.
fn without_profiler(facts: &Facts) -> Finding {
    use Severity::Error;
    let owner = facts.allocators.iter().find(|each| each.owns_malloc);
    if facts.program_contains_jemalloc {
        return finding(
            "hidden_jemalloc",
            Error,
            "the program contains jemalloc, but its symbols are stripped and not exported",
            "link it with -Wl,--export-dynamic-symbol=mallctl (and mallctlnametomib, mallctlbymib, \
             malloc_stats_print), do not strip it, or hand the functions over \
             (memprof.jemalloc/1)",
        );
    }
    if facts.secure_execution {
        return finding(
            "secure_execution",
            Error,
            "this process runs in secure-execution mode (AT_SECURE), so the loader ignores \
             LD_PRELOAD",
            "start it without changing uid (setpriv --reuid=USER --regid=GROUP --init-groups), or \
             use /etc/ld.so.preload and /etc/malloc.conf",
        );
    }
    if let Some(owner) = owner.filter(|owner| owner.kind.has_profiler())
        && let Some((message, remedy)) = &owner.unavailable
    {
        return finding("no_profiler", Error, message, remedy);
    }
    let owner = owner.map_or("the allocator", |owner| owner.name.as_str());
    finding(
        "no_jemalloc",
        Error,
        format!("{owner} has no profiler, and this process has no jemalloc that memprof can find"),
        format!("start it with LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF={CONF}"),
    )
}

fn one_allocator(allocator: &Seen, findings: &mut Vec<Finding>) {
    let name = &allocator.name;
    if !allocator.missing.is_empty() {
        findings.push(finding(
            "incomplete_allocator",
            Severity::Warning,
            format!("{name} lacks {}", allocator.missing.join(", ")),
            "what needs them is refused; use a whole and newer build of it",
        ));
    }
    let (finest, catch) = match allocator.kind {
        Kind::Tcmalloc => (
            tcmalloc::FINE_INTERVAL,
            "which gives each sampled object a page of its own",
        ),
        _ => (1 << FINE_LG_SAMPLE, "which slows allocations down"),
    };
    if let Some(interval) = allocator
        .sample_interval
        .filter(|interval| *interval < finest)
    {
        findings.push(finding(
            "fine_interval",
            Severity::Warning,
            format!("{name} takes one sample for each {interval} bytes, {catch}"),
            "`activate sample_interval=512KiB` samples once for 512 KiB",
        ));
    }
}

fn one_jemalloc(jemalloc: &Examined, facts: &Facts, findings: &mut Vec<Finding>) {
    use Severity::{Error, Warning};
    let version = &jemalloc.version;
    // With several, one that profiles is enough.
    let severity = if facts.can_profile() { Warning } else { Error };
    if !jemalloc.config_prof {
        findings.push(finding(
            "not_compiled_in",
            severity,
            format!("jemalloc {version} was built without profiling"),
            "rebuild it with --enable-prof (Rust: feature \"profiling\" of tikv-jemallocator), or \
             use Debian's libjemalloc2",
        ));
    } else if !jemalloc.opt_prof {
        findings.push(not_started(jemalloc, facts, severity));
    }
    if let Some(symbol) = &jemalloc.hidden_conf {
        findings.push(finding(
            "hidden_malloc_conf",
            Warning,
            format!(
                "the program has a variable {symbol}, but does not export it: jemalloc {version}, \
                 which lies in a shared library, does not see it"
            ),
            format!("link the program with -Wl,--export-dynamic-symbol={symbol}"),
        ));
    }
    if !jemalloc.config_stats {
        findings.push(finding(
            "no_statistics",
            Warning,
            format!("jemalloc {version} was built without statistics: its figures stay 0"),
            "rebuild it with --enable-stats (Rust: feature \"stats\" of tikv-jemallocator)",
        ));
    }
    if !jemalloc.opt_prof {
        return;
    }
    if version.starts_with("5.2.") {
        findings.push(finding(
            "no_reactivation",
            Warning,
            format!("jemalloc {version} may never sample again once it was deactivated"),
            "use jemalloc 5.3, or leave it active",
        ));
    }
    if let Some((_, swallowed)) = jemalloc.prefix.split_once(':') {
        findings.push(finding(
            "swallowed_option",
            Warning,
            format!(
                "prof_prefix is {:?}: it swallowed {swallowed:?}",
                jemalloc.prefix
            ),
            "separate options by commas: prof_prefix:PATH,OPTION:VALUE",
        ));
    }
    if jemalloc.dumps_by_itself && jemalloc.prefix_is_shared {
        findings.push(finding(
            "shared_dumps",
            Warning,
            format!(
                "jemalloc dumps by itself to {:?}, where others may put files and links",
                jemalloc.prefix
            ),
            "leave prof_final, prof_gdump and lg_prof_interval out, or set prof_prefix to a \
             directory of this user's own",
        ));
    }
    sampling(jemalloc, findings);
}

/// Why `opt.prof` is false, as far as the environment tells.
fn not_started(jemalloc: &Examined, facts: &Facts, severity: Severity) -> Finding {
    let version = &jemalloc.version;
    let variable = jemalloc.conf_variable.as_deref().unwrap_or("MALLOC_CONF");
    if facts.secure_execution {
        return finding(
            "secure_execution",
            severity,
            format!(
                "this process runs in secure-execution mode (AT_SECURE), so jemalloc {version} ignores {variable}"
            ),
            "start it without changing uid (setpriv --reuid=USER --regid=GROUP --init-groups), or \
             use /etc/malloc.conf",
        );
    }
    let asks = |value: &str| value.split(',').any(|option| option == "prof:true");
    let other = facts
        .environment
        .iter()
        .find(|(name, value)| name != variable && asks(value));
    match other {
        Some((name, value)) if jemalloc.conf_variable.is_some() => finding(
            "wrong_variable",
            severity,
            format!("{name} is set, but this program's jemalloc {version} reads {variable}"),
            format!("restart it with {variable}={value}"),
        ),
        _ => finding(
            "not_started",
            severity,
            format!("jemalloc {version} was started with opt.prof=false"),
            format!("restart this program with {variable}={CONF}"),
        ),
    }
}

fn sampling(jemalloc: &Examined, findings: &mut Vec<Finding>) {
    use Severity::Warning;
    let Some(lg_sample) = jemalloc.lg_sample else {
        return;
    };
    let interval = 1u64.checked_shl(lg_sample as u32).unwrap_or(u64::MAX);
    if let Some(allocated) = jemalloc.allocated
        && allocated / interval < FEW_SAMPLES
        && lg_sample > FINE_LG_SAMPLE
    {
        let samples = allocated / interval;
        findings.push(finding(
            "coarse_interval",
            Warning,
            format!("one sample for each {interval} bytes gives about {samples} samples of {allocated} live bytes"),
            "`reset lg_sample=14` samples once for 16 KiB; it drops the samples so far",
        ));
    }
}

fn dump_dir(dir: &DumpDir, findings: &mut Vec<Finding>) {
    use Severity::{Error, Warning};
    let path = |dir: &DumpDir| -> String { Path::display(&dir.path).to_string() };
    if let Some((message, remedy)) = &dir.unusable {
        findings.push(finding("dump_dir_unusable", Error, message, remedy));
    }
    if dir.may_block {
        findings.push(finding(
            "dump_dir_remote",
            Warning,
            format!(
                "the dump directory {} is on NFS or FUSE, so replies to `dump` may take long",
                path(dir)
            ),
            "the host itself never waits for it; use a local directory for quick replies",
        ));
    }
    if let Some(room) = dir.room.filter(|room| *room < LITTLE_ROOM) {
        findings.push(finding(
            "dump_dir_nearly_full",
            Warning,
            format!(
                "the dump directory {} has room for {room} more bytes",
                path(dir)
            ),
            "free space, or lower keep.count and keep.bytes",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy_jemalloc() -> Examined {
        Examined {
            version: "5.3.0".to_owned(),
            conf_variable: Some("MALLOC_CONF".to_owned()),
            hidden_conf: None,
            config_prof: true,
            config_stats: true,
            opt_prof: true,
            lg_sample: Some(19),
            allocated: Some(1 << 30),
            prefix: "jeprof".to_owned(),
            prefix_is_shared: false,
            dumps_by_itself: false,
        }
    }

    fn seen(kind: Kind) -> Seen {
        Seen {
            name: format!("{kind} 1.0"),
            kind,
            owns_malloc: true,
            unavailable: None,
            missing: Vec::new(),
            sample_interval: None,
        }
    }

    fn without(kind: Kind) -> Seen {
        Seen {
            unavailable: Some(("it has none".to_owned(), "take another".to_owned())),
            ..seen(kind)
        }
    }

    fn healthy() -> Facts {
        Facts {
            allocators: vec![seen(Kind::Jemalloc)],
            jemallocs: vec![healthy_jemalloc()],
            lock_free_unwinding: true,
            dump_dir: DumpDir {
                path: "/d".into(),
                room: Some(1 << 40),
                ..DumpDir::default()
            },
            ..Facts::default()
        }
    }

    /// Checks that `change` to a healthy process is found as `kind`, and nothing else.
    fn check(change: impl FnOnce(&mut Facts), kind: &str, severity: Severity, part: &str) {
        let mut facts = healthy();
        change(&mut facts);
        let findings = examine(&facts);
        let kinds: Vec<_> = findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [kind]);
        assert_eq!(findings[0].severity, severity);
        let text = format!("{}; {}", findings[0].message, findings[0].remedy);
        assert!(text.contains(part), "{text}");
        assert!(!findings[0].remedy.is_empty());
    }

    fn jemalloc(facts: &mut Facts) -> &mut Examined {
        &mut facts.jemallocs[0]
    }

    /// A jemalloc that was not started with profiling.
    fn switched_off(facts: &mut Facts) -> &mut Examined {
        facts.allocators = vec![without(Kind::Jemalloc)];
        jemalloc(facts).opt_prof = false;
        jemalloc(facts)
    }

    /// A process whose malloc is `kind`, which cannot profile.
    fn only(facts: &mut Facts, kind: Kind) {
        facts.allocators = vec![without(kind)];
        facts.jemallocs.clear();
    }

    #[test]
    fn healthy_process_has_no_findings() {
        assert_eq!(examine(&healthy()), []);
    }

    #[test]
    fn what_keeps_profiling_off() {
        use Severity::Error;
        let remedy = "LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=prof:true";
        for kind in [Kind::Glibc, Kind::Mimalloc] {
            check(|facts| only(facts, kind), "no_jemalloc", Error, remedy);
        }
        let minimal = |facts: &mut Facts| only(facts, Kind::Tcmalloc);
        check(minimal, "no_profiler", Error, "it has none; take another");
        let changed_user = |facts: &mut Facts| {
            only(facts, Kind::Glibc);
            facts.secure_execution = true;
        };
        check(
            changed_user,
            "secure_execution",
            Error,
            "/etc/ld.so.preload",
        );
        let hidden = |facts: &mut Facts| {
            only(facts, Kind::Glibc);
            facts.program_contains_jemalloc = true;
        };
        check(
            hidden,
            "hidden_jemalloc",
            Error,
            "--export-dynamic-symbol=mallctl",
        );
        let without = |facts: &mut Facts| switched_off(facts).config_prof = false;
        check(without, "not_compiled_in", Error, "--enable-prof");
        check(
            |facts| {
                switched_off(facts);
            },
            "not_started",
            Error,
            "restart this program with MALLOC_CONF=prof:true",
        );
        let secure = |facts: &mut Facts| {
            switched_off(facts);
            facts.secure_execution = true;
        };
        check(secure, "secure_execution", Error, "setpriv");
    }

    #[test]
    fn variable_of_another_build() {
        let rust = |facts: &mut Facts| {
            switched_off(facts).conf_variable = Some("_RJEM_MALLOC_CONF".to_owned());
            facts.environment = vec![(
                "MALLOC_CONF".to_owned(),
                "prof:true,lg_prof_sample:14".to_owned(),
            )];
        };
        let remedy = "restart it with _RJEM_MALLOC_CONF=prof:true,lg_prof_sample:14";
        check(rust, "wrong_variable", Severity::Error, remedy);
    }

    #[test]
    fn catches_of_a_profile() {
        use Severity::Warning;
        let stats = |facts: &mut Facts| jemalloc(facts).config_stats = false;
        check(stats, "no_statistics", Warning, "--enable-stats");
        let old = |facts: &mut Facts| jemalloc(facts).version = "5.2.1-0-gea6b3e9".to_owned();
        check(old, "no_reactivation", Warning, "use jemalloc 5.3");
        let prefix = |facts: &mut Facts| jemalloc(facts).prefix = "/x:prof_active:false".to_owned();
        check(
            prefix,
            "swallowed_option",
            Warning,
            "swallowed \"prof_active:false\"",
        );
        let shared = |facts: &mut Facts| {
            jemalloc(facts).prefix = "/tmp/jeprof".to_owned();
            jemalloc(facts).prefix_is_shared = true;
            jemalloc(facts).dumps_by_itself = true;
        };
        check(shared, "shared_dumps", Warning, "/tmp/jeprof");
        let fine = |facts: &mut Facts| facts.allocators[0].sample_interval = Some(512);
        check(fine, "fine_interval", Warning, "each 512 bytes");
        let pages = |facts: &mut Facts| {
            facts.allocators = vec![Seen {
                sample_interval: Some(64 << 10),
                ..seen(Kind::Tcmalloc)
            }];
            facts.jemallocs.clear();
        };
        check(pages, "fine_interval", Warning, "a page of its own");
        let coarse = |facts: &mut Facts| jemalloc(facts).allocated = Some(10 << 20);
        check(coarse, "coarse_interval", Warning, "about 20 samples");
        let unwinder = |facts: &mut Facts| facts.lock_free_unwinding = false;
        check(unwinder, "exposed_unwinder", Warning, "_dl_find_object");
        let musl = |facts: &mut Facts| {
            facts.is_musl = true;
            facts.lock_free_unwinding = false;
        };
        check(musl, "musl", Warning, "run the program with glibc");
        let interposed = |facts: &mut Facts| facts.interposer = Some("/usr/bin/db".to_owned());
        check(
            interposed,
            "interposed_unwinder",
            Warning,
            "/usr/bin/db stands before",
        );
        let conf = |facts: &mut Facts| {
            jemalloc(facts).hidden_conf = Some("malloc_conf".to_owned());
        };
        let remedy = "-Wl,--export-dynamic-symbol=malloc_conf";
        check(conf, "hidden_malloc_conf", Warning, remedy);
        let two = |facts: &mut Facts| facts.allocators.push(seen(Kind::Tcmalloc));
        let names = "2 allocators serve this process (jemalloc 1.0, tcmalloc 1.0)";
        check(two, "several_allocators", Warning, names);
        let stranger = |facts: &mut Facts| facts.unknown_malloc = Some("/lib/libasan.so".into());
        check(stranger, "unknown_malloc", Warning, "/lib/libasan.so");
        let half = |facts: &mut Facts| facts.allocators[0].missing = vec!["mi_collect"];
        check(half, "incomplete_allocator", Warning, "lacks mi_collect");
    }

    #[test]
    fn the_c_librarys_malloc_beside_another_is_no_news() {
        let mut facts = healthy();
        facts.allocators.push(without(Kind::Glibc));
        assert_eq!(examine(&facts), []);
    }

    #[test]
    fn one_that_profiles_is_enough() {
        let mut facts = healthy();
        facts.jemallocs.push(Examined {
            opt_prof: false,
            ..healthy_jemalloc()
        });
        assert!(
            examine(&facts)
                .iter()
                .all(|finding| finding.severity == Severity::Warning)
        );
    }

    #[test]
    fn dump_directories() {
        use Severity::{Error, Warning};
        let unusable = |facts: &mut Facts| {
            let why = "failed to use /d: Permission denied (EACCES)".to_owned();
            facts.dump_dir.unusable = Some((why, "set dump_dir".to_owned()));
        };
        check(unusable, "dump_dir_unusable", Error, "EACCES");
        let remote = |facts: &mut Facts| facts.dump_dir.may_block = true;
        check(remote, "dump_dir_remote", Warning, "NFS or FUSE");
        let full = |facts: &mut Facts| facts.dump_dir.room = Some(4096);
        check(
            full,
            "dump_dir_nearly_full",
            Warning,
            "room for 4096 more bytes",
        );
    }
}
