//! The commands of README.md and of the book's own pages: each block of a page is typed into a shell.

use std::path::PathBuf;

use crate::dist::source;
use crate::typed::{Block, System, blocks, stand_in, type_in};

/// Treatment of a block that is marked `sh`.
enum Commands {
    /// Typed in a system of their own: after other commands, and with replacements for what only a reader has.
    Typed(&'static str, &'static [(&'static str, &'static str)]),
    /// Not typed, with the reason.
    Skipped(&'static str),
}
use Commands::{Skipped, Typed};

/// Starts `unprepared` as process 4711, and replaces the browser.
const GROWING: &str = "pid 4711; unprepared &
printf '#!/bin/sh\\n' > xdg-open; chmod +x xdg-open; PATH=$PWD:$PATH";

/// A Python of 1,000 sessions, with memory of its own for each, as process 4711.
const SESSIONS: &str = "pid 4711
PYTHONMALLOC=malloc /usr/bin/python3 -c '
import time
class Session: pass
held = [Session() for _ in range(1000)]
open(\"ready\", \"w\")
time.sleep(600)' &
until [ -e ready ]; do sleep 0.1; done";

/// A server with the plugin in its configuration, and `unprepared` as process 4711.
const MY_SERVER: &str = "pid 4711; unprepared &
printf '#!/bin/sh\\n' > xdg-open; chmod +x xdg-open; PATH=$PWD:$PATH
ln -s \"$(type -P rust_host)\" my-server
printf '[control]\\n[[plugin]]\\npath = \"%s\"\\n' \"$PLUGIN\" > host.toml";

/// Two builds of a program that grows.
const CARTS: &str = "for build in 3f2a 91cc; do
  mkdir $build
  cc -g -Wl,--build-id=0x${build}0000 -o $build/cart \"$SOURCE/hosts-examples/unprepared/unprepared.c\"
  memprof run --active --lg-sample 12 -- $build/cart &
done
until [ \"$(memprof ps 2> /dev/null | grep -c cart)\" = 2 ]; do sleep 0.1; done
memprof agent --once";

/// An agent that serves a host's metrics.
const SCRAPED: &str = "mkdir /etc/memprof
printf '[http]\\nlisten = \"127.0.0.1:7071\"\\n' > /etc/memprof/fleet.toml
memprof run --active --lg-sample 12 -- unprepared &
until_host unprepared; sampled unprepared some.heap
memprof agent &
until curl -sf 127.0.0.1:7071/targets; do sleep 0.1; done";

/// A server with workers of which each request keeps 100,000 bytes in line 3, and clients.
const GUNICORN: &str = "cat > app.py <<'EOF'
kept = []
def handle(environ, start_response):
    kept.append(bytearray(100_000))
    start_response('200 OK', [('Content-Length', '0')])
    return []
EOF
gunicorn -w 4 -b 127.0.0.1:8000 app:handle 2> gunicorn.log &
until curl -sf 127.0.0.1:8000; do sleep 0.1; done
while curl -s 127.0.0.1:8000; do sleep 0.02; done &";

/// A queue with workers of which each task keeps 100,000 bytes in line 7, and a client. Debian's `celery` takes the first
/// python3 in PATH.
const CELERY: &str = "cat > tasks.py <<'EOF'
import sys, time
from celery import Celery
app = Celery('tasks', broker='redis://127.0.0.1/')
kept = []
@app.task(ignore_result=True)
def resize(size):
    kept.append(bytearray(size))
if __name__ == '__main__':
    while True:
        app.send_task('tasks.resize', (100_000,))
        time.sleep(0.02)
EOF
redis-server --bind 127.0.0.1 --save '' > redis.log &
until redis-cli ping; do sleep 0.1; done
(exec -a celery /usr/bin/python3 -m celery -A tasks worker -l info -c 4 > celery.log 2>&1) &
until grep -q ready celery.log; do sleep 0.1; done
/usr/bin/python3 tasks.py &";

/// Page, heading and treatment of each `sh` block, in the order of the page.
const BLOCKS: &[(&str, &str, Commands)] = &[
    ("README.md", "memprof", Typed(GROWING, &[("30s", "1s")])),
    ("README.md", "Install", Skipped(CARGO)),
    ("README.md", "Commands", Typed("pid 4711; unprepared &", &[
        ("memprof dump", "sampled unprepared leak.heap; memprof dump"),
        ("memprof report later", "sampled unprepared later.heap; memprof report later"),
    ])),
    ("install.md", "From source", Skipped(CARGO)),
    ("commands.md", "Commands", Typed(MY_SERVER, &[
        ("./my-server &", "./my-server --config host.toml & until_host my-server #"),
        // With two hosts, the other commands would need `-t`.
        ("attach 4711", "attach 4711; memprof detach 4711"),
        ("detach 4711  ", "attach 4711; memprof detach 4711  "),
        ("memprof dump", "sampled rust_host leak.heap; memprof dump"),
        ("memprof report later", "sampled rust_host later.heap; memprof report later"),
        ("30s", "1s"),
        // Refused here: the host's jemalloc samples, not memprof.
        ("memprof ledger --pinned", "code=0; memprof ledger --pinned || code=$?; test $code = 4"),
    ])),
    ("python.md", "Workers", Typed(GUNICORN, &[
        ("memprof record gunicorn --tree --for 30s ", "
            memprof record gunicorn --tree --for 5s > report
            cat report; head -3 report | grep -E 'handle .*app.py:3$'; grep 'of 5 processes' report #"),
    ])),
    ("python.md", "Workers", Typed(CELERY, &[
        ("memprof record celery --tree --for 30s --base tasks.heap", "
            memprof record celery --tree --for 5s --base tasks.heap
            memprof report tasks.heap > report
            cat report; head -3 report | grep -E 'resize .*tasks.py:7$'; grep 'of 5 processes' report"),
        ("30s", "5s"),
    ])),
    ("ages.md", "How old memory is", Typed("memprof run -- unprepared & until_host unprepared", &[
        ("ages=1m", "ages=1s"),
        ("1h", "1s"),
        ("memprof dump", "
            until sampled unprepared aged.heap && memprof report aged.heap --older 1s; do sleep 0.1; done
            memprof dump"),
    ])),
    ("labels.md", "Memory by label", Typed(
        "mkfifo lines; exec 3<> lines
        memprof run -- tokio_labels <&3 2> log & until_host tokio_labels",
        &[
            ("memprof activate", "memprof activate sample_interval=4KiB"),
            ("memprof report labelled.heap --by", "
                echo requests >&3; until grep served log; do sleep 0.1; done
                memprof dump -o labelled.heap
                memprof report labelled.heap --by"),
        ],
    )),
    ("leaks.md", "Leaks with proof", Typed("pid 4711; unprepared & ln -s \"$(type -P wc)\" tests", &[])),
    ("holders.md", "What keeps memory alive", Typed(SESSIONS, &[])),
    ("serve.md", "In a browser, and for scripts", Typed(
        "memprof run --active --lg-sample 12 -- unprepared & until_host unprepared
        sampled unprepared some.heap",
        &[
            ("memprof serve", "memprof serve & until curl -s 127.0.0.1:7070 -o page; do sleep 0.1; done"),
            ("curl -X", "curl --fail -X"),
            ("curl 127", "curl --fail 127"),
        ],
    )),
    ("serve.md", "Who may connect", Typed("", &[
        ("file token", "file token &
            until curl -f -H 'Host: box.example' \"127.0.0.1:7070/t/$(cat token)/\"; do sleep 0.1; done"),
    ])),
    ("fleet.md", "Many machines", Typed(CARTS, &[
        ("agent --once", "agent --once; until memprof agent --once && memprof fleet growth; do sleep 0.1; done"),
        ("14:30", "$(date --utc +%FT%T.%3NZ)"),
    ])),
    ("fleet.md", "Many machines",
        Skipped("S3 is tested by memprof-fleet, the service by `cargo xtask package --check`")),
    ("fleet.md", "Ask the agents directly",
        Skipped("NATS is tested by memprof-fleet, without the name `nats` and its certificate")),
    ("fleet.md", "Pages and scrapers", Typed(SCRAPED, &[
        ("curl", "curl --fail"),
        ("PID", "$(host unprepared)"),
        ("pprof/heap", "pprof/heap -o some.pprof"),
    ])),
    ("hosts.md", "Any program, from its start", Typed("echo 'sleep 600' > script.pl", &[
        ("memprof activate", "until_host perl; memprof activate"),
        ("-o leak.heap", "-o leak.heap; kill $!; wait $! || true"),
        ("--active -- perl script.pl", "--active -- perl script.pl & until_host perl; kill $!; wait $! || true"),
        ("jemalloc -- perl script.pl", "jemalloc -- perl script.pl & until_host perl"),
    ])),
    ("allocators.md", "tcmalloc", Typed(
        "memprof run --allocator tcmalloc -- unprepared & until_host unprepared",
        &[],
    )),
    ("allocators.md", "memprof's sampler", Typed("memprof run -- unprepared & until_host unprepared", &[])),
];

const CARGO: &str = "`cargo xtask ci` runs these commands or their parts";

/// README.md, or a page of the book.
fn path_of(page: &str) -> PathBuf {
    match page {
        "README.md" => source(page),
        page => source("docs/src").join(page),
    }
}

/// Types the blocks of a page, each in a system of its own.
fn type_blocks(page: &str) {
    let rows = BLOCKS.iter().filter(|(of, ..)| *of == page);
    let found = blocks(&path_of(page), "sh");
    for (Block { heading, commands }, (_, _, treatment)) in found.iter().zip(rows) {
        match treatment {
            Typed(before, replacements) => {
                let script = format!("{before}\n{}", stand_in(commands, replacements));
                type_in(&format!("{page}, {heading}"), System::Own, &script);
            }
            Skipped(reason) => eprintln!("{page}, {heading}: {reason}"),
        }
    }
}

/// Types all blocks of a page that are marked `sh,run`, in one shell.
fn type_whole(page: &str) {
    let commands = blocks(&path_of(page), "sh,run");
    let script: String = commands.into_iter().map(|block| block.commands).collect();
    assert!(!script.is_empty(), "{page} has no command");
    type_in(page, System::Shared, &script);
}

#[test]
fn each_block_of_readme_and_book_has_a_row() {
    let mut pages = vec!["README.md".to_owned()];
    for entry in std::fs::read_dir(source("docs/src")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        // The linked documents have their own tests.
        if entry.file_type().unwrap().is_file() && name.ends_with(".md") {
            pages.push(name);
        }
    }
    for page in pages {
        let found = blocks(&path_of(&page), "sh");
        let found: Vec<&str> = found.iter().map(|block| &*block.heading).collect();
        let rows = BLOCKS.iter().filter(|(of, ..)| *of == page);
        let known: Vec<&str> = rows.map(|(_, heading, _)| *heading).collect();
        assert_eq!(found, known, "{page}: a row of BLOCKS for each block");
        let is_typed = BLOCKS
            .iter()
            .any(|(of, _, treatment)| *of == page && matches!(treatment, Typed(..)));
        assert_eq!(is_typed, TYPED_BY_BLOCK.contains(&&*page), "{page}");
        let is_typed = !blocks(&path_of(&page), "sh,run").is_empty();
        assert_eq!(is_typed, TYPED_WHOLE.contains(&&*page), "{page}");
    }
}

/// A test for each page, which run side by side, and the list of the pages.
macro_rules! pages {
    ($list:ident by $type_in:ident: $($name:ident = $page:literal),* $(,)?) => {
        const $list: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $name() {
                $type_in($page);
            }
        )*
    };
}

pages! {
    TYPED_BY_BLOCK by type_blocks:
    readme = "README.md",
    book_commands = "commands.md",
    book_python = "python.md",
    book_ages = "ages.md",
    book_labels = "labels.md",
    book_leaks = "leaks.md",
    book_holders = "holders.md",
    book_serve = "serve.md",
    book_fleet = "fleet.md",
    book_hosts = "hosts.md",
    book_allocators = "allocators.md",
}

pages! {
    TYPED_WHOLE by type_whole:
    book_first_page = "start.md",
    book_cookbook = "cookbook.md",
    book_gate = "gate.md",
    book_plugins = "plugins.md",
    book_plugin_cookbook = "plugin-cookbook.md",
    book_embed = "embed.md",
}
