//! LDAP servers.

use std::process::Command;

use anyhow::Result;

use crate::half_open::HalfOpenConnections;
use crate::net_client::run_client;
use crate::server::{ProfiledProcess, Server};
use crate::server_dir::User;

/// An anonymous bind, which succeeds (RFC 4511, 4.2).
const BIND: &[u8] = b"\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\x00\x80\x00";
/// First bytes of a request of 32 KiB.
const BEGINNING: &[u8] = b"\x30\x82\x80\x00\x02\x01\x02";

pub(crate) const SLAPD: Server = Server {
    name: "slapd",
    packages: &["slapd", "ldap-utils"],
    user: User::Unprivileged,
    profiled: ProfiledProcess::Main,
    load_symbol: "ber_get_next",
    fork: None,
    command: |dir| {
        let config = format!(
            "include /etc/ldap/schema/core.schema\npidfile {}\nmodulepath /usr/lib/ldap\n\
             moduleload back_mdb\ndatabase mdb\nsuffix dc=test\ndirectory {}\n\
             maxsize 16777216\n",
            dir.file_path("slapd.pid"),
            dir.create_subdir("db")?,
        );
        let mut command = Command::new("/usr/sbin/slapd");
        command.args(["-d", "0", "-h"]);
        command.arg(format!("ldap://127.0.0.1:{}", dir.port));
        command
            .arg("-f")
            .arg(dir.write_file("slapd.conf", &config)?);
        Ok(command)
    },
    query: |running| {
        let mut client = Command::new("ldapsearch");
        client.args(["-x", "-LLL", "-s", "base", "-b", "", "-H"]);
        client.arg(format!("ldap://127.0.0.1:{}", running.dir().port));
        run_client(client.args(["namingContexts", "supportedLDAPVersion"]))
    },
    load: |running| -> Result<()> {
        let port = running.dir().port;
        running.half_open = HalfOpenConnections::default();
        running.half_open = HalfOpenConnections::open(port, 400, &[BIND, BEGINNING].concat())?;
        // A reply shows that the server has read the connections before it.
        running.query().map(drop)
    },
};
