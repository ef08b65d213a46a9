//! The commands of README.md, each block in a system of its own.

use crate::dist::source;
use crate::typed::{Block, System, blocks, stand_in, type_in};

/// What a test does with a block of README.md.
enum Done {
    /// Types it in: after other commands, and with what stands here for a reader's own.
    Typed(&'static str, &'static [(&'static str, &'static str)]),
    /// Nothing, and why.
    Not(&'static str),
}
use Done::{Not, Typed};

/// Has memory of its own for each Session.
const SESSIONS: &str = "pid 4711
PYTHONMALLOC=malloc /usr/bin/python3 -c '
import time
class Session: pass
held = [Session() for _ in range(1000)]
open(\"ready\", \"w\")
time.sleep(600)' &
until [ -e ready ]; do sleep 0.1; done";

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

const SCRAPED: &str = "mkdir /etc/memprof
printf '[http]\\nlisten = \"127.0.0.1:7071\"\\n' > /etc/memprof/fleet.toml
memprof run --active --lg-sample 12 -- unprepared &
until_host unprepared; sampled unprepared some.heap
memprof agent &
until curl -sf 127.0.0.1:7071/targets; do sleep 0.1; done";

/// The blocks under each heading, in their order.
const DONE: &[(&str, Done)] = &[
    ("memprof", Typed(
        "pid 4711; unprepared &\nprintf '#!/bin/sh\\n' > xdg-open; chmod +x xdg-open; PATH=$PWD:$PATH",
        &[("30s", "1s")],
    )),
    ("Two commands", Not("they are parts of `cargo xtask ci`")),
    ("Use it", Typed(MY_SERVER, &[
        ("./my-server &", "./my-server --config host.toml & until_host my-server #"),
        // Which host is meant need not be said only while there is one.
        ("attach 4711", "attach 4711; memprof detach 4711"),
        ("detach 4711  ", "attach 4711; memprof detach 4711  "),
        ("memprof dump", "sampled rust_host leak.heap; memprof dump"),
        ("memprof report later", "sampled rust_host later.heap; memprof report later"),
        ("30s", "1s"),
        // Refused here, as its comment says.
        ("memprof ledger --pinned", "code=0; memprof ledger --pinned || code=$?; test $code = 4"),
    ])),
    ("How old memory is", Typed("memprof run -- unprepared & until_host unprepared", &[
        ("ages=1m", "ages=1s"),
        ("1h", "1s"),
        ("memprof dump", "
            until sampled unprepared aged.heap && memprof report aged.heap --older 1s; do sleep 0.1; done
            memprof dump"),
    ])),
    ("Leaks with proof", Typed("pid 4711; unprepared & ln -s \"$(type -P wc)\" tests", &[])),
    ("Leaks with proof", Typed(SESSIONS, &[])),
    ("Whose memory it is", Typed(
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
    ("Allocators", Typed(
        "memprof run --allocator tcmalloc -- unprepared & until_host unprepared",
        &[],
    )),
    ("Allocators", Typed("memprof run -- unprepared & until_host unprepared", &[])),
    ("Programs as they are", Typed("echo 'sleep 600' > script.pl", &[
        ("memprof activate", "until_host perl; memprof activate"),
        ("-o leak.heap", "-o leak.heap; kill $!; wait $! || true"),
        ("--active -- perl script.pl", "--active -- perl script.pl & until_host perl; kill $!; wait $! || true"),
        ("jemalloc -- perl script.pl", "jemalloc -- perl script.pl & until_host perl"),
    ])),
    ("A budget in CI", Typed(
        "ln -s \"$(type -P wc)\" parser; head -c 100000 /dev/zero > big.json",
        &[],
    )),
    ("In a browser, and for scripts", Typed(
        "memprof run --active --lg-sample 12 -- unprepared & until_host unprepared
        sampled unprepared some.heap",
        &[
            ("memprof serve", "memprof serve & until curl -s 127.0.0.1:7070 -o page; do sleep 0.1; done"),
            ("curl -X", "curl --fail -X"),
            ("curl 127", "curl --fail 127"),
        ],
    )),
    ("In a browser, and for scripts", Typed("", &[
        ("file token", "file token &
            until curl -f -H 'Host: box.example' \"127.0.0.1:7070/t/$(cat token)/\"; do sleep 0.1; done"),
    ])),
    ("Many machines", Typed(CARTS, &[
        ("agent --once", "agent --once; until memprof agent --once && memprof fleet growth; do sleep 0.1; done"),
        ("14:30", "$(date --utc +%FT%T.%3NZ)"),
    ])),
    ("Many machines", Not("S3 is tried by memprof-fleet's tests, the service by `cargo xtask package --check`")),
    ("Many machines", Not("NATS is tried by memprof-fleet's tests, without the name `nats` and its certificate")),
    ("Many machines", Typed(SCRAPED, &[
        ("curl", "curl --fail"),
        ("PID", "$(host unprepared)"),
        ("pprof/heap", "pprof/heap -o some.pprof"),
    ])),
];

#[test]
fn the_commands_of_the_readme() {
    let found = blocks(&source("README.md"), "sh");
    let headings: Vec<&str> = found.iter().map(|block| &*block.heading).collect();
    let known: Vec<&str> = DONE.iter().map(|(heading, _)| *heading).collect();
    assert_eq!(headings, known, "a row of DONE for each block");
    for (Block { heading, commands }, (_, done)) in found.iter().zip(DONE) {
        match done {
            Typed(before, stand_ins) => {
                let script = format!("{before}\n{}", stand_in(commands, stand_ins));
                type_in(heading, System::Own, &script);
            }
            Not(reason) => eprintln!("README.md, {heading}: {reason}"),
        }
    }
}
