//! What the author of a plugin writes.

use crate::raw::{memprof_message_t, memprof_str_t};
use crate::{Arguments, Failure, Host, Reply};

/// A plugin: made once by its host, then sent messages until the host ends.
pub trait Plugin: Send + Sync + Sized + 'static {
    /// Its name in messages and logs, unique in a host.
    const ID: &'static str;
    /// For logs and `status`, as in `0.2.0`.
    const VERSION: &'static str;
    /// The messages it answers. The SDK refuses all others, with this list.
    const MESSAGES: &'static [Message];

    /// Makes the plugin. `config` is the text of its TOML table. A [`Host`] may be kept until
    /// the plugin is dropped.
    ///
    /// # Errors
    /// The reason why it cannot work; the host logs it and goes on without the plugin.
    fn create(host: Host, config: &str) -> Result<Self, Failure>;

    /// Answers one of [`MESSAGES`](Self::MESSAGES). May be called on several threads at once.
    ///
    /// # Errors
    /// The SDK turns a [`Failure`] into the error reply, unless a body was begun.
    fn handle_message(
        &self,
        name: &str,
        args: Arguments,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure>;

    /// Called on a thread that the host runs only for its plugins, before the host allocates there,
    /// and again before each message: a profiler leaves the thread out. Must allocate nothing.
    fn enter_thread(&self) {}
}

/// One message that a plugin answers.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Message(pub(crate) memprof_message_t);

impl Message {
    /// A message of that name; `usage` shows its arguments, `help` says in one sentence what it
    /// does.
    pub const fn new(name: &'static str, usage: &'static str, help: &'static str) -> Self {
        Self(memprof_message_t {
            struct_size: size_of::<memprof_message_t>(),
            flags: 0,
            name: memprof_str_t::new(name),
            usage: memprof_str_t::new(usage),
            help: memprof_str_t::new(help),
        })
    }

    /// The message's name.
    pub fn name(&self) -> &'static str {
        text(self.0.name)
    }

    /// Its arguments as a person would type them.
    pub fn usage(&self) -> &'static str {
        text(self.0.usage)
    }

    /// What it does.
    pub fn help(&self) -> &'static str {
        text(self.0.help)
    }
}

#[expect(
    unsafe_code,
    reason = "reads back the text that `Message::new` borrowed"
)]
fn text(text: memprof_str_t) -> &'static str {
    // SAFETY: `Message::new` is the only constructor and borrows a `&'static str`.
    unsafe { text.as_str() }.expect("it was a str")
}

/// Exports a type that implements [`Plugin`] as the library's plugin: defines the symbol
/// `memprof_plugin_entry`. Call it once in a cdylib. One that is built with `panic = "abort"` is refused: its panics
/// could not be contained.
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
        /// What the host reads first (memprof.h).
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static memprof_plugin_entry: $crate::raw::memprof_plugin_entry_t = {
            const COUNT: usize = <$plugin as $crate::Plugin>::MESSAGES.len();
            static POINTERS: $crate::MessagePointers<COUNT> =
                $crate::MessagePointers::new(<$plugin as $crate::Plugin>::MESSAGES);
            $crate::entry::<$plugin, COUNT>(&POINTERS)
        };
    };
}

#[cfg(not(feature = "stable-abi"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_layout {
    () => {};
}
