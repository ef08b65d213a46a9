//! Why an allocator has no profile to give, and what helps.

use crate::error::{Error, ErrorKind};
use crate::identity::Identity;

/// Its kind has no profiler.
pub(crate) fn no_profiler(allocator: &Identity) -> Error {
    let message = format!("{allocator} has no profiler");
    Error::new(ErrorKind::Unsupported, message).remedy(use_jemalloc())
}

/// It keeps no stacks of its heap's growth.
pub(crate) fn no_growth_profile(allocator: &Identity) -> Error {
    let message = format!("{allocator} keeps no growth profile");
    Error::new(ErrorKind::Unsupported, message).remedy(
        "only gperftools' tcmalloc does; compare two heap profiles instead: memprof report LATER \
         --base EARLIER",
    )
}

/// What helps a process that has no allocator with a profiler.
pub(crate) fn use_jemalloc() -> &'static str {
    if is_secure_execution() {
        return "this process runs in secure-execution mode (AT_SECURE), in which the loader \
                ignores LD_PRELOAD: start it without changing uid, or use /etc/ld.so.preload and \
                /etc/malloc.conf";
    }
    "start it with `memprof run --allocator jemalloc`, or with LD_PRELOAD=libjemalloc.so.2 and \
     MALLOC_CONF=prof:true,prof_active:false; if jemalloc is linked in, do not strip the program, \
     or export mallctl"
}

/// Whether the loader and jemalloc ignore the environment: a setuid start, file capabilities.
#[expect(unsafe_code, reason = "getauxval is only declared unsafe")]
pub fn is_secure_execution() -> bool {
    // SAFETY: getauxval(3) reads a constant of this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
