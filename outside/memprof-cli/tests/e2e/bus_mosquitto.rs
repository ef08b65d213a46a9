//! Mosquitto of Debian's.

use std::process::Command;

use tempfile::TempDir;

use crate::abi::server_plugins;
use crate::bus::{self, CONF, Load, Server, free_port, text_of};
use crate::dist::{dist, tool_text};
use crate::host::Host;

struct Mosquitto {
    host: Host,
    port: String,
}

impl Server for Mosquitto {
    const NAME: &'static str = "mosquitto";
    const PROGRAM: &'static str = "/usr/sbin/mosquitto";
    const FUNCTION: &'static str = "mosquitto_main_loop";
    const ENV: &'static [(&'static str, &'static str)] =
        &[("LD_PRELOAD", "libjemalloc.so.2"), CONF];
    const UNAVAILABLE: &'static str = "has no profiler";

    fn start(load: &Load<'_>) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut config = String::new();
        for _ in 0..=usize::from(load.twice) {
            let plugin = dist("plugins/memory_profile.so");
            config += &format!("plugin {}\n", plugin.display());
            for (key, value) in load.words(place.path()) {
                config += &format!("plugin_opt_{key} {value}\n");
            }
        }
        config += &format!("plugin {}\n", dist("plugins/hello_rust.so").display());
        Self::with_plugins(place, &config, load.env)
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn send(&self, plugin: &str, message: &str) -> String {
        let topic = format!("$CONTROL/{plugin}/v1");
        let response = format!("{topic}/response");
        let body = self.client(
            "mosquitto_rr",
            &[
                "-V", "5", "-W", "60", "-t", &topic, "-e", &response, "-m", message,
            ],
        );
        text_of(&body)
    }

    fn work(&self) {
        let value = "x".repeat(20_000);
        self.client("mosquitto_pub", &["-r", "-t", "work", "-m", &value]);
        let found = self.client("mosquitto_sub", &["-W", "60", "-C", "1", "-t", "work"]);
        assert_eq!(found.trim(), value);
    }
}

impl Mosquitto {
    /// A server with these lines in its config.
    fn with_plugins(place: TempDir, lines: &str, env: &[(&str, &str)]) -> Self {
        let port = free_port().to_string();
        let listener = format!("listener {port} 127.0.0.1\nallow_anonymous true\n");
        let file = place.path().join("mosquitto.conf");
        let config = format!("{listener}log_dest stderr\nuser root\n{lines}");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(Self::PROGRAM);
        command.arg("-c").arg(&file).envs(env.iter().copied());
        let host = Host::spawn(command, place);
        host.wait_for_log(" running");
        Self { host, port }
    }

    fn client(&self, program: &str, args: &[&str]) -> String {
        let mut client = Command::new(program);
        client.args(["-p", &self.port]).args(args);
        tool_text("mosquitto-clients", &mut client)
    }
}

#[test]
fn does_the_main_job() {
    bus::does_the_main_job::<Mosquitto>();
}

#[test]
fn refuses_invalid_messages() {
    bus::refuses_invalid_messages::<Mosquitto>();
}

#[test]
fn survives_any_misuse() {
    bus::survives_any_misuse::<Mosquitto>(&[
        (&[("dump_dirr", "/x")], "unknown field `dump_dirr`"),
        (&[("keep.count", "many")], "expected a whole number"),
        (&[("config", "/no/such.toml")], "config file /no/such.toml"),
    ]);
}

#[test]
fn plugins_of_every_compiler_reply() {
    let place = tempfile::tempdir().unwrap();
    let plugins = server_plugins(place.path());
    let lines = plugins
        .iter()
        .map(|plugin| format!("plugin {}\n", plugin.file.display()));
    let lines: String = lines.collect();
    let server = Mosquitto::with_plugins(tempfile::tempdir().unwrap(), &lines, &[]);
    bus::plugins_of_every_compiler_reply(&server, &plugins);
}
