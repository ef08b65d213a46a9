//! The smallest plugin in Rust: replies with a greeting and logs it.

use memprof_plugin_abi::{Arguments, Failure, Host, Message, Plugin, Reply, export_plugin};

struct Hello;

impl Plugin for Hello {
    const ID: &'static str = "hello_rust";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const MESSAGES: &'static [Message] = &[Message::new("hello", "[name=NAME]", "Greets NAME.")];

    fn create(_: Host, _config: &str) -> Result<Self, Failure> {
        Ok(Self)
    }

    fn handle_message(
        &self,
        _name: &str,
        mut args: Arguments,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        let name = args.take("name").unwrap_or_else(|| "world".to_owned());
        args.finish()?;
        log::info!("greeting {name}");
        reply.text(&format!("hello, {name}"))
    }
}

export_plugin!(Hello);
memprof_host::export_adapters!(memprof_plugin_entry);
