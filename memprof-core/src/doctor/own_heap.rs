//! Memory that a language runtime hands out by itself, so that no profile of an allocator shows it.

use super::facts::OwnHeap;
use super::{Facts, finding};
use memprof_messages::{Finding, Severity};

/// What is known of the process, to tell a runtime by.
pub(super) struct Signs<'a> {
    /// The program or a library exports it.
    pub(super) is_exported: &'a dyn Fn(&std::ffi::CStr) -> bool,
    /// The file names of what is loaded.
    pub(super) files: &'a [String],
    /// A variable of the environment.
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
}

/// The runtimes that are there, and were not told to use malloc.
pub(super) fn own_heaps(signs: &Signs<'_>) -> Vec<OwnHeap> {
    let has_file = |start: &str| signs.files.iter().any(|file| file.starts_with(start));
    let is_told = |name: &str, values: &[&str]| {
        (signs.variable)(name).is_some_and(|value| values.contains(&value.as_str()))
    };
    let is_there = |heap: &OwnHeap| match heap {
        OwnHeap::Python => {
            ((signs.is_exported)(c"Py_GetVersion") || has_file("libpython3"))
                && !is_told("PYTHONMALLOC", &["malloc", "malloc_debug"])
        }
        OwnHeap::Php => {
            (signs.is_exported)(c"zend_parse_parameters") && !is_told("USE_ZEND_ALLOC", &["0"])
        }
        OwnHeap::V8 => (signs.is_exported)(c"node_module_register"),
        OwnHeap::Jvm => has_file("libjvm.so"),
    };
    let all = [OwnHeap::Python, OwnHeap::Php, OwnHeap::V8, OwnHeap::Jvm];
    all.into_iter().filter(is_there).collect()
}

/// What is hidden, and what shows it.
pub(super) fn hidden_objects(facts: &Facts, findings: &mut Vec<Finding>) {
    for heap in &facts.own_heaps {
        let (message, remedy) = match heap {
            OwnHeap::Python => (
                "Python keeps objects of up to 512 bytes in arenas of its own (pymalloc), which no \
                 heap profile shows",
                "start the program with PYTHONMALLOC=malloc, which makes it slower",
            ),
            OwnHeap::Php => (
                "PHP keeps what scripts allocate in chunks of its own (the Zend memory manager), \
                 which no heap profile shows",
                "start the program with USE_ZEND_ALLOC=0, which makes it slower",
            ),
            OwnHeap::V8 => (
                "JavaScript's objects lie in V8's own heap, which no heap profile shows; buffers and \
                 addons are shown",
                "a heap snapshot shows them: v8.writeHeapSnapshot(), or node \
                 --heapsnapshot-signal=SIGUSR2",
            ),
            OwnHeap::Jvm => (
                "Java's objects lie in the JVM's own heap, which no heap profile shows; native \
                 libraries, direct buffers and the JVM itself are shown",
                "`jcmd PID GC.class_histogram` shows them",
            ),
        };
        findings.push(finding("own_heap", Severity::Warning, message, remedy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_told_by_what_they_export_and_how_they_were_started() {
        let check = |symbol: &str, file: &str, variable: &str, expected: &[OwnHeap]| {
            let (name, value) = variable.split_once('=').unwrap_or_default();
            let found = own_heaps(&Signs {
                is_exported: &|asked| asked.to_str() == Ok(symbol),
                files: &[file.to_owned(), "libc.so.6".to_owned()],
                variable: &|asked| (asked == name).then(|| value.to_owned()),
            });
            assert_eq!(found, expected, "{symbol} {file} {variable}");
        };
        let (python, php) = ([OwnHeap::Python], [OwnHeap::Php]);
        check("Py_GetVersion", "", "", &python);
        check("Py_GetVersion", "", "PYTHONMALLOC=pymalloc_debug", &python);
        check("Py_GetVersion", "", "PYTHONMALLOC=malloc", &[]);
        check("", "libpython3.11.so.1.0", "", &python);
        check("", "libpython3.11.so.1.0", "PYTHONMALLOC=malloc_debug", &[]);
        check("zend_parse_parameters", "", "USE_ZEND_ALLOC=1", &php);
        check("zend_parse_parameters", "", "USE_ZEND_ALLOC=0", &[]);
        check("node_module_register", "", "", &[OwnHeap::V8]);
        check("", "libjvm.so", "", &[OwnHeap::Jvm]);
        check("main", "libjvmti.so", "", &[]);
    }
}
