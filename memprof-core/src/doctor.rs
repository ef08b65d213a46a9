//! Diagnoses why profiling cannot work in a process, and how to fix it.

mod allocator;
mod conf_sources;
mod facts;
mod gather;
mod malloc_conf;
mod process;

use memprof_messages::{Finding, Severity};
use std::path::Path;

use allocator::{check_allocator, check_jemalloc};
use facts::{AllocatorFacts, DumpDirFacts, JemallocFacts};
use process::check_process;

use crate::allocators::unprofilable::Unprofilable;

pub(crate) use facts::Facts;
pub(crate) use gather::gather_facts;

/// Free space in bytes below which a dump directory counts as nearly full.
const MIN_FREE_SPACE: u64 = 64 << 20;

/// Derives findings from the facts: about runtimes with their own heaps, the process, each allocator, each jemalloc,
/// and the dump directory, in this order.
pub(crate) fn diagnose(facts: &Facts) -> Vec<Finding> {
    let heaps = facts.runtime_heaps.iter();
    let mut findings: Vec<_> = heaps.map(|heap| heap.to_finding()).collect();
    check_process(facts, &mut findings);
    for allocator in &facts.allocators {
        check_allocator(allocator, &mut findings);
    }
    for jemalloc in &facts.jemallocs {
        check_jemalloc(jemalloc, facts, &mut findings);
    }
    check_dump_dir(&facts.dump_dir, &mut findings);
    findings
}

/// Creates a finding. `kind` is its machine-readable code, `remedy` an imperative sentence.
fn new_finding(
    kind: &'static str,
    severity: Severity,
    message: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding {
        kind: kind.into(),
        severity: severity.into(),
        message: message.into(),
        remedy: remedy.into(),
    }
}

/// Creates the finding that profiling is impossible. Its texts are those of the error that the command `activate`
/// returns.
fn unprofilable_finding(reason: &Unprofilable, severity: Severity) -> Finding {
    new_finding(
        reason.finding_code(),
        severity,
        reason.message(),
        reason.remedy(),
    )
}

/// Adds findings about the dump directory: it cannot be used, is on a remote file system, or is nearly full.
fn check_dump_dir(dir: &DumpDirFacts, findings: &mut Vec<Finding>) {
    use Severity::{Error, Warning};
    let display = |dir: &DumpDirFacts| -> String { Path::display(&dir.path).to_string() };
    if let Some((message, remedy)) = &dir.unusable {
        findings.push(new_finding("dump_dir_unusable", Error, message, remedy));
    }
    if dir.may_block {
        findings.push(new_finding(
            "dump_dir_remote",
            Warning,
            format!(
                "the dump directory {} is on NFS or FUSE, so replies to `dump` may take long",
                display(dir)
            ),
            "the host itself never waits for it; use a local directory for quick replies",
        ));
    }
    if let Some(free) = dir.free_bytes.filter(|free| *free < MIN_FREE_SPACE) {
        findings.push(new_finding(
            "dump_dir_nearly_full",
            Warning,
            format!(
                "the dump directory {} has room for {free} more bytes",
                display(dir)
            ),
            "free space, or lower keep.count and keep.bytes",
        ));
    }
}

#[cfg(test)]
mod tests {
    use memprof_messages::AllocatorKind;

    use super::malloc_conf::ConfSource;
    use super::*;
    use crate::allocators::unprofilable::tests::all_reasons;

    fn healthy_jemalloc() -> JemallocFacts {
        JemallocFacts {
            version: "5.3.0".to_owned(),
            conf_variable: Some("MALLOC_CONF".to_owned()),
            hidden_conf_symbol: None,
            unprofilable: None,
            config_stats: true,
            opt_prof: true,
            lg_sample: Some(19),
            allocated: Some(1 << 30),
            prefix: "jeprof".to_owned(),
            is_prefix_dir_world_writable: false,
            has_builtin_dumps: false,
            has_builtin_gdump: false,
            may_skip_threads: false,
            sources: Vec::new(),
            misplaced_conf_file: None,
        }
    }

    fn allocator_facts(kind: AllocatorKind) -> AllocatorFacts {
        AllocatorFacts {
            name: format!("{kind} 1.0"),
            kind,
            fallback_reason: None,
            missing: Vec::new(),
            sample_interval: None,
        }
    }

    fn healthy() -> Facts {
        Facts {
            allocators: vec![allocator_facts(AllocatorKind::Jemalloc)],
            jemallocs: vec![healthy_jemalloc()],
            lock_free_unwinding: true,
            dump_dir: DumpDirFacts {
                path: "/d".into(),
                free_bytes: Some(1 << 40),
                ..DumpDirFacts::default()
            },
            ..Facts::default()
        }
    }

    /// Checks that `change` to a healthy process yields one finding, of this kind.
    fn check(change: impl FnOnce(&mut Facts), kind: &str, severity: Severity, part: &str) {
        let mut facts = healthy();
        change(&mut facts);
        let findings = diagnose(&facts);
        let kinds: Vec<_> = findings.iter().map(|finding| &*finding.kind).collect();
        assert_eq!(kinds, [kind]);
        assert_eq!(findings[0].severity, severity);
        let text = format!("{}; {}", findings[0].message, findings[0].remedy);
        assert!(text.contains(part), "{text}");
        assert!(!findings[0].remedy.is_empty());
    }

    fn jemalloc(facts: &mut Facts) -> &mut JemallocFacts {
        &mut facts.jemallocs[0]
    }

    fn not_started() -> Unprofilable {
        Unprofilable::NotStarted {
            allocator: "jemalloc 5.3.0".to_owned(),
            variable: Some("MALLOC_CONF".to_owned()),
        }
    }

    #[test]
    fn healthy_process_has_no_findings() {
        assert_eq!(diagnose(&healthy()), []);
    }

    #[test]
    fn unprofilable_process_is_an_error() {
        let of_jemalloc = |facts: &mut Facts| {
            jemalloc(facts).opt_prof = false;
            jemalloc(facts).unprofilable = Some(not_started());
            facts.unavailable = Some(not_started());
        };
        let remedy = "restart this program with MALLOC_CONF=prof:true";
        check(of_jemalloc, "not_started", Severity::Error, remedy);
        let of_glibc = |facts: &mut Facts| {
            facts.allocators = vec![allocator_facts(AllocatorKind::Glibc)];
            facts.jemallocs.clear();
            facts.unavailable = Some(Unprofilable::NoProfiler {
                allocator: Some("glibc 2.36".to_owned()),
            });
        };
        let remedy = "LD_PRELOAD=libjemalloc.so.2 and MALLOC_CONF=prof:true";
        check(of_glibc, "no_jemalloc", Severity::Error, remedy);
    }

    #[test]
    fn remedy_begins_with_the_sampler_that_works() {
        let served = |facts: &mut Facts| {
            facts.allocators[0].fallback_reason = Some(not_started());
            jemalloc(facts).unprofilable = Some(not_started());
        };
        let part = "`activate` is all it takes, by memprof's own sampler; for a profile of the allocator's own, restart";
        check(served, "not_started", Severity::Warning, part);
    }

    #[test]
    fn unprofilable_finding_equals_error_of_activate() {
        for reason in all_reasons() {
            let findings = diagnose(&Facts {
                unavailable: Some(reason.clone()),
                ..healthy()
            });
            let refused = crate::Error::from(reason.clone());
            let expected = new_finding(
                reason.finding_code(),
                Severity::Error,
                refused.to_string(),
                refused.remedy,
            );
            assert_eq!(findings, [expected]);
        }
    }

    #[test]
    fn ignored_options_are_warnings() {
        use Severity::Warning;
        let options = |facts: &mut Facts| {
            jemalloc(facts).sources = vec![ConfSource {
                name: "MALLOC_CONF".to_owned(),
                text: "prof:true,lg_sample:12".to_owned(),
                newer: Vec::new(),
            }];
        };
        let text = "jemalloc 5.3.0 ignores in MALLOC_CONF \"lg_sample:12\"";
        check(options, "ignored_option", Warning, text);
        let harder = |facts: &mut Facts| {
            jemalloc(facts).sources = [
                ("MALLOC_CONF", "prof:true"),
                ("x_2_conf_harder", "prof:false"),
            ]
            .map(|(name, text)| ConfSource {
                name: name.to_owned(),
                text: text.to_owned(),
                newer: Vec::new(),
            })
            .to_vec();
        };
        check(
            harder,
            "ignored_option",
            Warning,
            "\"prof:true\": \"prof:false\" in x_2_conf_harder counts",
        );
        let file = |facts: &mut Facts| {
            jemalloc(facts).misplaced_conf_file = Some("/etc/malloc.conf".to_owned())
        };
        check(
            file,
            "no_link",
            Warning,
            "ln -s prof:true,prof_active:false /etc/malloc.conf",
        );
        let unread = |facts: &mut Facts| {
            facts.environment = vec![("_RJEM_MALLOC_CONF".to_owned(), "tcache:false".to_owned())];
        };
        let text = "_RJEM_MALLOC_CONF is set, but no jemalloc of this process reads it";
        check(unread, "unread_variable", Warning, text);
    }

    #[test]
    fn profile_pitfalls_are_warnings() {
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
            jemalloc(facts).is_prefix_dir_world_writable = true;
            jemalloc(facts).has_builtin_dumps = true;
        };
        check(shared, "shared_dumps", Warning, "/tmp/jeprof");
        let gdump = |facts: &mut Facts| jemalloc(facts).has_builtin_gdump = true;
        check(
            gdump,
            "builtin_gdump",
            Warning,
            "`gdump state=off` turns it off",
        );
        let threads = |facts: &mut Facts| jemalloc(facts).may_skip_threads = true;
        check(
            threads,
            "threads_left_out",
            Warning,
            "prof_thread_active_init",
        );
        check(
            threads,
            "threads_left_out",
            Warning,
            "`activate sampler=memprof`",
        );
        let fine = |facts: &mut Facts| facts.allocators[0].sample_interval = Some(512);
        check(fine, "fine_interval", Warning, "each 512 bytes");
        let pages = |facts: &mut Facts| {
            facts.allocators = vec![AllocatorFacts {
                sample_interval: Some(64 << 10),
                ..allocator_facts(AllocatorKind::Tcmalloc)
            }];
            facts.jemallocs.clear();
        };
        check(pages, "fine_interval", Warning, "a page of its own");
        let coarse = |facts: &mut Facts| jemalloc(facts).allocated = Some(10 << 20);
        check(coarse, "coarse_interval", Warning, "about 20 samples");
        let unwinder = |facts: &mut Facts| facts.lock_free_unwinding = false;
        check(unwinder, "exposed_unwinder", Warning, "_dl_find_object");
        let disagreement = |facts: &mut Facts| {
            facts.walker_disagreements = vec!["jemalloc 5.3.0: only 1 of 64 stacks".to_owned()];
        };
        check(
            disagreement,
            "unwinder_given_up",
            Warning,
            "only 1 of 64 stacks",
        );
        let filtered = |facts: &mut Facts| facts.has_seccomp_filter = true;
        check(
            filtered,
            "seccomp_filter",
            Warning,
            "a seccomp filter limits",
        );
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
            "/usr/bin/db replaces",
        );
        let conf = |facts: &mut Facts| {
            jemalloc(facts).hidden_conf_symbol = Some("malloc_conf".to_owned());
        };
        let remedy = "-Wl,--export-dynamic-symbol=malloc_conf";
        check(conf, "hidden_malloc_conf", Warning, remedy);
        let two = |facts: &mut Facts| {
            facts
                .allocators
                .push(allocator_facts(AllocatorKind::Tcmalloc))
        };
        let names = "2 allocators serve this process (jemalloc 1.0, tcmalloc 1.0)";
        check(two, "several_allocators", Warning, names);
        let load_unknown =
            |facts: &mut Facts| facts.unknown_malloc = Some("/lib/libasan.so".into());
        check(load_unknown, "unknown_malloc", Warning, "/lib/libasan.so");
        let hidden = |facts: &mut Facts| facts.stripped_jemalloc = Some("/bin/db".into());
        let text = "/bin/db contains a jemalloc that memprof cannot control";
        check(hidden, "hidden_jemalloc", Warning, text);
        let half = |facts: &mut Facts| facts.allocators[0].missing = vec!["mi_collect"];
        check(half, "incomplete_allocator", Warning, "lacks mi_collect");
    }

    #[test]
    fn glibc_beside_other_allocator_is_no_finding() {
        let mut facts = healthy();
        facts.allocators.push(allocator_facts(AllocatorKind::Glibc));
        assert_eq!(diagnose(&facts), []);
    }

    #[test]
    fn unprofilable_jemalloc_beside_another_is_a_warning() {
        let mut facts = healthy();
        facts.jemallocs.push(JemallocFacts {
            opt_prof: false,
            unprofilable: Some(not_started()),
            ..healthy_jemalloc()
        });
        assert!(
            diagnose(&facts)
                .iter()
                .all(|finding| finding.severity == Severity::Warning)
        );
    }

    #[test]
    fn dump_directory_findings() {
        use Severity::{Error, Warning};
        let unusable = |facts: &mut Facts| {
            let reason = "failed to use /d: Permission denied (EACCES)".to_owned();
            facts.dump_dir.unusable = Some((reason, "set dump_dir".to_owned()));
        };
        check(unusable, "dump_dir_unusable", Error, "EACCES");
        let remote = |facts: &mut Facts| facts.dump_dir.may_block = true;
        check(remote, "dump_dir_remote", Warning, "NFS or FUSE");
        let full = |facts: &mut Facts| facts.dump_dir.free_bytes = Some(4096);
        check(
            full,
            "dump_dir_nearly_full",
            Warning,
            "room for 4096 more bytes",
        );
    }
}
