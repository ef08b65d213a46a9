//! Routes messages to plugins.

use memprof_plugin_abi::Failure;

use crate::instance::Instance;
use crate::reply::Reply;

/// The error of a message to a plugin that the host's config does not name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such plugin: {name:?}; this host has {known}")]
pub struct UnknownPlugin {
    /// Name that was requested.
    pub name: String,
    /// Names of the host's plugins.
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
    name: String,
    plugin: Result<Instance, Failure>,
}

impl Router {
    /// Adds a created plugin, or the reason for which it could not be created, under `name`.
    pub fn add(&mut self, name: String, plugin: Result<Instance, Failure>) {
        self.entries.push(RouterEntry { name, plugin });
    }

    /// Whether a plugin with this name was created.
    pub fn has_plugin(&self, name: &str) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.name == name && entry.plugin.is_ok())
    }

    /// Iterates over all names, each with the plugin or its failure.
    pub fn plugins(&self) -> impl Iterator<Item = (&str, &Result<Instance, Failure>)> {
        self.entries
            .iter()
            .map(|entry| (entry.name.as_str(), &entry.plugin))
    }

    /// Reports to all plugins that the calling thread is memprof's and works only for them.
    #[cfg(feature = "control")]
    pub(crate) fn enter_thread(&self) {
        let created = self
            .entries
            .iter()
            .filter_map(|entry| entry.plugin.as_ref().ok());
        created.for_each(Instance::enter_thread);
    }

    /// Sends a message to a plugin. For a plugin that could not be loaded, the reply is the reason.
    ///
    /// # Errors
    /// No plugin has that name.
    pub fn message(&self, plugin: &str, name: &str, args: &str) -> Result<Reply, UnknownPlugin> {
        let mut entries = self.entries.iter().filter(|entry| entry.name == plugin);
        // Prefer a created plugin to a failed one with the same name.
        let created = entries.clone().find(|entry| entry.plugin.is_ok());
        let entry = created.or_else(|| entries.next());
        let entry = entry.ok_or_else(|| self.unknown_plugin_error(plugin))?;
        Ok(match &entry.plugin {
            Ok(instance) => instance.message(name, args),
            Err(failure) => Reply::failed(failure),
        })
    }

    /// Creates the error for a name that no plugin has.
    fn unknown_plugin_error(&self, name: &str) -> UnknownPlugin {
        let names: Vec<_> = self
            .entries
            .iter()
            .map(|entry| entry.name.as_str())
            .collect();
        let known = if names.is_empty() {
            "no plugins".to_owned()
        } else {
            names.join(", ")
        };
        UnknownPlugin {
            name: name.to_owned(),
            known,
        }
    }
}
