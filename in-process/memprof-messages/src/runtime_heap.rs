//! Memory that a language runtime manages itself, so that the profile of no allocator shows it.

use std::ffi::CStr;

use crate::{Finding, Severity};

/// A language runtime or library that does not allocate its objects with malloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeHeap {
    /// pymalloc.
    Python,
    /// The Zend memory manager.
    Php,
    /// JavaScript's objects.
    V8,
    /// Java's objects.
    Jvm,
    /// Ruby's object slots.
    Ruby,
    /// The carriers of Erlang's allocators.
    Erlang,
    /// The objects of `LuaJIT`'s scripts.
    LuaJit,
    /// The Apache Portable Runtime, of httpd and Subversion.
    Apr,
    /// The buffer pool of MariaDB and MySQL.
    InnoDb,
}

/// Properties of a process that reveal its runtimes.
#[expect(missing_debug_implementations, reason = "it holds functions")]
pub struct RuntimeSigns<'a> {
    /// Whether the program or a library exports a symbol.
    pub is_exported: &'a dyn Fn(&CStr) -> bool,
    /// File names of the loaded objects.
    pub files: &'a [String],
    /// Value of an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Arguments of the program.
    pub arguments: &'a [String],
}

/// All known runtimes.
const ALL: [RuntimeHeap; 9] = [
    RuntimeHeap::Python,
    RuntimeHeap::Php,
    RuntimeHeap::V8,
    RuntimeHeap::Jvm,
    RuntimeHeap::Ruby,
    RuntimeHeap::Erlang,
    RuntimeHeap::LuaJit,
    RuntimeHeap::Apr,
    RuntimeHeap::InnoDb,
];

/// Finds the runtimes that are present and are not configured to use malloc. Recognizes a runtime by a function that
/// the program exports, or by the name of a file.
pub fn find_runtime_heaps(signs: &RuntimeSigns<'_>) -> Vec<RuntimeHeap> {
    let has_file = |start: &str| signs.files.iter().any(|file| file.starts_with(start));
    let is_configured = |name: &str, values: &[&str]| {
        (signs.variable)(name).is_some_and(|value| values.contains(&value.as_str()))
    };
    let is_present = |heap: &RuntimeHeap| match heap {
        RuntimeHeap::Python => {
            ((signs.is_exported)(c"Py_GetVersion") || has_file("libpython3"))
                && !is_configured("PYTHONMALLOC", &["malloc", "malloc_debug"])
        }
        RuntimeHeap::Php => {
            (signs.is_exported)(c"zend_parse_parameters")
                && !is_configured("USE_ZEND_ALLOC", &["0"])
        }
        RuntimeHeap::V8 => (signs.is_exported)(c"node_module_register"),
        RuntimeHeap::Jvm => has_file("libjvm.so"),
        RuntimeHeap::Ruby => (signs.is_exported)(c"ruby_init") || has_file("libruby"),
        RuntimeHeap::Erlang => {
            // erl(1) passes `+Mea` on as `-Mea`, even if it comes from ERL_FLAGS.
            let mut pairs = signs.arguments.windows(2);
            (signs.is_exported)(c"enif_alloc") && !pairs.any(|pair| pair == ["-Mea", "min"])
        }
        RuntimeHeap::LuaJit => {
            (signs.is_exported)(c"luaJIT_setmode") || has_file("libluajit-5.1.so")
        }
        RuntimeHeap::Apr => has_file("libapr-1.so"),
        RuntimeHeap::InnoDb => (signs.is_exported)(c"my_large_malloc"),
    };
    ALL.into_iter().filter(is_present).collect()
}

impl RuntimeHeap {
    /// Converts the runtime to the finding that heap profiles do not show its objects, with the remedy.
    pub fn to_finding(self) -> Finding {
        let (message, remedy) = self.message_and_remedy();
        Finding {
            kind: "own_heap".into(),
            severity: Severity::Warning.into(),
            message: message.to_owned(),
            remedy: remedy.to_owned(),
        }
    }

    /// Returns message and remedy of the finding: which memory heap profiles do not show, and which tool shows it.
    pub const fn message_and_remedy(self) -> (&'static str, &'static str) {
        match self {
            Self::Python => (
                "Python keeps objects of up to 512 bytes in arenas of its own (pymalloc), which no \
                 heap profile shows but that of memprof's sampler on CPython 3.8 to 3.14",
                "`memprof record PID` samples them, `memprof holders PID` shows what holds them; elsewhere start the \
                 program with PYTHONMALLOC=malloc, which makes it slower",
            ),
            Self::Php => (
                "PHP keeps what scripts allocate in chunks of its own (the Zend memory manager), \
                 which no heap profile shows",
                "start the program with USE_ZEND_ALLOC=0, which makes it slower",
            ),
            Self::V8 => (
                "JavaScript's objects lie in V8's own heap, which no heap profile shows; buffers and \
                 addons are shown",
                "a heap snapshot shows them: v8.writeHeapSnapshot(), or node \
                 --heapsnapshot-signal=SIGUSR2",
            ),
            Self::Jvm => (
                "Java's objects lie in the JVM's own heap, which no heap profile shows; native \
                 libraries, direct buffers and the JVM itself are shown",
                "`jcmd PID GC.class_histogram` shows them",
            ),
            Self::Ruby => (
                "Ruby keeps its objects in pages of its own, which no heap profile shows; what does \
                 not fit into an object, as long strings and arrays, is shown",
                "ObjectSpace.count_objects shows them, and ObjectSpace.dump_all of \"objspace\" each",
            ),
            Self::Erlang => (
                "Erlang's processes and terms lie in carriers of its own allocators, which no heap \
                 profile shows",
                "start the program with ERL_FLAGS=\"+Mea min\", which makes it slower; \
                 erlang:memory() shows their sums",
            ),
            Self::LuaJit => (
                "LuaJIT keeps the objects of scripts in memory of its own, which no heap profile \
                 shows, unless the program gives it an allocator",
                "collectgarbage(\"count\") shows how many KiB they take",
            ),
            Self::Apr => (
                "APR's pools, of httpd and Subversion, are mapped by mmap(2) as Debian builds it, and \
                 in no heap profile",
                "`memprof ledger` shows how much is mapped; an APR that was built without \
                 --enable-allocator-uses-mmap takes them from malloc",
            ),
            Self::InnoDb => (
                "InnoDB's buffer pool is mapped by mmap(2), and in no heap profile; what connections and \
                 statements allocate is",
                "innodb_buffer_pool_size says how large it may grow, SHOW ENGINE INNODB STATUS how full it is",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_recognized_by_symbols_files_and_options() {
        let started = |symbol: &str,
                       file: &str,
                       variable: &str,
                       arguments: &str,
                       expected: &[RuntimeHeap]| {
            let (name, value) = variable.split_once('=').unwrap_or_default();
            let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
            let found = find_runtime_heaps(&RuntimeSigns {
                is_exported: &|name| name.to_str() == Ok(symbol),
                files: &[file.to_owned(), "libc.so.6".to_owned()],
                variable: &|other| (other == name).then(|| value.to_owned()),
                arguments: &arguments,
            });
            assert_eq!(found, expected, "{symbol} {file} {variable} {arguments:?}");
        };
        let check = |symbol: &str, file: &str, variable: &str, expected: &[RuntimeHeap]| {
            started(symbol, file, variable, "", expected);
        };
        let (python, php) = ([RuntimeHeap::Python], [RuntimeHeap::Php]);
        check("Py_GetVersion", "", "", &python);
        check("Py_GetVersion", "", "PYTHONMALLOC=pymalloc_debug", &python);
        check("Py_GetVersion", "", "PYTHONMALLOC=malloc", &[]);
        check("", "libpython3.11.so.1.0", "", &python);
        check("", "libpython3.11.so.1.0", "PYTHONMALLOC=malloc_debug", &[]);
        check("zend_parse_parameters", "", "USE_ZEND_ALLOC=1", &php);
        check("zend_parse_parameters", "", "USE_ZEND_ALLOC=0", &[]);
        check("node_module_register", "", "", &[RuntimeHeap::V8]);
        check("", "libjvm.so", "", &[RuntimeHeap::Jvm]);
        check("main", "libjvmti.so", "", &[]);
        check("ruby_init", "", "", &[RuntimeHeap::Ruby]);
        check("", "libruby-3.1.so.3.1", "", &[RuntimeHeap::Ruby]);
        check("luaJIT_setmode", "", "", &[RuntimeHeap::LuaJit]);
        check("", "libluajit-5.1.so.2", "", &[RuntimeHeap::LuaJit]);
        check("", "liblua5.4.so.0", "", &[]);
        check("", "libapr-1.so.0", "", &[RuntimeHeap::Apr]);
        check("my_large_malloc", "", "", &[RuntimeHeap::InnoDb]);
        let erlang = |arguments: &str, expected: &[RuntimeHeap]| {
            started("enif_alloc", "", "", arguments, expected);
        };
        erlang("beam.smp -- -root /usr/lib/erlang", &[RuntimeHeap::Erlang]);
        erlang("beam.smp -Mea max --", &[RuntimeHeap::Erlang]);
        erlang("beam.smp -A 4 -Mea min -- -root /", &[]);
    }
}
