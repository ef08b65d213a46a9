//! Directory servers.

use std::process::Command;

use anyhow::Result;

use crate::half_open::HalfOpenConnections;
use crate::net_client::run_client;
use crate::server::{ProfiledProcess, Server};
use crate::server_dir::User;

/// An anonymous bind, which succeeds (RFC 4511, 4.2).
const BIND: &[u8] = b"\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\x00\x80\x00";
/// The beginning of a request of 32 KiB.
const BEGINNING: &[u8] = b"\x30\x82\x80\x00\x02\x01\x02";

pub(crate) const SLAPD: Server = Server {
    name: "slapd",
    packages: &["slapd", "ldap-utils"],
    user: User::Nobody,
    profiled: ProfiledProcess::Main,
    names: "ber_get_next",
    forks: None,
    command: |place| {
        let config = format!(
            "include /etc/ldap/schema/core.schema\npidfile {}\nmodulepath /usr/lib/ldap\n\
             moduleload back_mdb\ndatabase mdb\nsuffix dc=test\ndirectory {}\n\
             maxsize 16777216\n",
            place.file("slapd.pid"),
            place.directory("db")?,
        );
        let mut command = Command::new("/usr/sbin/slapd");
        command.args(["-d", "0", "-h"]);
        command.arg(format!("ldap://127.0.0.1:{}", place.port));
        command.arg("-f").arg(place.write("slapd.conf", &config)?);
        Ok(command)
    },
    answer: |running| {
        let mut client = Command::new("ldapsearch");
        client.args(["-x", "-LLL", "-s", "base", "-b", "", "-H"]);
        client.arg(format!("ldap://127.0.0.1:{}", running.place().port));
        run_client(client.args(["namingContexts", "supportedLDAPVersion"]))
    },
    load: |running| -> Result<()> {
        let port = running.place().port;
        running.held = HalfOpenConnections::default();
        running.held = HalfOpenConnections::open(port, 400, &[BIND, BEGINNING].concat())?;
        // It is served after those that came before.
        running.query().map(drop)
    },
};
