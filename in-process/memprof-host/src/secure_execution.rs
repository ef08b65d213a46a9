//! Processes whose environment another user controls.
#![expect(unsafe_code, reason = "getauxval(3)")]

/// Returns whether the process has more privileges than the user who started it, by `AT_SECURE`. The loader then
/// ignores most of the environment (ld.so(8), "Secure-execution mode").
pub(crate) fn is_secure_execution() -> bool {
    // SAFETY: getauxval(3) reads a constant of the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
