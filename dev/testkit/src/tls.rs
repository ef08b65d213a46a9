//! Certificates for a server on loopback, signed by an authority of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::net_client::run_client;

/// Files in PEM.
#[derive(Debug)]
pub struct TlsFiles {
    /// The certificate of the authority.
    pub authority: PathBuf,
    /// The server's, of 127.0.0.1.
    pub certificate: PathBuf,
    /// The server's key.
    pub key: PathBuf,
}

/// Makes them in a directory, which is made too.
///
/// # Errors
/// openssl is not installed.
pub fn certified(place: &Path) -> Result<TlsFiles> {
    fs::create_dir_all(place)?;
    let path = |name: &str| place.join(name);
    // Debian's configuration would make an authority of each certificate.
    fs::write(path("conf"), "[req]\ndistinguished_name = none\n[none]\n")?;
    let make = |name: &str, subject: &str, more: &[&str]| {
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]);
        openssl.args(["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", subject]);
        openssl.arg("-config").arg(path("conf"));
        openssl.arg("-keyout").arg(path(&format!("{name}.key")));
        openssl.arg("-out").arg(path(&format!("{name}.pem")));
        run_client(openssl.args(more)).context("run `cargo xtask test`, or apt-get install openssl")
    };
    let (authority, signer) = (path("authority.pem"), path("authority.key"));
    make(
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
    make("server", "/CN=127.0.0.1", &signed)?;
    Ok(TlsFiles {
        authority,
        certificate: path("server.pem"),
        key: path("server.key"),
    })
}
