//! What every server must show that loads the plugin on a bus of its own.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use crate::abi::ServerPlugin;
use crate::host::Host;
use crate::hosts::cumulative_percent;
use crate::memprof::memprof;

/// A server of Debian's.
pub(crate) trait Server: Sized {
    /// Its name for `memprof -t`.
    const NAME: &'static str;
    const PROGRAM: &'static str;
    /// One of its own functions, under which it allocates.
    const FUNCTION: &'static str;
    /// The environment in which it can be profiled.
    const ENV: &'static [(&'static str, &'static str)];
    /// Reason why it cannot be profiled without [`ENV`](Self::ENV).
    const UNAVAILABLE: &'static str;

    /// Starts it and waits until it serves.
    fn start(load: &Load<'_>) -> Self;

    fn host(&self) -> &Host;

    /// Sends a message, and returns what a person reads of the reply.
    fn send(&self, plugin: &str, message: &str) -> String;

    /// Sends a message, and checks that the reply has this text.
    fn check_reply(&self, plugin: &str, message: &str, expected: &str) {
        let reply = self.send(plugin, message);
        assert!(reply.contains(expected), "{plugin} {message}: {reply}");
    }

    /// Lets it do its work, which allocates, and checks the result.
    fn work(&self);
}

/// Part of the server's config about memory_profile, besides its path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load<'a> {
    pub(crate) env: &'a [(&'a str, &'a str)],
    pub(crate) config: &'a [(&'a str, &'a str)],
    /// The config names the plugin twice.
    pub(crate) twice: bool,
}

impl Load<'_> {
    /// The config, with a dump directory in `place` where it names none.
    pub(crate) fn words(&self, place: &Path) -> Vec<(String, String)> {
        let mut words: Vec<_> = self
            .config
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        if !words.iter().any(|(key, _)| key == "dump_dir") {
            let dumps = place.join("dumps").display().to_string();
            words.push(("dump_dir".to_owned(), dumps));
        }
        words
    }
}

const MEMORY_PROFILE: &str = "memory_profile";
pub(crate) const CONF: (&str, &str) = (
    "MALLOC_CONF",
    "prof:true,prof_active:false,lg_prof_sample:12",
);

/// Activate, work, dump, jeprof, stats, deactivate; beside it the control socket and a second
/// plugin, and in the end it works.
pub(crate) fn does_the_main_job<S: Server>() {
    let server = S::start(&Load {
        env: S::ENV,
        config: &[("control", "on"), ("keep.count", "3")],
        twice: false,
    });
    let active = server.send(MEMORY_PROFILE, "activate");
    assert!(active.contains("profiling is active since"), "{active}");
    (0..20).for_each(|_| server.work());
    let dump = server.send(MEMORY_PROFILE, "dump");
    let percent = cumulative_percent(Path::new(S::PROGRAM), &dump_path(&dump), S::FUNCTION);
    assert!(percent >= 10.0, "{} has {percent} %", S::FUNCTION);
    let stats = server.send(MEMORY_PROFILE, "stats");
    assert!(stats.contains("jemalloc 5"), "{stats}");
    let status = memprof(
        &server.host().socket_dir(),
        &["status", "-t", S::NAME, "--json"],
    );
    assert_eq!(status.exits(0).json()["profiling"], "active");
    let inactive = server.send(MEMORY_PROFILE, "deactivate");
    assert!(inactive.contains("profiling is inactive"), "{inactive}");
    let hello = server.send("hello_rust", "hello name=\"two words\"");
    assert!(hello.contains("hello, two words"), "{hello}");
    server.work();
}

/// Plugins of every compiler, all of them in one server, greet, and refuse what they do not know.
pub(crate) fn plugins_of_every_compiler_reply<S: Server>(server: &S, plugins: &[ServerPlugin]) {
    for ServerPlugin {
        id,
        hello,
        greeting,
        ..
    } in plugins
    {
        // Each text is of one plugin, so that none is another's in a server whose replies are in its log.
        for (message, expected) in [
            ("hello".to_owned(), (*hello).to_owned()),
            (
                format!("hello name=\"Ada of {id}\""),
                format!("{greeting}Ada of {id}"),
            ),
            (
                format!("hello {id}=Ada"),
                format!("unknown argument \"{id}\""),
            ),
            (
                format!("leave_{id}"),
                format!("has no message \"leave_{id}\""),
            ),
        ] {
            server.check_reply(id, &message, &expected);
        }
    }
    server.work();
}

fn dump_path(text: &str) -> PathBuf {
    let path = text
        .split(" to ")
        .nth(1)
        .unwrap_or_else(|| panic!("no dump: {text}"));
    PathBuf::from(path.split(';').next().unwrap().trim())
}

/// Unknown messages are refused, with the list of the known ones.
pub(crate) fn refuses_invalid_messages<S: Server>() {
    let server = S::start(&Load {
        env: S::ENV,
        ..Load::default()
    });
    let check = |message: &str, expected: &str| {
        let reply = server.send(MEMORY_PROFILE, message);
        assert!(reply.contains(expected), "{message:?}: {reply}");
    };
    let valid = "valid messages: activate, deactivate, dump, stats";
    check("d", valid);
    check("dumpp", valid);
    check("DUMP", valid);
    check("", valid);
    check("dump path=/etc", "unknown argument \"path\"");
    check(
        &"x".repeat(100_000),
        "a message has at most 4096 bytes, this one has 100000",
    );
    server.work();
}

/// Whatever is wrong: the server starts, every message is answered with the reason, one line of
/// the log has it, and the server works.
pub(crate) fn survives_any_misuse<S: Server>(nonsense: &[(&[(&str, &str)], &str)]) {
    let check = |load: &Load<'_>, reason: &str| {
        let server = S::start(load);
        let log = server.host().log();
        let lines = log.iter().filter(|line| line.contains(reason)).count();
        assert!(lines <= 1, "{load:?}: {log:#?}");
        let dump = server.send(MEMORY_PROFILE, "dump");
        assert!(dump.contains(reason), "{load:?}: {dump}");
        server.host().wait_for_log(reason);
        let again = server.send(MEMORY_PROFILE, "dump");
        assert!(again.contains(reason), "{load:?}: {again}");
        server.work();
    };
    let unprepared = S::start(&Load::default());
    let refused = unprepared.send(MEMORY_PROFILE, "activate sampler=allocator");
    assert!(refused.contains(S::UNAVAILABLE), "{refused}");
    let sampled = unprepared.send(MEMORY_PROFILE, "activate");
    assert!(
        sampled.contains("memprof samples in the allocator's place"),
        "{sampled}"
    );
    unprepared.work();
    let unwritable = Load {
        env: S::ENV,
        config: &[("dump_dir", "/proc/no/dumps")],
        twice: false,
    };
    check(&unwritable, "/proc/no/dumps");
    for (config, reason) in nonsense {
        let load = Load {
            env: S::ENV,
            config,
            twice: false,
        };
        check(&load, reason);
    }
    let twice = S::start(&Load {
        env: S::ENV,
        twice: true,
        ..Load::default()
    });
    let status = twice.send(MEMORY_PROFILE, "status");
    assert!(status.contains("profiling is inactive"), "{status}");
    twice
        .host()
        .wait_for_log("memory_profile is loaded already");
    let log = twice.host().log();
    let about = |line: &&String| line.contains("memory_profile is loaded already");
    assert_eq!(log.iter().filter(about).count(), 1, "{log:#?}");
    twice.work();
}

/// Returns the text in a reply in JSON, or the reply itself.
pub(crate) fn text_of(body: &str) -> String {
    let json: Result<serde_json::Value, _> = serde_json::from_str(body.trim());
    match json {
        Ok(json) => json["text"].as_str().unwrap_or(body).to_owned(),
        Err(_) => body.to_owned(),
    }
}

/// An unused port on loopback.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
