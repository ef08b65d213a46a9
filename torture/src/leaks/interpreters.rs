//! Interpreters at work: for each line they replace some of what they keep, and answer.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};

pub(super) struct Interpreter {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    args: &'static [&'static str],
    /// What it is given once, and each time.
    first: &'static str,
    line: &'static str,
}

pub(super) const INTERPRETERS: [Interpreter; 4] = [
    Interpreter {
        name: "perl",
        package: "perl",
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
        args: &[
            "-uc",
            "import random, sys\nkept = {}\nfor line in sys.stdin:\n    for _ in range(100):\n        \
             kept[random.randrange(20000)] = {'line': line * random.randrange(200)}\n    print('ok')",
        ],
        first: "",
        line: "a line\n",
    },
    Interpreter {
        name: "bash",
        package: "bash",
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
        args: &["-interactive", ":memory:"],
        first: "create table kept (key integer primary key, value text);\n",
        line: "insert or replace into kept values (abs(random()) % 20000, hex(randomblob(abs(random()) % 500))); \
               select 'ok';\n",
    },
];

pub(super) struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    line: &'static str,
}

impl Interpreter {
    /// Starts it, and gives it so much work that it replaces what it made.
    pub(super) fn start(&self) -> Result<Running> {
        let mut command = Command::new(self.name);
        command.args(self.args).stderr(Stdio::null());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context(self.name)?;
        let mut running = Running {
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

impl Running {
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

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
