//! Interpreters of Debian's, whose programs load the plugin as a module.

use std::process::Command;

use tempfile::TempDir;

use crate::dist::{dist, source, tool};

/// A place for sockets and dumps, and for copies of the plugin.
struct Languages(TempDir);

/// What a program wrote, and whether it succeeded.
#[derive(Debug)]
struct Ran {
    output: String,
    errors: String,
    is_ok: bool,
}

impl Languages {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Runs a program of a Debian package; `{plugins}`, `{examples}` and `{place}` stand for directories.
    fn run(&self, package: &str, words: &[&str], env: &[(&str, &str)]) -> Ran {
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
const INACTIVE: &str = "profiling is inactive";
const UNKNOWN: &str = "memory_profile has no message \"bogus\"; valid messages: activate, ";
const TOO_LONG: &str = "a message has at most 4096 bytes, this one has 1000000";

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
fn a_process_has_one_plugin() {
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
