//! Redis of Debian's, which is linked to jemalloc.

use std::process::Command;

use crate::abi::{COMPILERS, ServerPlugin, adapter_libraries, compiled_plugin, server_plugins};
use crate::bus::{self, CONF, Load, Server, text_of};
use crate::dist::{dist, tool_text};
use crate::host::Host;
use crate::memprof::memprof;

pub(crate) struct Redis(Host);

impl Server for Redis {
    const NAME: &'static str = "redis-server";
    const PROGRAM: &'static str = "/usr/bin/redis-server";
    const FUNCTION: &'static str = "aeMain";
    const ENV: &'static [(&'static str, &'static str)] = &[CONF];
    const UNAVAILABLE: &'static str = "was started with opt.prof=false";

    fn start(load: &Load<'_>) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" >&2", Self::PROGRAM]);
        command.args(["--port", "0", "--save", "", "--unixsocket"]);
        command.arg(place.path().join("redis.sock"));
        for _ in 0..=usize::from(load.twice) {
            command
                .arg("--loadmodule")
                .arg(dist("plugins/memory_profile.so"));
            for (key, value) in load.words(place.path()) {
                command.args([key, value].iter().filter(|word| !word.is_empty()));
            }
        }
        command
            .arg("--loadmodule")
            .arg(dist("plugins/hello_rust.so"));
        command.envs(load.env.iter().copied());
        let host = Host::spawn(command, place);
        host.wait_for_log("ready to accept connections");
        Self(host)
    }

    fn host(&self) -> &Host {
        &self.0
    }

    fn send(&self, plugin: &str, message: &str) -> String {
        // The client takes its own words; the shell's quotes are redis-cli's.
        let (name, args) = message.split_once(' ').unwrap_or((message, ""));
        let args = (!args.is_empty()).then(|| args.replace('"', ""));
        let mut words = vec![plugin.to_uppercase(), name.to_owned()];
        words.extend(args);
        text_of(&self.command(&words))
    }

    fn work(&self) {
        let value = "x".repeat(20_000);
        assert_eq!(
            self.command(&["SET".into(), "key".into(), value.clone()])
                .trim(),
            "OK"
        );
        assert_eq!(self.command(&["GET".into(), "key".into()]).trim(), value);
    }
}

impl Redis {
    /// A server with these words of its command line, in which clients may load modules.
    fn with_words(words: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$0\" \"$@\" >&2", Self::PROGRAM])
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(place.path().join("redis.sock"))
            .args(["--enable-module-command", "yes"])
            .args(words);
        let host = Host::spawn(command, place);
        host.wait_for_log("ready to accept connections");
        Self(host)
    }

    fn ask(&self, words: &[&str]) -> String {
        self.command(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    fn command(&self, words: &[String]) -> String {
        let mut client = Command::new("redis-cli");
        client
            .arg("-s")
            .arg(self.0.place().join("redis.sock"))
            .args(words);
        tool_text("redis-tools", &mut client)
    }
}

#[test]
fn does_the_main_job() {
    bus::does_the_main_job::<Redis>();
}

#[test]
fn refuses_invalid_messages() {
    bus::refuses_invalid_messages::<Redis>();
}

#[test]
fn survives_any_misuse() {
    bus::survives_any_misuse::<Redis>(&[
        (&[("dump_dirr", "/x")], "unknown field `dump_dirr`"),
        (
            &[("control", "maybe")],
            "invalid control=\"maybe\": expected on, off",
        ),
        (&[("config", "/no/such.toml")], "config file /no/such.toml"),
        (&[("alone", "")], "has no value"),
    ]);
}

/// Plugins of every compiler, with memory_profile beside them.
#[test]
fn plugins_of_every_compiler_reply() {
    let place = tempfile::tempdir().unwrap();
    let plugins = server_plugins(place.path());
    let profile = dist("plugins/memory_profile.so");
    let files = plugins.iter().map(|plugin| &plugin.file).chain([&profile]);
    let words = files.flat_map(|file| ["--loadmodule", file.to_str().unwrap()]);
    let redis = Redis::with_words(&words.collect::<Vec<_>>());
    bus::plugins_of_every_compiler_reply(&redis, &plugins);
    for ServerPlugin { id, file, .. } in &plugins {
        assert!(redis.ask(&[&id.to_uppercase()]).contains("Greets"), "{id}");
        let symbols = tool_text("binutils", Command::new("nm").arg("-D").arg(file));
        assert!(
            !symbols.contains(" T _R") && !symbols.contains(" T _Z"),
            "{symbols}"
        );
    }
    assert!(redis.send("memory_profile", "status").contains("profiling"));
}

/// A lease, rules from a file of the config's, gdump, recent, and the dump at the end of a server that never
/// unloads its modules.
#[test]
fn leases_and_rules_work() {
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("memprof.toml");
    let dumps = place.path().join("dumps");
    let rules = "[[watch]]\nrss_growth = \"8MiB\"\nmin_interval = \"0s\"\n\
                 [[watch]]\nat_exit = true\n";
    std::fs::write(&config, rules).unwrap();
    let mut redis = Redis::start(&Load {
        env: Redis::ENV,
        config: &[
            ("config", config.to_str().unwrap()),
            ("dump_dir", dumps.to_str().unwrap()),
        ],
        twice: false,
    });
    let active = redis.send("memory_profile", "activate for=1s");
    assert!(active.contains(", until "), "{active}");
    redis
        .0
        .wait_for_log("profiling is inactive: its time is over");
    redis.send("memory_profile", "activate");
    let gdump = redis.send("memory_profile", "gdump state=on");
    assert!(
        gdump.starts_with("gdump took 0 of 16 dumps, until "),
        "{gdump}"
    );
    redis.send("memory_profile", "recent max=9");
    let fill = "for i=1,20000 do redis.call('SET','key:'..i,string.rep('x',1000)) end";
    redis.command(&["EVAL", fill, "0"].map(str::to_owned));
    redis.0.wait_for_log("rss_growth = \"8MiB\" at ");
    let recent = redis.send("memory_profile", "recent");
    let parsed = serde_json::from_str(&recent);
    let recent: serde_json::Value = parsed.unwrap_or_else(|error| panic!("{error}: {recent}"));
    assert_eq!(recent["recent_alloc_max"], 9);
    assert!(
        recent["recent_alloc"][0]["alloc_trace"][0].is_string(),
        "{recent}"
    );
    let status = redis.send("memory_profile", "status");
    assert!(
        status.contains("watch rss_growth = \"8MiB\": fired "),
        "{status}"
    );
    assert!(redis.0.terminate().success());
    let line = redis.0.wait_for_log("at_exit = true at ");
    let names = std::fs::read_dir(&dumps).unwrap();
    let at_exit = names
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_str().unwrap().contains(".at-exit."));
    assert!(line.contains(at_exit.unwrap().to_str().unwrap()), "{line}");
}

/// Redis's only thread answers: a file that it may not write would end it by SIGXFSZ.
#[test]
fn fetch_within_a_limit_of_the_file_size() {
    let redis = Redis::start(&Load {
        env: &[("MALLOC_CONF", "prof:true,prof_active:true,lg_prof_sample:8")],
        ..Load::default()
    });
    let command =
        |words: &str| redis.command(&words.split(' ').map(str::to_owned).collect::<Vec<_>>());
    // Many stacks: a dump above what fits a line of the control protocol.
    let fill = "for i=1,2000 do redis.call('SET','k'..i,string.rep('x',i)) redis.call('HSET','h'..i,i,i) \
                redis.call('ZADD','z',i,'m'..i) redis.call('LPUSH','l',i) redis.call('SADD','s'..i%9,'e'..i) \
                local f = loadstring('return {' .. i .. '}') f() cjson.encode({i}) end";
    redis.command(&["EVAL", fill, "0"].map(str::to_owned));
    for section in [
        "INFO",
        "CONFIG GET *",
        "COMMAND",
        "CLIENT LIST",
        "MEMORY STATS",
        "LATENCY DOCTOR",
    ] {
        command(section);
    }
    let dump: serde_json::Value =
        serde_json::from_str(&command("MEMORY_PROFILE dump format=json")).unwrap();
    let bytes = dump["bytes"].as_u64().unwrap();
    assert!(bytes > 64 << 10, "{bytes}");
    let pid = redis.0.pid().to_string();
    tool_text(
        "util-linux",
        Command::new("prlimit").args(["--fsize=4096:unlimited", "--pid", &pid]),
    );
    let id = format!("id={}", dump["id"].as_str().unwrap());
    let fetched = redis.command(&["MEMORY_PROFILE".into(), "fetch".into(), id]);
    let kept = std::fs::read_to_string(dump["path"].as_str().unwrap()).unwrap();
    assert!(
        fetched.trim() == kept.trim(),
        "{} of {bytes} bytes",
        fetched.len()
    );
    let refused = command("MEMORY_PROFILE dump");
    assert!(refused.contains("File too large (EFBIG)"), "{refused}");
    redis.work();
}

#[test]
fn help_and_missing_message_list_the_messages() {
    let redis = Redis::start(&Load::default());
    let help = redis.command(&["MEMORY_PROFILE".into(), "HELP".into()]);
    assert!(help.lines().any(|line| line.starts_with("dump ")), "{help}");
    assert!(
        help.lines().any(|line| line.starts_with("fetch id=ID ")),
        "{help}"
    );
    assert_eq!(redis.command(&["memory_profile".into()]), help);
}

/// Built outside of this workspace, without a build script.
#[test]
fn another_module_survives_unloading() {
    let module = crate::plugins::out_of_tree();
    let redis = Redis::with_words(&["--loadmodule", module.to_str().unwrap()]);
    let ask = |words: &[&str]| redis.ask(words);
    assert_eq!(ask(&["OUT_OF_TREE", "hello"]).trim(), "hello");
    assert_eq!(ask(&["MODULE", "UNLOAD", "out_of_tree"]).trim(), "OK");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", redis.0.pid())).unwrap();
    assert!(maps.contains("libout_of_tree.so"), "{maps}");
    redis.work();
}

#[test]
fn replies_are_text_unless_json_is_requested() {
    let redis = Redis::start(&Load {
        env: Redis::ENV,
        ..Load::default()
    });
    let words = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let ask = |message: &str| redis.command(&words(&format!("MEMORY_PROFILE {message}")));
    let stats = ask("stats");
    assert!(stats.starts_with("jemalloc 5"), "{stats}");
    assert!(stats.lines().count() > 50, "{stats}");
    let json = |message: &str| serde_json::from_str::<serde_json::Value>(&ask(message)).unwrap();
    assert_eq!(json("status format=json")["profiling"], "inactive");
    assert_eq!(
        json("stats format=json")["allocators"][0]["kind"],
        "jemalloc"
    );
    assert_eq!(json("activate format=json for=10m")["profiling"], "active");
    let plain = ask("status format=text");
    assert!(plain.starts_with("profiling is active since "), "{plain}");
    for (message, expected) in [
        (
            "status format=xml",
            "ERR invalid format=\"xml\": expected json or text",
        ),
        (
            "status format=json format=text",
            "ERR argument \"format\" is given twice",
        ),
    ] {
        assert_eq!(ask(message).trim(), expected, "{message}");
    }
    assert!(ask("bogus format=json").contains("\"kind\":\"unknown_message\""));
    // A value is the client's, whatever it contains.
    let name = "name=Ada format=json of xformat=json";
    let greeted = redis.ask(&["HELLO_RUST", "hello", name]);
    assert_eq!(greeted.trim(), "hello, Ada format=json of xformat=json");
    let name = "x\u{1b}".repeat(60);
    let unknown = redis.command(&["MEMORY_PROFILE".to_owned(), name]);
    assert!(
        unknown.contains("memory_profile has no message \"x\\u{1b}x\\u{1b}"),
        "{unknown}"
    );
    assert!(unknown.contains("…\""), "{unknown}");
}

/// A module answers by its own command, so neither a socket nor an attachment is needed, and both commands say so.
#[test]
fn module_without_a_socket_is_known_to_doctor_and_record() {
    let plugin = dist("plugins/memory_profile.so");
    let redis = Redis::with_words(&["--loadmodule", plugin.to_str().unwrap()]);
    let pid = redis.0.pid().to_string();
    let run = |args: &[&str]| memprof(&redis.0.socket_dir(), args);
    let diagnosis = run(&["doctor", &pid, "--json"]).exits(0).json();
    assert_eq!(diagnosis["has_plugin"], true);
    assert_eq!(
        diagnosis["findings"][0]["kind"], "no_control_socket",
        "{diagnosis}"
    );
    let remedy = diagnosis["findings"][0]["remedy"].as_str().unwrap();
    assert!(remedy.contains("in Redis `control on`"), "{remedy}");
    let refused = run(&["record", &pid, "--for", "1s"]).exits(4).stderr;
    let expected =
        "the program has loaded the plugin itself; send messages by the program's own command";
    assert!(refused.contains(expected), "{refused}");
}

/// A client that loads the module with a wrong config gets an error, and can load it again with a right one.
#[test]
fn wrong_config_is_repaired_without_a_restart() {
    let plugin = dist("plugins/memory_profile.so");
    let plugin = plugin.to_str().unwrap();
    let redis = Redis::with_words(&[]);
    let dumps = redis.0.place().join("dumps");
    let dumps = dumps.to_str().unwrap();
    let load = |words: &[&str]| redis.ask(&[&["MODULE", "LOAD", plugin], words].concat());
    for (words, reason) in [
        (&["dumpdir", dumps][..], "unknown field `dumpdir`"),
        (
            &["control", "on", "alone"],
            "config word \"alone\" has no value",
        ),
        (&["control", "maybe"], "invalid control=\"maybe\""),
        (
            &["control", "on", "dump_dir", "relative"],
            "is not an absolute path",
        ),
        (&["config", "/no/such.toml"], "config file /no/such.toml"),
    ] {
        let reply = load(words);
        assert!(
            reply.contains("Error loading the extension"),
            "{words:?}: {reply}"
        );
        redis.0.wait_for_log(reason);
    }
    let right = ["dump_dir", dumps, "control", "on"];
    assert_eq!(load(&right).trim(), "OK");
    let has_right_config = || {
        let status = redis.ask(&["MEMORY_PROFILE", "status", "format=json"]);
        assert!(status.contains(dumps), "{status}");
    };
    has_right_config();
    redis.0.memprof("status", &[]).exits(0);
    // Loaded already, and with another config.
    assert!(load(&right).contains("Error loading the extension"));
    assert_eq!(
        redis.ask(&["MODULE", "UNLOAD", "memory_profile"]).trim(),
        "OK"
    );
    assert!(load(&["dump_dir", "/tmp"]).contains("Error loading the extension"));
    redis
        .0
        .wait_for_log("its first config stays until the program is restarted");
    assert_eq!(load(&right).trim(), "OK");
    has_right_config();
    redis.work();
}

/// A config that is refused at Redis' start is corrected by unloading the module first; before, `MODULE LOAD` fails and
/// changes nothing.
#[test]
fn config_refused_at_the_start_stays_until_the_module_is_unloaded() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("memory_profile.so");
    std::fs::copy(dist("plugins/memory_profile.so"), &file).unwrap();
    let plugin = file.to_str().unwrap();
    let redis = Redis::with_words(&["--loadmodule", plugin, "dumpdir", "/x"]);
    let status = || redis.ask(&["MEMORY_PROFILE", "status"]);
    let reason = "unknown field `dumpdir`";
    assert!(status().contains(reason), "{}", status());
    let load_from = |path: &str| redis.ask(&["MODULE", "LOAD", path, "dump_dir", "/tmp"]);
    let load = || load_from(plugin);
    assert!(load().contains("Error loading the extension"));
    let advice = "stays as it was: MODULE UNLOAD memory_profile, and load it again";
    redis.0.wait_for_log(advice);
    assert!(status().contains(reason), "{}", status());
    // A file at another path is loaded beside the one that was refused.
    let upgraded = place.path().join("upgraded.so");
    std::fs::copy(&file, &upgraded).unwrap();
    let loaded = load_from(upgraded.to_str().unwrap());
    assert!(loaded.contains("Error loading the extension"), "{loaded}");
    redis.0.wait_for_lines(advice, 2);
    assert!(status().contains(reason), "{}", status());
    assert_eq!(
        redis.ask(&["MODULE", "UNLOAD", "memory_profile"]).trim(),
        "OK"
    );
    assert_eq!(load().trim(), "OK");
    assert!(status().starts_with("profiling is"), "{}", status());
    redis.work();
}

/// The second of two plugins with one id is left out, by its file's name; a copy of the first one is no other plugin.
#[test]
fn second_plugin_with_one_id_is_refused() {
    let [first, second, copy] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let hello = std::fs::read_to_string(crate::dist::source("plugins/hello-c/hello_c.c")).unwrap();
    let libraries = adapter_libraries();
    let compile = |text: &str, place: &tempfile::TempDir| {
        let file = compiled_plugin(text, &COMPILERS[0], place.path(), &libraries);
        file.to_str().unwrap().to_owned()
    };
    let file = compile(&hello, &first);
    let rival = compile(&hello.replace("\"hello\"", "\"sum\""), &second);
    let copied = copy.path().join("copy.so");
    std::fs::copy(&file, &copied).unwrap();
    let copied = copied.to_str().unwrap();
    let words = [
        "--loadmodule",
        &file,
        "--loadmodule",
        &rival,
        "--loadmodule",
        copied,
    ];
    let redis = Redis::with_words(&words);
    let refused = format!(
        "{rival}: a plugin with the id hello_c is loaded already, from {file}; leave out one of the two"
    );
    redis.0.wait_for_log(&refused);
    redis.0.wait_for_log(&format!(
        "{copied} is left out: {file} is loaded already and answers the messages of hello_c"
    ));
    redis.check_reply("hello_c", "hello", "hello from C");
    redis.check_reply("hello_c", "sum", "has no message \"sum\"");
    let loaded = redis.ask(&["MODULE", "LOAD", &rival]);
    assert!(loaded.contains("Error loading the extension"), "{loaded}");
    redis.0.wait_for_lines(&refused, 2);
    let loaded = redis.ask(&["MODULE", "LOAD", &file]);
    assert!(loaded.contains("Error loading the extension"), "{loaded}");
    redis
        .0
        .wait_for_log("the module hello_c is loaded already, and stays as it is");
    redis.work();
}

/// Two modules have a socket each, by which messages find their plugin.
#[test]
fn two_plugins_of_one_process_are_both_reached() {
    let [profile, hello] =
        ["memory_profile", "hello_rust"].map(|name| dist(&format!("plugins/{name}.so")));
    let module = |path: &std::path::Path| format!("{} control on", path.display());
    let words = [
        "--loadmodule",
        &module(&profile),
        "--loadmodule",
        &module(&hello),
    ]
    .join(" ")
    .split(' ')
    .map(str::to_owned)
    .collect::<Vec<_>>();
    let redis = Redis::with_words(&words.iter().map(String::as_str).collect::<Vec<_>>());
    redis.0.memprof("status", &[]).exits(0);
    let greeting = redis
        .0
        .memprof("msg", &["hello_rust", "hello", "name=Ada"])
        .exits(0);
    assert_eq!(greeting.stdout, "hello, Ada\n");
    redis
        .0
        .memprof("msg", &["memory_profile", "status"])
        .exits(0);
    let help = redis.0.memprof("msg", &["hello_rust", "help"]).exits(0);
    assert!(help.stdout.contains("hello [name=NAME]"), "{help:?}");
    let unknown = redis.0.memprof("msg", &["nope", "hello"]).exits(2);
    let known = "no such plugin: \"nope\"; this process has ";
    assert!(unknown.stderr.contains(known), "{unknown:?}");
    for id in ["memory_profile", "hello_rust"] {
        assert!(unknown.stderr.contains(id), "{unknown:?}");
    }
    let pid = redis.0.pid().to_string();
    let list = crate::memprof::memprof(&redis.0.socket_dir(), &["plugins", &pid]).exits(0);
    assert_eq!(list.stderr, "");
    for id in ["memory_profile  ", "hello_rust  "] {
        assert!(
            list.stdout.lines().any(|line| line.starts_with(id)),
            "{list:?}"
        );
    }
}

/// A module without `control on` answers by its command alone; `memprof` says so.
#[test]
fn plugin_without_a_socket_is_named() {
    let [profile, hello] =
        ["memory_profile", "hello_rust"].map(|name| dist(&format!("plugins/{name}.so")));
    let [profile, hello] = [&profile, &hello].map(|path| path.to_str().unwrap());
    let words = [
        "--loadmodule",
        profile,
        "control",
        "on",
        "--loadmodule",
        hello,
    ];
    let redis = Redis::with_words(&words);
    let hint = "the process has the plugin hello_rust, but no control socket of it: set `control=on` in its configuration \
                (in Redis `control on`)";
    let refused = redis.0.memprof("msg", &["hello_rust", "hello"]).exits(2);
    assert!(refused.stderr.contains(hint), "{refused:?}");
    let pid = redis.0.pid().to_string();
    let list = memprof(&redis.0.socket_dir(), &["plugins", &pid]).exits(0);
    assert!(list.stderr.contains(hint), "{list:?}");
    assert!(list.stdout.starts_with("memory_profile  "), "{list:?}");
}

/// Debian's Redis puts a module's command into no category of the ACL but `@read`: README names the command.
#[test]
fn command_is_denied_by_the_acl_of_readme() {
    let plugin = dist("plugins/memory_profile.so");
    let redis = Redis::with_words(&["--loadmodule", plugin.to_str().unwrap()]);
    let check = |rules: &str, message: &str, is_denied: bool| {
        let user = format!("ACL SETUSER app reset on >x ~* {rules}");
        assert_eq!(redis.ask(&user.split(' ').collect::<Vec<_>>()).trim(), "OK");
        let reply = redis.ask(&[
            "--user",
            "app",
            "--pass",
            "x",
            "--no-auth-warning",
            "MEMORY_PROFILE",
            message,
        ]);
        assert_eq!(reply.contains("NOPERM"), is_denied, "{rules}: {reply}");
    };
    check("+@all -memory_profile", "status", true);
    check("+@all", "status", false);
    check("-@all +memory_profile|status", "status", false);
    check("-@all +memory_profile|status", "dump", true);
}
