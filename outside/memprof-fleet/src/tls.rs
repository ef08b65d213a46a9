//! Recognizes errors of a server's certificate.

/// Returns whether the text of an error says that no trusted authority signed the server's certificate. Only the text
/// can be checked: errors that wrap `rustls::Error::InvalidCertificate` repeat it.
pub(crate) fn is_untrusted_certificate_error(error: &str) -> bool {
    error.contains("invalid peer certificate")
}
