//! Interpreters at work: for each line they replace some of what they keep, and answer.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};

pub(super) struct Interpreter {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    variable: Option<(&'static str, &'static str)>,
    /// What it is given once, and each time.
    first: &'static str,
    line: &'static str,
}

pub(super) const INTERPRETERS: [Interpreter; 5] = [
    Interpreter {
        name: "perl",
        package: "perl",
        program: "perl",
        variable: None,
        args: &[
            "-e",
            "$| = 1; while (<>) { $kept[rand 20000] = { line => $_ . rand } for 1 .. 100; print qq(ok\n) }",
        ],
        first: "",
        line: "a line\n",
    },
    Interpreter {
        name: "python3",
        package: "python3",
        program: "python3",
        variable: None,
        args: &[
            "-uc",
            "import random, sys\nkept = {}\nfor line in sys.stdin:\n    for _ in range(100):\n        \
             kept[random.randrange(20000)] = {'line': line * random.randrange(200)}\n    print('ok')",
        ],
        first: "",
        line: "a line\n",
    },
    Interpreter {
        name: "python3 without its pools",
        package: "python3",
        program: "python3",
        variable: Some(("PYTHONMALLOC", "malloc")),
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
        first: "",
        line: "a line\n",
    },
    Interpreter {
        name: "bash",
        package: "bash",
        program: "bash",
        variable: None,
        args: &[
            "-c",
            "while read -r line; do for ((at = 0; at < 50; at++)); do kept[RANDOM % 5000]=\"$line $RANDOM\"; done; \
             echo ok; done",
        ],
        first: "",
        line: "a line\n",
    },
    Interpreter {
        name: "sqlite3",
        package: "sqlite3",
        program: "sqlite3",
        variable: None,
        args: &["-interactive", ":memory:"],
        first: "create table kept (key integer primary key, value text);\n",
        line: "insert or replace into kept values (abs(random()) % 20000, hex(randomblob(abs(random()) % 500))); \
               select 'ok';\n",
    },
];

pub(super) struct RunningInterpreter {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    line: &'static str,
}

impl Interpreter {
    /// Starts it, and gives it so much work that it replaces what it made.
    pub(super) fn start(&self) -> Result<RunningInterpreter> {
        let mut command = Command::new(self.program);
        command
            .args(self.args)
            .envs(self.variable)
            .stderr(Stdio::null());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context(self.program)?;
        let mut running = RunningInterpreter {
            input: child.stdin.take().context("no input")?,
            output: BufReader::new(child.stdout.take().context("no output")?),
            child,
            line: self.line,
        };
        running.input.write_all(self.first.as_bytes())?;
        for _ in 0..1000 {
            running.work()?;
        }
        Ok(running)
    }
}

impl RunningInterpreter {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives it a line, and waits for the answer.
    pub(super) fn work(&mut self) -> Result<()> {
        self.input.write_all(self.line.as_bytes())?;
        let mut said = String::new();
        while !said.trim_end().ends_with("ok") {
            said.clear();
            ensure!(self.output.read_line(&mut said)? > 0, "it has ended");
        }
        Ok(())
    }
}

impl Drop for RunningInterpreter {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
