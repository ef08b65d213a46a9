//! Configuration that the plugin gets at its start (memprof-host's `adapters::attachment` reads it).

use std::time::Duration;

use serde::{Serialize, Serializer};

/// Configuration of the plugin in the process, and its time limit.
#[derive(Clone, Debug, Serialize)]
pub struct Attachment {
    /// Time after which the plugin stops by itself.
    #[serde(rename = "lease_ms", serialize_with = "serialize_milliseconds")]
    pub lease: Duration,
    /// Whether forked children are attached to as well.
    pub children: bool,
    /// Keys of the plugin as `key=value`; a dot opens a table.
    pub words: Vec<String>,
    /// Config file with keys of the plugin.
    pub file: Option<ConfigFile>,
}

/// Config file that was read by this process, because the target may not see it.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigFile {
    /// Path, for error texts.
    pub path: String,
    /// TOML text of the file.
    pub text: String,
}

impl Attachment {
    /// Formats the settings of the attachment as TOML, which memprof-host parses in the target.
    pub(crate) fn to_toml(&self) -> String {
        toml::to_string(self).expect("numbers and texts have a form in TOML")
    }
}

/// Serializes a duration as a number of milliseconds; a duration too long for 64 bits becomes the largest number of
/// TOML.
fn serialize_milliseconds<S: Serializer>(
    lease: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    // TOML's integers are signed.
    serializer.serialize_u64(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX >> 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_survive_toml() {
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
