//! The script that Node evaluates to load the plugin.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::plugin::ENTRY_NAME;

/// JavaScript function that loads the plugin. Returns null, or an error text. `require` belongs to the inspector,
/// and exists only during the evaluation.
///
/// The inspector is closed in a later turn of the event loop, when no client is connected: `close` would block the
/// program until the clients disconnect, and Node (20.20.2) may crash if a client disconnects before its reply.
const FUNCTION: &str = r#"({ path, module, deadline, closes }) => {
  const [fs, inspector, timers] = ["fs", "inspector", "timers"].map((name) => require(name));
  const hasClient = (url) => {
    const port = Number(/:(\d+)\//.exec(url)[1]).toString(16).toUpperCase().padStart(4, "0");
    const established = new RegExp(`: \\w+:${port} \\w+:\\w+ 01 `);
    return ["tcp", "tcp6"].some((table) => {
      const file = `/proc/self/net/${table}`;
      return fs.existsSync(file) && established.test(fs.readFileSync(file, "latin1"));
    });
  };
  const close = () => {
    try {
      const url = inspector.url();
      if (url && hasClient(url)) timers.setTimeout(close, 1000).unref();
      else if (url) inspector.close();
    } catch {
      // It stays open, which memprof tells.
    }
  };
  if (closes) timers.setTimeout(close, 100).unref();
  if (Date.now() > deadline) return "memprof did not wait any longer";
  try {
    process.dlopen(module, path);
    return null;
  } catch (error) {
    return String(error?.message ?? error);
  }
}"#;

/// The script with its arguments.
#[derive(Debug)]
pub(super) struct LoadScript<'a> {
    /// Path of the plugin's file.
    pub(super) path: &'a str,
    /// Configuration of the plugin.
    pub(super) toml: &'a str,
    /// Time for which memprof waits. If the script is evaluated later, it must not load the plugin, because memprof
    /// has reported a failure.
    pub(super) timeout: Duration,
    /// Whether the script closes the inspector.
    pub(super) closes: bool,
}

impl fmt::Display for LoadScript<'_> {
    /// Formats the script as one JavaScript expression: a call of [`FUNCTION`] with the settings as JSON. Among these
    /// is the deadline, `timeout` from now.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let deadline = now.unwrap_or_default() + self.timeout;
        // JSON is valid JavaScript.
        let argument = json!({
            "path": self.path,
            // memprof-host's `adapters::node` reads it.
            "module": { "exports": { ENTRY_NAME: self.toml } },
            "deadline": deadline.as_millis() as u64,
            "closes": self.closes,
        });
        write!(f, "({FUNCTION})({argument})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_survive_json() {
        let hostile = "/a\"b'c`d\\${e}\n\u{2028}</script>.so";
        let expression = LoadScript {
            path: hostile,
            toml: "words = [\"dump_dir='/x'\"]\n",
            timeout: Duration::from_secs(10),
            closes: true,
        };
        let text = expression.to_string();
        let argument = text.strip_prefix(&format!("({FUNCTION})("));
        let argument = argument.and_then(|rest| rest.strip_suffix(')')).unwrap();
        let read: serde_json::Value = serde_json::from_str(argument).unwrap();
        assert_eq!(read["path"], hostile);
        assert_eq!(
            read["module"]["exports"]["memprof_attached"],
            expression.toml
        );
        assert_eq!(read["closes"], true);
    }
}
