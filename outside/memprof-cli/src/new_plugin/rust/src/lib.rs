//! A plugin with two messages, a config key and an error reply.

use std::sync::atomic::{AtomicU64, Ordering};

use memprof_plugin_abi::{
    Arguments, ErrorKind, Failure, Host, Message, Plugin, Reply, export_plugin,
};
use serde::Deserialize;

/// `[plugin.config]` of the host's file.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GreetConfig {
    greeting: String,
}

impl Default for GreetConfig {
    fn default() -> Self {
        let greeting = "hello".to_owned();
        Self { greeting }
    }
}

struct Greeter {
    config: GreetConfig,
    greeted: AtomicU64,
}

impl Plugin for Greeter {
    const ID: &'static str = "greeter";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const MESSAGES: &'static [Message] = &[
        Message::new("greet", "name=NAME", "Greets NAME."),
        Message::new("count", "", "Says how many were greeted."),
    ];

    fn create(_: Host, config: &str) -> Result<Self, Failure> {
        let config = toml::from_str(config)
            .map_err(|error| Failure::new(ErrorKind::InvalidArgument, error.to_string()))?;
        let greeted = AtomicU64::new(0);
        Ok(Self { config, greeted })
    }

    // Called on several threads at once.
    fn handle_message(
        &self,
        name: &str,
        mut args: Arguments,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        if name == "count" {
            args.finish()?;
            let count = self.greeted.load(Ordering::Relaxed);
            // A program reads the object, a person its `text`.
            return reply.json(&format!(
                r#"{{"status":"ok","text":"{count} greeted","greeted":{count}}}"#
            ));
        }
        let who = args.require("name")?;
        args.finish()?;
        if who.is_empty() {
            return Err(
                Failure::new(ErrorKind::InvalidArgument, "the name is empty")
                    .remedy("send name=NAME"),
            );
        }
        self.greeted.fetch_add(1, Ordering::Relaxed);
        log::info!("greeting {who}");
        reply.text(&format!("{}, {who}", self.config.greeting))
    }
}

export_plugin!(Greeter);
