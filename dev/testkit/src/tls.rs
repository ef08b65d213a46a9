//! Certificates for a server on loopback, signed by an authority of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::net_client::run_client;

/// Paths of PEM files.
#[derive(Debug)]
pub struct TlsFiles {
    /// The certificate of the authority.
    pub authority: PathBuf,
    /// The server's certificate, for the address 127.0.0.1.
    pub certificate: PathBuf,
    /// The server's key.
    pub key: PathBuf,
}

/// Creates the directory `dir` and in it an authority, a certificate that it signed, and the keys of both.
///
/// # Errors
/// openssl is not installed, or fails.
pub fn create_tls_files(dir: &Path) -> Result<TlsFiles> {
    fs::create_dir_all(dir)?;
    let path = |name: &str| dir.join(name);
    // Debian's configuration would turn each certificate into an authority's.
    fs::write(path("conf"), "[req]\ndistinguished_name = none\n[none]\n")?;
    let create_certificate = |name: &str, subject: &str, more: &[&str]| {
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]);
        openssl.args(["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", subject]);
        openssl.arg("-config").arg(path("conf"));
        openssl.arg("-keyout").arg(path(&format!("{name}.key")));
        openssl.arg("-out").arg(path(&format!("{name}.pem")));
        run_client(openssl.args(more)).context("run `cargo xtask test`, or apt-get install openssl")
    };
    let (authority, signer) = (path("authority.pem"), path("authority.key"));
    create_certificate(
        "authority",
        "/CN=authority",
        &["-addext", "basicConstraints=critical,CA:TRUE"],
    )?;
    let signed = [
        "-CA",
        &authority.display().to_string(),
        "-CAkey",
        &signer.display().to_string(),
        "-addext",
        "basicConstraints=CA:FALSE",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ];
    create_certificate("server", "/CN=127.0.0.1", &signed)?;
    Ok(TlsFiles {
        authority,
        certificate: path("server.pem"),
        key: path("server.key"),
    })
}
