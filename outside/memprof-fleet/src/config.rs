//! Configuration file `/etc/memprof/fleet.toml`: the store, and the processes to profile.

use std::collections::BTreeMap;
use std::env;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use memprof_http::ListenAddress;
use memprof_output::{USAGE, with_exit_code};
use serde::Deserialize;

use crate::args::{BusArgs, StoreArgs};
use crate::policy::ServiceRule;
use crate::units::{deserialize_duration, deserialize_size};

/// Path of the configuration file unless the command line names another.
const DEFAULT_PATH: &str = "/etc/memprof/fleet.toml";

/// Configuration of a command. Unknown keys are errors.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// URL of the store.
    pub(crate) store: String,
    /// Directory in which profiles wait for the store.
    pub(crate) spool: PathBuf,
    /// Most bytes in the spool; while it has more, no profile is taken.
    #[serde(deserialize_with = "deserialize_size")]
    pub(crate) spool_limit: u64,
    /// Time for which profiles are kept in the store.
    #[serde(deserialize_with = "deserialize_duration")]
    pub(crate) keep: Duration,
    /// Longest time for which a profile waits for others, with which it shares a file.
    #[serde(deserialize_with = "deserialize_duration")]
    pub(crate) batch: Duration,
    /// NATS server that connects agents.
    pub(crate) nats: Nats,
    /// HTTP server of an agent, for scrapers.
    pub(crate) http: Http,
    /// Labels of each profile of this machine.
    pub(crate) labels: BTreeMap<String, String>,
    /// Rules of services; the first that matches a service's name applies.
    pub(crate) service: Vec<ServiceRule>,
}

impl Default for Config {
    /// Returns the configuration without a file: store and spool are directories of this machine, profiles are kept for
    /// 14 days, and one rule selects the hosts of all services.
    fn default() -> Self {
        let state = state_dir();
        Self {
            store: format!("file://{}", state.join("fleet").display()),
            spool: state.join("fleet-spool"),
            spool_limit: 1 << 30,
            keep: Duration::from_secs(14 * 24 * 3600),
            batch: Duration::from_secs(600),
            nats: Nats::default(),
            http: Http::default(),
            labels: BTreeMap::new(),
            service: vec![ServiceRule::default()],
        }
    }
}

impl Config {
    /// Reads the configuration file. `--store`, else `MEMPROF_STORE`, overrides the store in the file, and
    /// `MEMPROF_NATS` the URL of the NATS server. Without `--config`, a missing file means the defaults. Fails if the
    /// file cannot be read, or is invalid (exit code 2).
    pub(crate) fn read(args: &StoreArgs) -> anyhow::Result<Self> {
        let path = args.config.as_deref().unwrap_or(Path::new(DEFAULT_PATH));
        let mut config = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound && args.config.is_none() => {
                Self::default()
            }
            text => {
                let text = text.with_context(|| format!("failed to read {}", path.display()))?;
                let invalid = |error| with_exit_code(USAGE, format!("{}: {error}", path.display()));
                toml::from_str(&text).map_err(|error| invalid(error.to_string()))?
            }
        };
        if let Some(store) = args
            .store
            .clone()
            .or_else(|| environment_value("MEMPROF_STORE"))
        {
            config.store = store;
        }
        if let Some(nats) = environment_value("MEMPROF_NATS") {
            config.nats.url = Some(nats);
        }
        Ok(config)
    }

    /// Overrides those settings of the NATS server that the command line gives.
    pub(crate) fn with_bus_args(mut self, bus: &BusArgs) -> Self {
        let BusArgs {
            nats,
            nkey_file,
            ca_file,
        } = bus.clone();
        self.nats = Nats {
            url: nats.or(self.nats.url),
            nkey_file: nkey_file.or(self.nats.nkey_file),
            ca_file: ca_file.or(self.nats.ca_file),
        };
        self
    }
}

/// Returns the value of an environment variable, without blanks around it. `None` if it is not set, not UTF-8, or
/// blank: unit files and templates leave unused variables blank.
fn environment_value(name: &str) -> Option<String> {
    let value = env::var(name).ok()?;
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// `[nats]`: the server over which agents receive requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Nats {
    /// URL of the server. `None`: agents receive no requests.
    pub(crate) url: Option<String>,
    /// File with the seed of a user of the server.
    pub(crate) nkey_file: Option<PathBuf>,
    /// File with the certificates that sign the server's. `None`: the system's.
    pub(crate) ca_file: Option<PathBuf>,
}

impl Nats {
    /// Returns the URL of the server. Fails if none is configured, or it has another scheme than `nats` or `tls` (exit
    /// code 2).
    pub(crate) fn url(&self) -> anyhow::Result<&str> {
        let missing = "no NATS server is configured: give --nats URL, or set `url` in [nats] of the configuration";
        let url = self
            .url
            .as_deref()
            .ok_or_else(|| with_exit_code(USAGE, missing))?;
        match url.split_once("://") {
            Some(("nats" | "tls", _)) => Ok(url),
            _ => Err(with_exit_code(
                USAGE,
                format!("{url:?} is not a NATS server: give nats://HOST:4222 or tls://HOST:4222"),
            )),
        }
    }
}

/// `[http]`: address on which an agent serves metrics and profiles.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Http {
    /// Address to listen on. `None`: nothing is served.
    pub(crate) listen: Option<ListenAddress>,
    /// File with the token that clients must send. `None`: only this user and root are served.
    pub(crate) token_file: Option<PathBuf>,
    /// Host names of the server that clients may use, besides localhost.
    pub(crate) allow_host: Vec<String>,
}

/// Returns the directory for memprof's persistent state: below `XDG_STATE_HOME` if that is set, else below the home
/// directory; in /var/lib for root or without a home directory.
fn state_dir() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    match (set("XDG_STATE_HOME"), set("HOME")) {
        (Some(state), _) => PathBuf::from(state).join("memprof"),
        (None, Some(home)) if !rustix::process::geteuid().is_root() => {
            PathBuf::from(home).join(".local/state/memprof")
        }
        _ => PathBuf::from("/var/lib/memprof"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_values_are_errors() {
        let check = |text: &str, expected: &str| {
            let error = toml::from_str::<Config>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("stor = \"x\"", "unknown field `stor`");
        check("keep = \"14 moons\"", "\"14 moons\" is not a duration");
        check("spool_limit = \"4\"", "\"4\" is not a size");
        check("[[service]]\nshare = \"120%\"", "not a share");
        check("[[service]]\nperiod = \"0s\"", "from 1s to 30d");
        check("[[service]]\nnames = \"x\"", "unknown field `names`");
    }

    #[test]
    fn every_key_is_documented() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../CONFIGURATION.md");
        let reference = std::fs::read_to_string(file).unwrap();
        let section = reference.split("## The fleet's file").nth(1).unwrap();
        let example = section.split("```").nth(1).unwrap();
        let written: toml::Table = toml::from_str(example.trim_start_matches("toml")).unwrap();
        toml::from_str::<Config>(example.trim_start_matches("toml")).unwrap();
        // The error for an unknown key lists all known ones.
        let known = |text: &str| {
            let error = toml::from_str::<Config>(text).unwrap_err().to_string();
            let listed = error.split("expected ").nth(1).unwrap();
            let keys = listed.split('`').skip(1).step_by(2).map(str::to_owned);
            let mut keys: Vec<_> = keys.collect();
            keys.sort();
            keys
        };
        let keys = |table: &toml::Table| {
            let mut keys: Vec<_> = table.keys().cloned().collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(&written), known("nonsense = 1"));
        let nats = written["nats"].as_table().unwrap();
        assert_eq!(keys(nats), known("[nats]\nnonsense = 1"));
        let http = written["http"].as_table().unwrap();
        assert_eq!(keys(http), known("[http]\nnonsense = 1"));
        let service = written["service"][0].as_table().unwrap();
        assert_eq!(keys(service), known("[[service]]\nnonsense = 1"));
    }
}
