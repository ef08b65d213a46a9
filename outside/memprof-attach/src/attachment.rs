//! What the plugin is told (memprof-host's `adapters::attached` reads it).

use std::time::Duration;

use serde::{Serialize, Serializer};

/// How the plugin is to work in the process, and for how long.
#[derive(Clone, Debug, Serialize)]
pub struct Attachment {
    /// When it leaves by itself.
    #[serde(rename = "lease_ms", serialize_with = "milliseconds")]
    pub lease: Duration,
    /// Whether the children that it forks are attached to as well.
    pub children: bool,
    /// The plugin's keys, as `key=value`; a dot opens a table.
    pub words: Vec<String>,
    /// A file with keys of the plugin's.
    pub file: Option<ConfigFile>,
}

/// A file that was read here: the process may not see it.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigFile {
    /// Its path, for errors.
    pub path: String,
    /// TOML, as the file holds it.
    pub text: String,
}

impl Attachment {
    pub(crate) fn to_toml(&self) -> String {
        toml::to_string(self).expect("numbers and texts have a form in TOML")
    }
}

fn milliseconds<S: Serializer>(lease: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX >> 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_out_as_they_went_in() {
        let text = "# mine\n[[watch]]\nat_exit = true\n";
        let attachment = Attachment {
            lease: Duration::from_secs(3600),
            children: false,
            words: vec!["dump_dir=/a \"b\"".to_owned()],
            file: Some(ConfigFile {
                path: "/p.toml".to_owned(),
                text: text.to_owned(),
            }),
        };
        let read: toml::Table = attachment.to_toml().parse().unwrap();
        assert_eq!(read["lease_ms"].as_integer(), Some(3_600_000));
        assert_eq!(read["words"][0].as_str(), Some("dump_dir=/a \"b\""));
        assert_eq!(read["file"]["text"].as_str(), Some(text));
    }
}
