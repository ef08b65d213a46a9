//! Recognizes errors of a server's certificate.

/// Returns whether an error says that no trusted authority signed the certificate: `rustls::Error::InvalidCertificate`,
/// recognized by its text, which errors that wrap it repeat.
pub(crate) fn is_untrusted_certificate_error(error: &str) -> bool {
    error.contains("invalid peer certificate")
}
