//! Interpreters under load: for each line of input they replace some of the objects that they keep, and print `ok`.

use std::io::Write;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use testkit::LineReader;

use crate::host::REPLY_TIMEOUT;

/// Interpreter with a script that keeps replacing objects.
pub(super) struct Interpreter {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    env: Option<(&'static str, &'static str)>,
    /// Input that is written once, at the start; empty if none is needed.
    setup_input: &'static str,
    /// Input of each round.
    line: &'static str,
}

pub(super) const INTERPRETERS: [Interpreter; 5] = [
    Interpreter {
        name: "perl",
        package: "perl",
        program: "perl",
        env: None,
        args: &[
            "-e",
            "$| = 1; while (<>) { $kept[rand 20000] = { line => $_ . rand } for 1 .. 100; print qq(ok\n) }",
        ],
        setup_input: "",
        line: "a line\n",
    },
    Interpreter {
        name: "python3",
        package: "python3",
        program: "python3",
        env: None,
        args: &[
            "-uc",
            "import random, sys\nkept = {}\nfor line in sys.stdin:\n    for _ in range(100):\n        \
             kept[random.randrange(20000)] = {'line': line * random.randrange(200)}\n    print('ok')",
        ],
        setup_input: "",
        line: "a line\n",
    },
    Interpreter {
        name: "python3 without its pools",
        package: "python3",
        program: "python3",
        env: Some(("PYTHONMALLOC", "malloc")),
        args: &[
            "-uc",
            "import asyncio, collections, json, random, re, sys, threading, weakref\n\
             class Kept:\n    def __init__(self, line):\n        self.line = line\n        self.again = [self]\n\
             kept, known = {}, weakref.WeakValueDictionary()\n\
             async def work(line):\n    for _ in range(100):\n        await asyncio.sleep(0)\n        \
             key = random.randrange(20000)\n        \
             kept[key] = known[key] = Kept(json.loads(json.dumps({'line': line * random.randrange(200)})))\n\
             def waits():\n    held = [Kept(str(at)) for at in range(1000)]\n    \
             generator = (kept for kept in held)\n    next(generator)\n    threading.Event().wait()\n\
             threading.Thread(target=waits, daemon=True).start()\n\
             loop = asyncio.new_event_loop()\n\
             for line in sys.stdin:\n    loop.run_until_complete(work(line))\n    print('ok')",
        ],
        setup_input: "",
        line: "a line\n",
    },
    Interpreter {
        name: "bash",
        package: "bash",
        program: "bash",
        env: None,
        args: &[
            "-c",
            "while read -r line; do for ((at = 0; at < 50; at++)); do kept[RANDOM % 5000]=\"$line $RANDOM\"; done; \
             echo ok; done",
        ],
        setup_input: "",
        line: "a line\n",
    },
    Interpreter {
        name: "sqlite3",
        package: "sqlite3",
        program: "sqlite3",
        env: None,
        args: &["-interactive", ":memory:"],
        setup_input: "create table kept (key integer primary key, value text);\n",
        line: "insert or replace into kept values (abs(random()) % 20000, hex(randomblob(abs(random()) % 500))); \
               select 'ok';\n",
    },
];

/// Process of an interpreter, killed when dropped.
pub(super) struct RunningInterpreter {
    child: Child,
    input: ChildStdin,
    output: LineReader<ChildStdout>,
    line: &'static str,
}

impl Interpreter {
    /// Starts the interpreter, and runs 1000 rounds, after which new objects replace old ones.
    pub(super) fn start(&self) -> Result<RunningInterpreter> {
        let mut command = Command::new(self.program);
        command.args(self.args).envs(self.env).stderr(Stdio::null());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context(self.program)?;
        let mut running = RunningInterpreter {
            input: child.stdin.take().context("no input")?,
            output: LineReader::new(child.stdout.take().context("no output")?),
            child,
            line: self.line,
        };
        running.input.write_all(self.setup_input.as_bytes())?;
        for _ in 0..1000 {
            running.run_round()?;
        }
        Ok(running)
    }
}

impl RunningInterpreter {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes one line of input, and waits for `ok`. Fails if the interpreter has ended, or after [`REPLY_TIMEOUT`].
    pub(super) fn run_round(&mut self) -> Result<()> {
        self.input.write_all(self.line.as_bytes())?;
        // `sqlite3 -interactive` prints its prompt before the reply.
        let is_reply = |line: &str| line.trim_end().ends_with("ok").then_some(());
        Ok(self.output.find_line(REPLY_TIMEOUT, is_reply)?)
    }
}

impl Drop for RunningInterpreter {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
