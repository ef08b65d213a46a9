//! Interpreters of Debian's, whose programs load the plugin as a module.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::dist::{dist, source, tool, tool_text};

/// A place for sockets and dumps, and for copies of the plugin.
pub(crate) struct Languages(TempDir);

/// Output of a program, and whether it succeeded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) output: String,
    pub(crate) errors: String,
    pub(crate) is_ok: bool,
}

impl Languages {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs a program of a Debian package; `{plugins}`, `{examples}` and `{place}` stand for directories.
    pub(crate) fn run(&self, package: &str, words: &[&str], env: &[(&str, &str)]) -> Ran {
        let filled = |word: &str| {
            word.replace("{plugins}", dist("plugins").to_str().unwrap())
                .replace("{examples}", source("hosts-examples").to_str().unwrap())
                .replace("{place}", self.0.path().to_str().unwrap())
        };
        let mut command = Command::new(words[0]);
        command
            .args(words[1..].iter().map(|word| filled(word)))
            .env("MEMPROF_SOCKET_DIR", self.0.path().join("run"))
            .env("XDG_STATE_HOME", self.0.path())
            .envs(env.iter().map(|(name, value)| (name, filled(value))));
        let output = tool(package, &mut command);
        Ran {
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
            is_ok: output.status.success(),
        }
    }
}

const MEGABYTE: usize = 1_000_000;
pub(crate) const INACTIVE: &str = "profiling is inactive";
pub(crate) const UNKNOWN: &str =
    "memory_profile has no message \"bogus\"; valid messages: activate, ";
pub(crate) const TOO_LONG: &str = "a message has at most 4096 bytes, this one has 1000000";

const LUAS: [&str; 4] = ["lua5.1", "lua5.3", "lua5.4", "luajit"];
const LUA_PATH: (&str, &str) = ("LUA_CPATH", "{plugins}/?.so;;");

#[test]
fn lua_sends_messages() {
    let languages = Languages::new();
    for lua in LUAS {
        let example = |message: &str| {
            languages.run(
                lua,
                &[lua, "{examples}/lua/memory.lua", message],
                &[LUA_PATH],
            )
        };
        let done = example("status");
        assert!(
            done.is_ok && done.output.starts_with(INACTIVE),
            "{lua}: {done:?}"
        );
        let refused = example("bogus");
        assert!(
            !refused.is_ok && refused.errors.starts_with(UNKNOWN),
            "{lua}: {refused:?}"
        );
    }
}

#[test]
fn lua_gets_errors_of_its_own() {
    let languages = Languages::new();
    let check = |lua: &str, call: &str, expected: &str| {
        let script = format!(
            "local ok, reply, why = pcall({call})
             collectgarbage()
             print(ok, reply, why)
             print(require'memory_profile'.send('status'))"
        );
        let ran = languages.run(lua, &[lua, "-e", &script], &[LUA_PATH]);
        assert!(ran.output.starts_with(expected), "{lua}, {call}: {ran:?}");
        assert!(
            ran.is_ok && ran.output.contains(INACTIVE),
            "{lua}, {call}: {ran:?}"
        );
    };
    for lua in LUAS {
        let send = "require'memory_profile'.send";
        check(lua, send, "false\tbad argument #1 to ");
        check(lua, &format!("{send}, {{}}"), "false\tbad argument #1 to ");
        check(
            lua,
            &format!("{send}, ''"),
            "true\tnil\tmemory_profile has no message \"\"",
        );
        check(
            lua,
            &format!("{send}, 'bogus'"),
            &format!("true\tnil\t{UNKNOWN}"),
        );
        let long = format!("{send}, ('x'):rep({MEGABYTE})");
        check(lua, &long, &format!("true\tnil\t{TOO_LONG}"));
        check(
            lua,
            &format!("{send}, '\\255\\0\\1'"),
            "true\tnil\tmemory_profile has no message",
        );
        let raised = format!("function() local _, why = {send}('bogus') error(why, 0) end");
        check(lua, &raised, &format!("false\t{UNKNOWN}"));
    }
}

/// What others have as an object is a table, and every number, text and list in it is Lua's.
#[test]
fn lua_gets_tables() {
    let script = r#"
local memory_profile = require "memory_profile"
local function is_refused(message, text)
    local reply, why = memory_profile.call(message)
    assert(reply == nil and why:find(text, 1, true) == 1, tostring(why))
end
for _ = 1, 200 do
    is_refused("bogus", 'memory_profile has no message "bogus"; valid messages: activate, ')
    local status = memory_profile.call("status format=json")
    assert(status.status == "ok" and status.profiling == "inactive", status.text)
    assert(#status.allocators == 1 and status.allocators[1].kind == "glibc")
    assert(status.allocators[1].owns_malloc == true)
    assert(status.active_since == nil and status.busy == false)
end
is_refused("", "memory_profile has no message")
is_refused(("x"):rep(1000000), "a message has at most 4096 bytes, this one has 1000000")
assert(not pcall(memory_profile.call, {}))
local active = memory_profile.call("activate lg_sample=12")
assert(active.sample_interval == 4096 and (not math.type or math.type(active.sample_interval) == "integer"))
local kept = {}
for i = 1, 10000 do kept[i] = ("x"):rep(100 + i % 10) .. i end
local dump = memory_profile.call("dump")
assert(io.open(dump.path):read("*a"):find("heap", 1, true) and dump.bytes > 1000, dump.text)
collectgarbage()
assert(#memory_profile.call("list").dumps == 1)
assert(require("hello_rust").call("hello name=Lua") == "hello, Lua")
print(memory_profile.call("doctor").status)
"#;
    for lua in LUAS {
        let ran = Languages::new().run(lua, &[lua, "-e", script], &[LUA_PATH]);
        assert!(ran.is_ok && ran.output == "ok\n", "{lua}: {ran:?}");
    }
}

/// Plugins are named after their files, and do not mix.
#[test]
fn lua_loads_two_plugins() {
    let script =
        "print(require'hello_rust'.send('hello name=Lua'), require'memory_profile'.send('status'))";
    let ran = Languages::new().run("lua5.4", &["lua5.4", "-e", script], &[LUA_PATH]);
    assert!(
        ran.output.starts_with(&format!("hello, Lua\t{INACTIVE}")),
        "{ran:?}"
    );
}

#[test]
fn functions_in_c_are_called_from_many_languages() {
    let languages = Languages::new();
    let check = |package: &str, words: &[&str]| {
        let send = |message: &str| {
            let words = [words, &["{plugins}/memory_profile.so", message]].concat();
            languages.run(package, &words, &[])
        };
        for (message, expected) in [
            ("status", INACTIVE.to_owned()),
            ("status format=json", "{\"status\":\"ok\"".to_owned()),
            ("bogus", format!("error: {UNKNOWN}")),
            ("bogus format=json", "{\"status\":\"error\"".to_owned()),
            ("", "error: memory_profile has no message \"\"".to_owned()),
            (
                &"x".repeat(100_000),
                "error: a message has at most 4096 bytes".to_owned(),
            ),
        ] {
            let ran = send(message);
            assert!(
                ran.is_ok && ran.output.starts_with(&expected),
                "{words:?}: {ran:?}"
            );
        }
    };
    check("python3", &["/usr/bin/python3", "{examples}/ffi/memory.py"]);
    check("ruby", &["ruby", "{examples}/ffi/memory.rb"]);
    check("luajit", &["luajit", "{examples}/ffi/memory.lua"]);
    check("php-cli", &["php", "{examples}/ffi/memory.php"]);
}

/// A second copy of the file calls the plugin of the first one, whichever adapter made it.
#[test]
fn process_has_one_plugin() {
    let languages = Languages::new();
    let copy = languages.0.path().join("memory_profile.so");
    std::fs::copy(dist("plugins/memory_profile.so"), &copy).unwrap();
    let script = "
        local function open(path)
            return assert(package.loadlib(path .. '/memory_profile.so', 'luaopen_memory_profile'))()
        end
        local first, second = open(arg[1]), open(arg[2])
        print(first.send('activate lg_sample=12'))
        print(second.send('status'))
        print(second.send('deactivate'))
        print(first.send('status'))";
    let file = languages.0.path().join("two.lua");
    std::fs::write(&file, script).unwrap();
    for order in [["{plugins}", "{place}"], ["{place}", "{plugins}"]] {
        let words = ["lua5.4", "{place}/two.lua", order[0], order[1]];
        let ran = languages.run("lua5.4", &words, &[]);
        let states: Vec<_> = ran
            .output
            .lines()
            .filter(|line| line.starts_with("profiling is"))
            .collect();
        let states: Vec<_> = states
            .iter()
            .map(|line| line.split_whitespace().nth(2).unwrap())
            .collect();
        assert_eq!(
            states,
            ["active", "active", "inactive", "inactive"],
            "{ran:?}"
        );
    }
}

/// Whoever sends the first message makes the plugin, in whichever copy, and it is one also where many send theirs
/// within the same microseconds.
#[test]
fn concurrent_library_copies_share_one_plugin() {
    let place = tempfile::tempdir().unwrap();
    let program = compiled("copies.c", &["-pthread"], place.path());
    let copies = (0..4).map(|number| {
        let copy = place.path().join(format!("memory_profile_{number}.so"));
        std::fs::copy(dist("plugins/memory_profile.so"), &copy).unwrap();
        copy
    });
    let sockets = place.path().join("run");
    let mut run = Command::new(program);
    run.arg(&sockets).arg("100").args(copies);
    run.env("MEMPROF_SOCKET_DIR", &sockets)
        .env("MEMPROF_DUMP_DIR", place.path().join("dumps"));
    let ran = run.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.is_empty(), "{said}");
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "");
}

pub(crate) const PYTHON: &str = "/usr/bin/python3";
pub(crate) const PYTHON_PATH: (&str, &str) = ("PYTHONPATH", "{plugins}");
pub(crate) const LIBRARY: &str = "{plugins}/memory_profile.so";

/// Each language's own example, and what it does with a message that fails.
#[test]
fn examples_send_messages() {
    let languages = Languages::new();
    let check = |package: &str, words: &[&str], env: &[(&str, &str)]| {
        let send = |message: &str| languages.run(package, &[words, &[message]].concat(), env);
        let done = send("status");
        assert!(
            done.is_ok && done.output.starts_with(INACTIVE),
            "{words:?}: {done:?}"
        );
        let refused = send("bogus");
        assert!(
            !refused.is_ok && refused.errors.contains(UNKNOWN),
            "{words:?}: {refused:?}"
        );
        let long = send(&"x".repeat(100_000));
        let expected = "a message has at most 4096 bytes, this one has 100000";
        assert!(
            !long.is_ok && long.errors.contains(expected),
            "{words:?}: {long:?}"
        );
    };
    check(
        "python3",
        &[PYTHON, "{examples}/python/memory.py"],
        &[PYTHON_PATH],
    );
    check(
        "nodejs",
        &["node", "{examples}/node/memory.js", LIBRARY],
        &[],
    );
    check(
        "ruby",
        &["ruby", "-I", "{plugins}", "{examples}/ruby/memory.rb"],
        &[],
    );
    let java = [
        "java",
        "-Dmemprof={plugins}/memory_profile.so",
        "{examples}/java/MemoryProfile.java",
    ];
    check("default-jdk-headless", &java, &[]);
}

#[test]
fn python_gets_objects_and_errors_of_its_own() {
    let script = r#"
import memory_profile
def check(message, kind, text):
    for function in memory_profile.send, memory_profile.call:
        try:
            raise SystemExit(f"{message!r:.40}: {function(message)!r}")
        except kind as error:
            assert str(error).startswith(text), error
no_message = 'memory_profile has no message "'
check("bogus", RuntimeError, no_message + 'bogus"; valid messages: activate, ')
check("", RuntimeError, no_message + '"')
check("\0", RuntimeError, no_message)
check("x" * 1_000_000, RuntimeError, "a message has at most 4096 bytes, this one has 1000000")
check("\udc80", UnicodeEncodeError, "")
for message in None, 5, b"status", ["status"]:
    check(message, TypeError, "")
assert memory_profile.call("status")["profiling"] == "inactive"
assert memory_profile.call("status format=json")["status"] == "ok"
assert memory_profile.send("status format=json").startswith('{"status":"ok"')
import hello_rust
assert hello_rust.send("hello") == hello_rust.call("hello name=world") == "hello, world"
"#;
    let ran = Languages::new().run("python3", &[PYTHON, "-c", script], &[PYTHON_PATH]);
    assert!(ran.is_ok, "{ran:?}");
}

/// Threads that ask at once, threads that the interpreter's end cuts off, children, other interpreters.
#[test]
fn python_runs_on_during_messages() {
    let check = |script: &str| {
        let script = format!("import memory_profile, os, sys, threading\n{script}");
        let ran = Languages::new().run("python3", &[PYTHON, "-c", &script], &[PYTHON_PATH]);
        assert!(
            ran.is_ok && ran.output.ends_with("done\n"),
            "{script}: {ran:?}"
        );
    };
    check(
        "def ask():
    for _ in range(50): assert memory_profile.call('status')['status'] == 'ok'
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print('done')",
    );
    check(
        "def ask():
    while True: memory_profile.send('status')
for _ in range(8): threading.Thread(target=ask, daemon=True).start()
memory_profile.send('status')
print('done')",
    );
    check(
        "memory_profile.send('activate lg_sample=12')
child = os.fork()
if child == 0:
    assert memory_profile.call('status')['profiling'] == 'inactive'
    assert memory_profile.call('activate lg_sample=12')['profiling'] == 'active'
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert memory_profile.call('status')['profiling'] == 'active'
print('done')",
    );
    check(
        "import _xxsubinterpreters as interpreters
for _ in range(3):
    one = interpreters.create()
    interpreters.run_string(one, 'import memory_profile; assert memory_profile.call(\"status\")[\"status\"] == \"ok\"')
    interpreters.destroy(one)
memory_profile.send('status')
print('done')",
    );
}

/// No thread is made to give Python's lock away, so another one gets it during a message or not at all.
#[test]
fn python_releases_its_lock_while_waiting() {
    let script = r#"
import memory_profile, sys, threading, time
sys.setswitchinterval(1000)
steps, met = 0, threading.Event()
def ask():
    for _ in range(1000):
        before = steps
        memory_profile.send("doctor")
        if steps > before: return met.set()
asking = threading.Thread(target=ask)
asking.start()
while asking.is_alive():
    steps += 1
    time.sleep(0)
assert met.is_set()
"#;
    let ran = Languages::new().run("python3", &[PYTHON, "-c", script], &[PYTHON_PATH]);
    assert!(ran.is_ok, "{ran:?}");
}

#[test]
fn node_gets_objects_and_errors_of_its_own() {
    let script = r#"
const assert = require("assert");
const { Worker, isMainThread } = require("worker_threads");
const load = () => { const o = { exports: {} }; process.dlopen(o, process.env.LIBRARY); return o.exports; };
const m = load();
const check = (message, name, text) => {
  for (const f of [m.send, m.call]) assert.throws(() => f(message), (e) => e.name == name && e.message.startsWith(text));
};
const none = 'memory_profile has no message "';
check("bogus", "Error", none + 'bogus"; valid messages: activate, ');
check("", "Error", none);
check("x".repeat(1000000), "Error", "a message has at most 4096 bytes, this one has 1000000");
for (const message of [undefined, null, 5, {}, Symbol()]) check(message, "TypeError", "the message must be a string");
assert.throws(() => m.sendAsync(5), TypeError);
assert.equal(m.call("status").profiling, "inactive");
(async () => {
  await assert.rejects(m.callAsync("bogus"), { message: /^memory_profile has no message/ });
  const replies = await Promise.all(Array.from({ length: 20 }, () => m.callAsync("status")));
  assert(replies.every((reply) => reply.status == "ok"));
  const code = `const o = { exports: {} }; process.dlopen(o, process.env.LIBRARY); o.exports.send("status"); o.exports.sendAsync("dump").catch((busy) => busy);`;
  const workers = Array.from({ length: 4 }, () => new Worker(code, { eval: true }));
  await Promise.all(workers.map((worker, at) => new Promise((done) => {
    worker.on("exit", done);
    if (at % 2) worker.on("online", () => worker.terminate());
  })));
  console.log(m.send("status"));
})();
"#;
    let ran = Languages::new().run("nodejs", &["node", "-e", script], &[("LIBRARY", LIBRARY)]);
    assert!(ran.is_ok && ran.output.starts_with(INACTIVE), "{ran:?}");
}

/// `require` takes the file by a name of its own, as Node's page says to make it.
#[test]
fn node_requires_a_hard_link() {
    let commands = "cd \"$PLACE\" && cp \"$LIBRARY\" . && ln memory_profile.so memory_profile.node &&
        node -p 'const m = require(\"./memory_profile.node\"); m.call(\"status\").status + m.send(\"status\")'";
    let env = [("LIBRARY", LIBRARY), ("PLACE", "{place}")];
    let ran = Languages::new().run("nodejs", &["sh", "-c", commands], &env);
    let expected = format!("ok{INACTIVE}");
    assert!(ran.is_ok && ran.output.starts_with(&expected), "{ran:?}");
}

#[test]
fn ruby_gets_exceptions_of_its_own() {
    let script = r##"
require "memory_profile"
def check(message, kind, text)
  %i[send_message call].each do |name|
    reply = MemoryProfile.public_send(name, message)
    abort "#{name} #{message}: #{reply}"
  rescue StandardError => error
    raise unless error.instance_of?(kind) && error.message.start_with?(text)
  end
end
none = 'memory_profile has no message "'
100.times { check("bogus", RuntimeError, none + 'bogus"; valid messages: activate, ') }
check("", RuntimeError, none)
check("x" * 1_000_000, RuntimeError, "a message has at most 4096 bytes, this one has 1000000")
check("a\0b", ArgumentError, "")
[nil, 5, []].each { |message| check(message, TypeError, "") }
threads = Array.new(8) { Thread.new { 20.times { MemoryProfile.send_message("status") } } }
threads.each(&:join)
killed = Array.new(8) { Thread.new { loop { MemoryProfile.send_message("status") } } }
MemoryProfile.send_message("status")
killed.each(&:kill).each(&:join)
child = fork { exit!(MemoryProfile.send_message("status").start_with?("profiling") ? 7 : 1) }
Process.wait(child)
abort $?.inspect unless $?.exitstatus == 7
100.times do
  status = MemoryProfile.call("status")
  abort status.inspect unless status["profiling"] == "inactive" && status["allocators"][0]["kind"] == "glibc"
end
abort unless MemoryProfile.call("activate lg_sample=12")["sample_interval"] == 4096
MemoryProfile.call("deactivate")
require "hello_rust"
abort unless HelloRust.call("hello name=Ruby") == "hello, Ruby"
GC.start
puts MemoryProfile.send_message("status")
"##;
    let ran = Languages::new().run("ruby", &["ruby", "-I", "{plugins}", "-e", script], &[]);
    assert!(ran.is_ok && ran.output.starts_with(INACTIVE), "{ran:?}");
}

/// Without the functions of a host its entry points refuse, and so they do where its layouts are not known: Python
/// without a GIL, PostgreSQL 19, an nginx of tomorrow. The program goes on.
#[test]
fn entry_points_refuse_other_programs() {
    let languages = Languages::new();
    let check = |options: &[&str], missing: &[&str]| {
        let program = compiled("no_host.c", options, languages.path());
        let ran = languages.run("gcc", &[program.to_str().unwrap(), LIBRARY], &[]);
        assert!(ran.is_ok && ran.output.is_empty(), "{options:?}: {ran:?}");
        for name in missing {
            let line = format!("error: this program has no {name}\n");
            assert!(ran.errors.contains(&line), "{options:?}: {ran:?}");
        }
    };
    let missing = ["luaL_checklstring"];
    check(&[], &missing);
    check(&["-DNEWER", "-rdynamic"], &missing);
}

/// A program of the fixtures, in `place`.
fn compiled(fixture: &str, options: &[&str], place: &Path) -> PathBuf {
    let program = place.join(fixture).with_extension("");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .args(options)
        .arg(source("outside/memprof-cli/tests/fixtures").join(fixture));
    tool_text("gcc", &mut cc);
    program
}

/// What fails is an exception, also on many threads at once; a reply is a string.
#[test]
fn java_gets_exceptions_of_its_own() {
    let languages = Languages::new();
    let class = r#"
public class MemoryProfile {
    static native String send(String message);
    static void check(String message, String text) {
        try {
            throw new AssertionError(send(message));
        } catch (RuntimeException failed) {
            if (failed.getClass() != RuntimeException.class || !failed.getMessage().startsWith(text))
                throw new AssertionError(failed);
        }
    }
    public static void main(String[] paths) throws Exception {
        System.load(paths[0]);
        String none = "memory_profile has no message \"";
        for (int i = 0; i < 100; i++) check("bogus", none + "bogus\"; valid messages: activate, ");
        check("", none);
        check("\0", none);
        check("\ud800", none);
        check("x".repeat(1000000), "a message has at most 4096 bytes, this one has 1000000");
        check(null, "the message is null");
        Thread[] threads = new Thread[8];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> { for (int j = 0; j < 50; j++) send("status"); });
            threads[i].start();
        }
        for (Thread thread : threads) thread.join();
        System.gc();
        System.out.println(send("status"));
    }
}"#;
    std::fs::write(languages.path().join("MemoryProfile.java"), class).unwrap();
    let java = ["java", "{place}/MemoryProfile.java", LIBRARY];
    let ran = languages.run("default-jdk-headless", &java, &[]);
    assert!(ran.is_ok && ran.output.starts_with(INACTIVE), "{ran:?}");
}

/// Samples from the start, by a rule.
const PREFORK_CONFIG: &str = "activate_at_start = true\n[[watch]]\nevery = \"1h\"\n";

/// Workers that were forked after the plugin began follow its config, as those do that load it themselves.
#[test]
fn forked_workers_follow_the_config() {
    let languages = Languages::new();
    std::fs::write(languages.path().join("prefork.toml"), PREFORK_CONFIG).unwrap();
    let config = ("MEMPROF_CONFIG", "{place}/prefork.toml");
    let python = "
import memory_profile, os
def show(name):
    status = memory_profile.call('status')
    print(name, status['profiling'], 'watch every' in status['text'], flush=True)
show('parent')
for name in 'worker', 'grandchild':
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        os._exit(0)
    show(name)
";
    let ran = languages.run("python3", &[PYTHON, "-c", python], &[PYTHON_PATH, config]);
    let expected = "parent active True\nworker active True\ngrandchild active True\n";
    assert_eq!(ran.output, expected, "{ran:?}");
    let ruby = "
require 'memory_profile'
show = ->(name) {
  status = MemoryProfile.send_message('status')
  puts \"#{name} #{status.start_with?('profiling is active')} #{status.include?('watch every')}\"
  $stdout.flush
}
show.('parent')
Process.wait(fork { show.('worker'); exit!(0) })
";
    let path = ("RUBYLIB", "{plugins}");
    let ran = languages.run("ruby", &["ruby", "-e", ruby], &[path, config]);
    assert_eq!(
        ran.output, "parent true true\nworker true true\n",
        "{ran:?}"
    );
}

/// A config file that was wrong is read again at the next message.
#[test]
fn corrected_config_needs_no_restart() {
    let languages = Languages::new();
    let script = "
import memory_profile, os
def answer():
    try: return memory_profile.send('status')
    except Exception as error: return str(error)
for wrong, reason in [('dumpdir = 1', 'dumpdir'), ('[keep', 'line 1'), ('dump_dir = \"x\"', 'absolute'),
                      ('[[watch]]\\nevery = \"never\"', 'never'), ('unwinder = \"legs\"', 'legs')]:
    with open(os.environ['MEMPROF_CONFIG'], 'w') as file: file.write(wrong)
    text = answer()
    assert reason in text, (wrong, text)
    assert text == answer()
with open(os.environ['MEMPROF_CONFIG'], 'w') as file: file.write('activate_at_start = true')
print(answer())
";
    let config = ("MEMPROF_CONFIG", "{place}/c.toml");
    let ran = languages.run("python3", &[PYTHON, "-c", script], &[PYTHON_PATH, config]);
    assert!(ran.output.starts_with("profiling is active"), "{ran:?}");
}
