//! The trait that a plugin author implements.

use crate::raw::{memprof_message_t, memprof_str_t};
use crate::{Arguments, Failure, Host, Reply};

/// A plugin. The host creates it once, and then sends it messages until the host ends.
pub trait Plugin: Send + Sync + Sized + 'static {
    /// Name of the plugin in messages and logs; unique in a host. At most 64 ASCII letters, digits and `_`, a letter
    /// first.
    const ID: &'static str;
    /// Version for logs and `status`, such as `0.2.0`.
    const VERSION: &'static str;
    /// Messages that the plugin handles. The SDK rejects all others, and lists these in the error.
    const MESSAGES: &'static [Message];

    /// Creates the plugin. `config` is the text of its TOML table. The [`Host`] may be stored as long as the plugin
    /// exists.
    ///
    /// # Errors
    /// The reason why the plugin cannot work. The host logs it, repeats it to every sender of a message to this plugin,
    /// and continues without the plugin.
    fn create(host: Host, config: &str) -> Result<Self, Failure>;

    /// Handles one of [`MESSAGES`](Self::MESSAGES). May be called on several threads at once.
    ///
    /// # Errors
    /// The SDK converts a [`Failure`] to the error reply, unless a part of the body was already written.
    fn handle_message(
        &self,
        name: &str,
        args: Arguments,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure>;

    /// Prepares a thread that the host runs only for its plugins; a profiler excludes it from the profile. The host
    /// calls this before it allocates on the thread, and again before each message. Must not allocate.
    fn enter_thread(&self) {}
}

/// Description of one message that a plugin handles.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Message(pub(crate) memprof_message_t);

impl Message {
    /// Describes a message: its name, its arguments in the form `[name=NAME]`, and one sentence about its effect.
    pub const fn new(name: &'static str, usage: &'static str, help: &'static str) -> Self {
        Self(memprof_message_t {
            struct_size: size_of::<memprof_message_t>(),
            flags: 0,
            name: memprof_str_t::new(name),
            usage: memprof_str_t::new(usage),
            help: memprof_str_t::new(help),
        })
    }

    /// Returns the name by which the message is sent.
    pub fn name(&self) -> &'static str {
        static_text(self.0.name)
    }

    /// Returns the arguments as a person would type them, such as `[name=NAME]`. Empty if there are none.
    pub fn usage(&self) -> &'static str {
        static_text(self.0.usage)
    }

    /// Returns one sentence about the effect of the message.
    pub fn help(&self) -> &'static str {
        static_text(self.0.help)
    }
}

#[expect(
    unsafe_code,
    reason = "reads back the text that `Message::new` borrowed"
)]
/// Returns the text of a field that [`Message::new`] set.
fn static_text(text: memprof_str_t) -> &'static str {
    // SAFETY: `Message::new` is the only constructor, and borrows a `&'static str`.
    unsafe { text.as_str() }.expect("it was a str")
}

/// Exports a type that implements [`Plugin`] as the library's plugin, under the symbol `memprof_plugin_entry`. Use it
/// once in a cdylib. Does not compile with `panic = "abort"`, because panics could not be caught.
#[macro_export]
macro_rules! export_plugin {
    ($plugin:ty) => {
        #[cfg(panic = "abort")]
        compile_error!(
            "a panic of this plugin would end its host: build it with panic = \"unwind\" in the profile"
        );
        $crate::__export_entry!($plugin);
        $crate::__export_layout!();
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_entry {
    ($plugin:ty) => {
        /// The plugin, for its adapters. Not the exported symbol: in a server that loads all plugins for each other
        /// (`RTLD_GLOBAL`), that is the one of the first plugin.
        #[allow(non_upper_case_globals)]
        pub static memprof_plugin_entry: $crate::raw::memprof_plugin_entry_t = {
            const COUNT: usize = <$plugin as $crate::Plugin>::MESSAGES.len();
            static POINTERS: $crate::MessagePointers<COUNT> =
                $crate::MessagePointers::new(<$plugin as $crate::Plugin>::MESSAGES);
            $crate::create_entry::<$plugin, COUNT>(&POINTERS)
        };
        const _: () = {
            /// The symbol that the host reads first (memprof.h).
            #[unsafe(export_name = "memprof_plugin_entry")]
            static EXPORTED: $crate::raw::memprof_plugin_entry_t = memprof_plugin_entry;
        };
    };
}

#[cfg(not(feature = "stable-abi"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_layout {
    () => {};
}
