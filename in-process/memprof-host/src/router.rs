//! Routes messages to plugins.

use memprof_plugin_abi::Failure;

use crate::instance::Instance;
use crate::protocol::PluginInfo;
use crate::reply::Reply;

/// The error of a message to a plugin that the host's config does not name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such plugin: {name:?}; this host has {known}")]
pub struct UnknownPlugin {
    /// Name that was requested.
    pub name: String,
    /// Names of the host's plugins; of a refused file also its path and the reason.
    pub known: String,
}

/// A host's plugins by their exact names, including those that failed to load.
#[derive(Debug, Default)]
pub struct Router {
    entries: Vec<RouterEntry>,
}

/// A plugin, or the reason for which it could not be created.
#[derive(Debug)]
struct RouterEntry {
    /// Description, as far as it was known when the plugin was refused.
    info: PluginInfo,
    plugin: Result<Instance, Failure>,
}

impl Router {
    /// Adds a created plugin, or the reason for which it could not be created, under the id in `info`.
    pub fn add(&mut self, mut info: PluginInfo, plugin: Result<Instance, Failure>) {
        if let Err(failure) = &plugin {
            info.error = Some(failure.to_string());
            info.remedy = Some(failure.remedy.clone()).filter(|remedy| !remedy.is_empty());
        }
        self.entries.push(RouterEntry { info, plugin });
    }

    /// Returns whether a plugin with this name was created.
    pub fn has_plugin(&self, name: &str) -> bool {
        self.created_entry(name).is_some()
    }

    /// Returns the path of the created plugin with this name. `None` if there is none.
    #[cfg(all(feature = "loader", feature = "control"))]
    pub(crate) fn path_of_plugin(&self, name: &str) -> Option<&str> {
        self.created_entry(name).map(|entry| &*entry.info.path)
    }

    /// Returns the entry of the created plugin with this name. `None` if there is none.
    fn created_entry(&self, name: &str) -> Option<&RouterEntry> {
        let mut entries = self.entries.iter();
        entries.find(|entry| entry.info.id == name && entry.plugin.is_ok())
    }

    /// Iterates over all descriptions, each with the plugin or its failure.
    pub fn plugins(&self) -> impl Iterator<Item = (&PluginInfo, &Result<Instance, Failure>)> {
        self.entries
            .iter()
            .map(|entry| (&entry.info, &entry.plugin))
    }

    /// Reports to all plugins that the calling thread is memprof's, not the program's, so that a profiler does not
    /// sample it.
    #[cfg(feature = "control")]
    pub(crate) fn report_memprof_thread(&self) {
        let created = self
            .entries
            .iter()
            .filter_map(|entry| entry.plugin.as_ref().ok());
        created.for_each(Instance::report_memprof_thread);
    }

    /// Sends a message to the plugin called `plugin`, and waits for its reply. Of several plugins with that name, one
    /// that could be created is preferred. For a plugin that could not be loaded, the reply is the reason. Such a
    /// plugin is also found by its name without the prefix `lib`.
    ///
    /// # Errors
    /// No plugin has that name.
    pub fn message(&self, plugin: &str, name: &str, args: &str) -> Result<Reply, UnknownPlugin> {
        let mut entries = self.entries.iter().filter(|entry| entry.info.id == plugin);
        // Prefer a created plugin to a failed one with the same name.
        let created = entries.clone().find(|entry| entry.plugin.is_ok());
        let entry = created.or_else(|| entries.next());
        // A refused file is known only by its file name, which begins with `lib` if cargo built it.
        let entry = entry.or_else(|| {
            let mut refused = self.entries.iter().filter(|entry| entry.plugin.is_err());
            refused.find(|entry| entry.info.id.strip_prefix("lib") == Some(plugin))
        });
        let entry = entry.ok_or_else(|| self.unknown_plugin_error(plugin))?;
        Ok(match &entry.plugin {
            Ok(instance) => instance.message(name, args),
            Err(failure) => Reply::failed(failure),
        })
    }

    /// Creates the error for a name that no plugin has. It lists the host's plugins, the refused ones with the reason.
    fn unknown_plugin_error(&self, name: &str) -> UnknownPlugin {
        let describe = |RouterEntry { info, .. }: &RouterEntry| match &info.error {
            Some(error) => format!("{}, refused: {error}", info.id),
            None => info.id.clone(),
        };
        let names: Vec<_> = self.entries.iter().map(describe).collect();
        let known = if names.is_empty() {
            "no plugins".to_owned()
        } else {
            // A reason may have commas.
            names.join(if self.entries.iter().any(|entry| entry.plugin.is_err()) {
                "; "
            } else {
                ", "
            })
        };
        UnknownPlugin {
            name: name.to_owned(),
            known,
        }
    }
}

#[cfg(test)]
mod tests {
    use memprof_plugin_abi::ErrorKind;

    use super::*;

    #[test]
    fn refused_plugin_answers_with_the_reason_by_id_and_file_name() {
        let mut router = Router::default();
        let failure = Failure::new(ErrorKind::Io, "it is gone").remedy("copy it");
        let info = |id: &str| PluginInfo {
            id: id.to_owned(),
            ..PluginInfo::default()
        };
        router.add(info("libwords"), Err(failure.clone()));
        router.add(info("lines"), Err(failure));
        for name in ["libwords", "words", "lines"] {
            let reply = router.message(name, "x", "").unwrap();
            assert_eq!(reply.into_text(), "it is gone; copy it", "{name}");
        }
        let unknown = router.message("ords", "x", "").unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "no such plugin: \"ords\"; this host has libwords, refused: it is gone; copy it; \
             lines, refused: it is gone; copy it"
        );
        let (listed, _) = router.plugins().next().unwrap();
        assert_eq!(listed.remedy.as_deref(), Some("copy it"));
    }
}
