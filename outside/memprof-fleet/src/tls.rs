//! What goes wrong with a server's certificate.

/// Whether an error says that no known authority signed it: `rustls::Error::InvalidCertificate`, by its words, which
/// what wraps it repeats.
pub(crate) fn is_untrusted(error: &str) -> bool {
    error.contains("invalid peer certificate")
}
