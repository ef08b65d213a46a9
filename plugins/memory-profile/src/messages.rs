//! The messages of `memory_profile`: their handlers, and the start and end of the plugin.

mod dumps;
mod sampling;
mod state;
mod statistics;

use std::sync::Arc;

use memprof_core::{
    JemallocReaders, Profiler, ProfilerExclusion, ProfilerSettings, require_seccomp_allows_calls,
};
use memprof_host::protocol::MessageUsage;
use memprof_messages::{HelpReply, MESSAGES, MessageHelp, PLUGIN, USAGES};
use memprof_plugin_abi::{Arguments, Failure, Host, Message, Plugin, Reply};

use crate::config::Config;
use crate::exit_handler::register_exit_handler;
use crate::host_jemalloc::{host_mallctl, read_heap_totals, read_printout};
use crate::profilers::{ProfilerStart, Profilers};
use crate::reply::{reply_success, to_failure};

/// Descriptions of the messages for the ABI.
const DESCRIPTORS: [Message; MESSAGES.len()] = {
    let mut all = [Message::new("", "", ""); MESSAGES.len()];
    let mut index = 0;
    while index < all.len() {
        all[index] = Message::new(MESSAGES[index].name, USAGES[index], MESSAGES[index].help);
        index += 1;
    }
    all
};

/// The plugin instance. It owns the profiler of this process.
pub(crate) struct MemoryProfile {
    profilers: Arc<Profilers>,
}

impl Plugin for MemoryProfile {
    const ID: &'static str = PLUGIN;
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const MESSAGES: &'static [Message] = &DESCRIPTORS;

    /// Creates the profiler of this process with the given configuration, which may start sampling. If there are watch
    /// rules, also registers an exit handler. Fails only if the configuration is invalid. Other problems, such as an
    /// allocator that cannot be profiled, are only logged, because the host must start.
    fn create(host: Host, config: &str) -> Result<Self, Failure> {
        let _exclusion = ProfilerExclusion::from_exported_symbols();
        let config = Config::parse(config)?;
        let store = config.dump_store(host.name());
        // Checked at the start, so that it can be fixed early: the first dump may come hours later.
        if let Err(error) = store.require_writable() {
            log::warn!("{}", to_failure(error));
        }
        let interval = config.sample_interval();
        if let (Err(error), false) = (&interval, config.activate_at_start) {
            log::error!("{error}; the default is used instead");
        }
        let settings = ProfilerSettings {
            interval: *interval.as_ref().unwrap_or(&None),
            program: host.name().to_owned(),
            host: host_mallctl(&host),
            own_image: read_heap_totals as *const () as usize,
            store,
            readers: JemallocReaders {
                totals: read_heap_totals,
                printout: read_printout,
            },
            unwinder: config.unwinder_settings(),
            sampler: config.sampler,
        };
        let start = ProfilerStart {
            activation: config
                .activate_at_start
                .then(|| interval.map_err(to_failure)),
            rules: config.watch_rules().to_vec(),
        };
        let profilers = Arc::new(Profilers::new(settings, start));
        if profilers.has_rules() {
            register_exit_handler(&profilers);
        }
        Ok(Self { profilers })
    }

    /// Calls the handler of the message, without sampling this thread. Fails before that if the thread has a seccomp
    /// filter that forbids system calls of the profiler.
    fn handle_message(
        &self,
        name: &str,
        args: Arguments,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        // The thread may belong to the program, as in Redis.
        let _exclusion = self.profiler().pause_sampling_on_this_thread();
        require_seccomp_allows_calls().map_err(to_failure)?;
        let profiler = self.profiler();
        match name {
            "activate" => sampling::handle_activate(profiler, args, reply),
            "deactivate" => sampling::handle_deactivate(profiler, args, reply),
            "reset" => sampling::handle_reset(profiler, args, reply),
            "dump" => dumps::handle_dump(profiler, args, reply),
            "gdump" => dumps::handle_gdump(profiler, args, reply),
            "list" => dumps::handle_list(profiler, args, reply),
            "fetch" => dumps::handle_fetch(profiler, args, reply),
            "stats" => statistics::handle_stats(profiler, args, reply),
            "ledger" => statistics::handle_ledger(profiler, args, reply),
            "purge" => statistics::handle_purge(profiler, args, reply),
            "background_thread" => statistics::handle_background_thread(profiler, args, reply),
            "recent" => statistics::handle_recent(profiler, args, reply),
            "status" => state::handle_status(profiler, args, reply),
            "doctor" => state::handle_doctor(profiler, args, reply),
            "detach" => state::handle_detach(profiler, args, reply),
            "help" => handle_help(args, reply),
            name => unreachable!("{name} is in the table but is not handled"),
        }
    }

    fn enter_thread(&self) {
        self.profiler().exclude_this_thread();
    }
}

impl Drop for MemoryProfile {
    fn drop(&mut self) {
        // Not `profiler`: a forked child without a profiler has nothing to stop.
        if let Some(profiler) = self.profilers.existing_profiler() {
            profiler.shut_down();
        }
    }
}

impl MemoryProfile {
    /// Returns the profiler of this process. Creates it if it is missing, for example in a forked child.
    fn profiler(&self) -> &Arc<Profiler> {
        self.profilers.get_or_create_profiler()
    }
}

/// Handles `help`: replies with the name, usage and purpose of each message.
fn handle_help(args: Arguments, reply: &mut Reply<'_>) -> Result<(), Failure> {
    args.finish()?;
    let messages: Vec<_> = DESCRIPTORS
        .iter()
        .map(|message| MessageHelp {
            name: message.name().to_owned(),
            usage: message.usage().to_owned(),
            help: message.help().to_owned(),
        })
        .collect();
    let usages = messages.iter().cloned().map(|message| MessageUsage {
        name: message.name,
        usage: message.usage,
        help: message.help,
    });
    let lines: Vec<_> = usages.flat_map(|usage| usage.help_lines()).collect();
    reply_success(reply, &lines.join("\n"), HelpReply { messages })
}
