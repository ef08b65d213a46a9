//! The replies as JSON Schema, for descriptions of an API: what a plugin of this version writes. One
//! of a later version may have fields and words besides.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{
    Activation, Background, DumpReport, Findings, Gdumping, Help, KeptDumps, Ledger, Nothing,
    OfAllocators, Purged, Recent, Refused, Reply, ReplyType, Stats, Status, Vocabulary, Word,
};

impl ReplyType {
    /// The schema of the JSON that it is, whose types are added to `types`; none for a profile's bytes.
    pub fn schema(self, types: &mut SchemaGenerator) -> Option<Schema> {
        let schema = match self {
            Self::Activation => types.subschema_for::<Reply<Activation>>(),
            Self::DumpReport => types.subschema_for::<Reply<DumpReport>>(),
            Self::Stats => types.subschema_for::<Reply<OfAllocators<Stats>>>(),
            Self::Status => types.subschema_for::<Reply<Status>>(),
            Self::Ledger => types.subschema_for::<Reply<Ledger>>(),
            Self::Purged => types.subschema_for::<Reply<Purged>>(),
            Self::Background => types.subschema_for::<Reply<OfAllocators<Background>>>(),
            Self::Gdumping => types.subschema_for::<Reply<Gdumping>>(),
            Self::Recent => types.subschema_for::<Reply<OfAllocators<Recent>>>(),
            Self::Findings => {
                let healthy = types.subschema_for::<Reply<Findings>>();
                let refused = types.subschema_for::<Reply<Refused<Findings>>>();
                json_schema!({ "anyOf": [healthy, refused] })
            }
            Self::KeptDumps => types.subschema_for::<Reply<KeptDumps>>(),
            Self::Help => types.subschema_for::<Reply<Help>>(),
            Self::Nothing => types.subschema_for::<Reply<Nothing>>(),
            Self::Profile => return None,
        };
        Some(schema)
    }
}

/// Any text, because a later version may have other words.
impl<T: Vocabulary> JsonSchema for Word<T> {
    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "enum": T::WORDS }, { "type": "string" }] })
    }
}
