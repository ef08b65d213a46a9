//! `memprof ledger` and `memprof doctor` on processes without the plugin.

use std::process::Command;

use serde_json::Value;

use crate::host::Host;
use crate::ledger::row;
use crate::memprof::memprof;

const MIB: u64 = 1 << 20;

/// A program without the plugin, which allocates some megabytes and then waits.
struct Outsider {
    /// Program that runs it, and its arguments; `FILE` is its source, of which `run` is made first if it is compiled.
    command: &'static [&'static str],
    file: &'static str,
    source: &'static str,
    /// Owner of most of its memory in the ledger, and the least of it.
    owner: &'static str,
    least: u64,
    /// Part of the remedy, and of doctor's output.
    remedy: &'static str,
    doctor: &'static str,
}

const OUTSIDERS: [Outsider; 5] = [
    Outsider {
        command: &["/usr/bin/python3", "FILE"],
        file: "leak.py",
        source: "held = [[i] for i in range(200000)]\nimport sys, time\nprint('ready', file=sys.stderr, flush=True)\n\
                 time.sleep(1000)\n",
        owner: "Python objects (pymalloc)",
        least: 10 * MIB,
        remedy: "PYTHONMALLOC=malloc",
        doctor: "arenas of its own (pymalloc)",
    },
    Outsider {
        command: &["node", "FILE"],
        file: "leak.js",
        source: "const held = []; for (let i = 0; i < 400000; i++) held.push({ i });\n\
                 console.error('ready'); setTimeout(() => held, 1e6);\n",
        owner: "V8 heap (JavaScript)",
        least: 10 * MIB,
        remedy: "v8.writeHeapSnapshot()",
        doctor: "V8's own heap",
    },
    Outsider {
        command: &["php", "FILE"],
        file: "leak.php",
        source: "<?php $held = []; for ($i = 0; $i < 300000; $i++) $held[] = str_repeat('x', 50) . $i;\n\
                 fwrite(STDERR, \"ready\\n\"); sleep(1000);\n",
        owner: "PHP heap (Zend memory manager)",
        least: 16 * MIB,
        remedy: "USE_ZEND_ALLOC=0",
        doctor: "Zend memory manager",
    },
    Outsider {
        command: &["java", "-Xmx256m", "FILE"],
        file: "Leak.java",
        source: "public class Leak { public static void main(String[] a) throws Exception {\n\
                 byte[][] held = new byte[3000][]; for (int i = 0; i < 3000; i++) held[i] = new byte[10000];\n\
                 System.err.println(\"ready\"); Thread.sleep(1000000); } }\n",
        owner: "Java heap",
        least: 28 * MIB,
        remedy: "GC.class_histogram",
        doctor: "JVM's own heap",
    },
    Outsider {
        command: &["sh", "-c", "go build -o run FILE && exec ./run"],
        file: "leak.go",
        source: "package main\nimport (\"os\"; \"time\")\nvar held [][]byte\nfunc main() {\n\
                 for i := 0; i < 20000; i++ { held = append(held, make([]byte, 1000)) }\n\
                 os.Stderr.WriteString(\"ready\\n\"); time.Sleep(time.Hour) }\n",
        owner: "Go heap and goroutine stacks",
        least: 18 * MIB,
        remedy: "net/http/pprof",
        doctor: "net/http/pprof",
    },
];

impl Outsider {
    fn start(&self) -> Host {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join(self.file);
        // Go's runtime keeps little of what a program does not touch.
        let source = self
            .source
            .replace("make([]byte, 1000)", "fill(make([]byte, 1000))");
        let source = match self.file {
            "leak.go" => {
                source + "func fill(b []byte) []byte { for i := range b { b[i] = 1 }; return b }\n"
            }
            _ => source,
        };
        std::fs::write(&file, source).unwrap();
        let file = file.to_str().unwrap();
        let words = self.command.iter().map(|word| word.replace("FILE", file));
        let words: Vec<_> = words.collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(place.path());
        command.env("GOCACHE", place.path().join("cache"));
        let host = Host::spawn(command, place);
        host.wait_for_log("ready");
        host
    }
}

/// Resident bytes of a part of `not_the_allocator`; 0 if there is none.
fn part(ledger: &Value, owner: &str) -> u64 {
    let mut parts = ledger["parts"].as_array().into_iter().flatten();
    let part = parts.find(|part| part["owner"] == owner);
    part.map_or(0, |part| part["resident_bytes"].as_u64().unwrap())
}

#[test]
fn heap_of_a_runtime_is_named_without_the_plugin() {
    for outsider in OUTSIDERS {
        let host = outsider.start();
        let pid = host.pid().to_string();
        let run = memprof(host.place(), &["ledger", &pid, "--json"]).exits(0);
        let ledger = run.json();
        let owned = part(&ledger, outsider.owner);
        assert!(owned >= outsider.least, "{}: {ledger}", outsider.owner);
        let rows = ledger["rows"].as_array().unwrap().iter();
        let sum: u64 = rows.map(|row| row["bytes"].as_u64().unwrap()).sum();
        assert_eq!(ledger["rss_bytes"], sum);
        let parts = ledger["parts"].as_array().unwrap().iter();
        let parts: u64 = parts
            .map(|part| part["resident_bytes"].as_u64().unwrap())
            .sum();
        assert_eq!(row(&ledger, "not_the_allocator"), parts);
        let text = ledger["text"].as_str().unwrap();
        assert!(text.contains(outsider.remedy), "{text}");
        assert!(ledger["next"].as_str().unwrap().ends_with(&pid), "{ledger}");
        let doctor = memprof(host.place(), &["doctor", &pid]);
        let expected = if outsider.file == "leak.go" { 4 } else { 0 };
        let doctor = doctor.exits(expected).stdout;
        assert!(doctor.contains(outsider.doctor), "{doctor}");
    }
}

#[test]
fn heap_stacks_and_variables_are_divided_without_the_plugin() {
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("parts.c");
    let text = "#include <pthread.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
        #include <sys/mman.h>\n#include <unistd.h>\nstatic char table[5 << 20];\n\
        static void *idle(void *arg) { char own[1 << 20]; memset(own, 1, sizeof own);\n\
        pthread_barrier_wait(arg); for (;;) pause(); return own + 1; }\n\
        int main(void) { pthread_barrier_t all; pthread_barrier_init(&all, 0, 4);\n\
        memset(table, 1, sizeof table); pthread_t thread;\n\
        for (int i = 0; i < 3; i++) pthread_create(&thread, 0, idle, &all);\n\
        for (int i = 0; i < 20000; i++) memset(malloc(1000), 1, 1000);\n\
        memset(mmap(0, 7 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 7 << 20);\n\
        pthread_barrier_wait(&all); fprintf(stderr, \"ready\\n\"); for (;;) pause(); }\n";
    std::fs::write(&source, text).unwrap();
    let program = place.path().join("parts");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O0", "-pthread", "-o"])
        .arg(&program)
        .arg(&source);
    crate::dist::tool_text("gcc", &mut compiler);
    let host = Host::spawn(Command::new(&program), place);
    host.wait_for_log("ready");
    let pid = host.pid().to_string();
    let ledger = memprof(host.place(), &["ledger", &pid, "--json"])
        .exits(0)
        .json();
    let about = |bytes: u64, mebibytes: u64| {
        let expected = mebibytes * MIB;
        assert!(
            (expected..expected + 2 * MIB).contains(&bytes),
            "{bytes}: {ledger}"
        );
    };
    about(row(&ledger, "live_heap"), 19);
    about(part(&ledger, "thread stacks"), 3);
    about(
        part(&ledger, "variables of the program and its libraries"),
        5,
    );
    about(part(&ledger, "not known"), 7);
}

/// Nothing has the plugin: a pid and a name are enough, and what is no process is said so.
#[test]
fn process_without_the_plugin_is_named_by_pid_and_name() {
    let host = Host::spawn(
        {
            let mut command = Command::new("sh");
            command.args(["-c", "echo ready >&2; exec sleep 1000"]);
            command
        },
        tempfile::tempdir().unwrap(),
    );
    host.wait_for_log("ready");
    let pid = host.pid().to_string();
    let named = format!("sleep/{pid}");
    for target in [pid.as_str(), &named] {
        for command in ["ledger", "doctor"] {
            let run = memprof(host.place(), &[command, target]).exits(0);
            assert!(run.stdout.contains("next: memprof "), "{run:?}");
        }
    }
    for (target, code) in [
        ("999999999", 3),
        ("no-such-program", 2),
        ("container:none", 2),
    ] {
        for command in ["ledger", "doctor"] {
            memprof(host.place(), &[command, target]).exits(code);
        }
    }
}
