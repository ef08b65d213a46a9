//! Names the plugin that lets an exception or `pthread_exit` leave one of its functions, which ends the program.

use std::mem;

/// Writes a line to the log when it is dropped: that happens while the stack of a plugin's function is unwound. The
/// runtime then ends the program, without a word on who threw.
pub(super) struct UnwindReport<'a> {
    id: &'a str,
    call: &'a str,
}

impl<'a> UnwindReport<'a> {
    /// Prepares the report that a call of plugin `id` did not return. `call` is the message's name, `create` or
    /// `destroy`. Dropping the report logs it, so [`Self::cancel`] must follow a call that returns.
    pub(super) fn new(id: &'a str, call: &'a str) -> Self {
        Self { id, call }
    }

    /// Discards the report, because the call returned.
    pub(super) fn cancel(self) {
        mem::forget(self);
    }
}

impl Drop for UnwindReport<'_> {
    fn drop(&mut self) {
        let Self { id, call } = self;
        log::error!(
            "plugin {id} leaves {call:?} by an exception or pthread_exit, which memprof.h forbids: this ends the program"
        );
    }
}
