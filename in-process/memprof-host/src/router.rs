//! Which plugin gets a message.

use memprof_plugin_abi::Failure;

use crate::instance::Instance;
use crate::reply::Reply;

/// No plugin of that name was named in the host's config.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such plugin: {name:?}; this host has {known}")]
pub struct UnknownPlugin {
    /// What was asked for.
    pub name: String,
    /// The plugins there are.
    pub known: String,
}

/// A host's plugins by their exact names, also those that failed.
#[derive(Debug, Default)]
pub struct Router {
    places: Vec<RouterEntry>,
}

#[derive(Debug)]
struct RouterEntry {
    name: String,
    plugin: Result<Instance, Failure>,
}

impl Router {
    /// Takes in a plugin that was made, or the reason why it was not, under `name`.
    pub fn add(&mut self, name: String, plugin: Result<Instance, Failure>) {
        self.places.push(RouterEntry { name, plugin });
    }

    /// True when a plugin of that name was made.
    pub fn has(&self, name: &str) -> bool {
        self.places
            .iter()
            .any(|place| place.name == name && place.plugin.is_ok())
    }

    /// The names of all places, and the plugin or its failure.
    pub fn plugins(&self) -> impl Iterator<Item = (&str, &Result<Instance, Failure>)> {
        self.places
            .iter()
            .map(|place| (place.name.as_str(), &place.plugin))
    }

    /// Tells all plugins that the calling thread is one of ours, which works for them only.
    #[cfg(feature = "control")]
    pub(crate) fn enter_thread(&self) {
        let made = self
            .places
            .iter()
            .filter_map(|place| place.plugin.as_ref().ok());
        made.for_each(Instance::enter_thread);
    }

    /// Sends a message to a plugin. One that could not be loaded answers with the reason.
    ///
    /// # Errors
    /// No plugin has that name.
    pub fn message(&self, plugin: &str, name: &str, args: &str) -> Result<Reply, UnknownPlugin> {
        let mut places = self.places.iter().filter(|place| place.name == plugin);
        // A plugin that was made, whatever else failed under its name.
        let made = places.clone().find(|place| place.plugin.is_ok());
        let place = made.or_else(|| places.next());
        let place = place.ok_or_else(|| self.unknown(plugin))?;
        Ok(match &place.plugin {
            Ok(instance) => instance.message(name, args),
            Err(failure) => Reply::failed(failure),
        })
    }

    fn unknown(&self, name: &str) -> UnknownPlugin {
        let names: Vec<_> = self
            .places
            .iter()
            .map(|place| place.name.as_str())
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
