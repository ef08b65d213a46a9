//! JSON Schemas of the replies, for API descriptions. They describe the replies of this version. Later versions may
//! have more fields and names.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{
    ActivationResult, BackgroundThreads, DoctorReport, DumpList, DumpReport, EmptyReply,
    ErrorReply, GdumpResult, HelpReply, Ledger, NamedEnum, OpenEnum, PerAllocator, ProfilerStatus,
    PurgeResult, RecentAllocations, ReplyEnvelope, ReplyType, Stats,
};

impl ReplyType {
    /// Returns the schema of the reply, and adds the types that it uses to `types`. `None` if the reply is the bytes of
    /// a profile.
    pub fn schema(self, types: &mut SchemaGenerator) -> Option<Schema> {
        let schema = match self {
            Self::Activation => types.subschema_for::<ReplyEnvelope<ActivationResult>>(),
            Self::DumpReport => types.subschema_for::<ReplyEnvelope<DumpReport>>(),
            Self::Stats => types.subschema_for::<ReplyEnvelope<PerAllocator<Stats>>>(),
            Self::Status => types.subschema_for::<ReplyEnvelope<ProfilerStatus>>(),
            Self::Ledger => types.subschema_for::<ReplyEnvelope<Ledger>>(),
            Self::Purged => types.subschema_for::<ReplyEnvelope<PurgeResult>>(),
            Self::Background => {
                types.subschema_for::<ReplyEnvelope<PerAllocator<BackgroundThreads>>>()
            }
            Self::Gdumping => types.subschema_for::<ReplyEnvelope<GdumpResult>>(),
            Self::Recent => types.subschema_for::<ReplyEnvelope<PerAllocator<RecentAllocations>>>(),
            Self::Findings => {
                // A finding that is an error makes the reply an error, which contains the findings too.
                let healthy = types.subschema_for::<ReplyEnvelope<DoctorReport>>();
                let error = types.subschema_for::<ReplyEnvelope<ErrorReply<DoctorReport>>>();
                json_schema!({ "anyOf": [healthy, error] })
            }
            Self::KeptDumps => types.subschema_for::<ReplyEnvelope<DumpList>>(),
            Self::Help => types.subschema_for::<ReplyEnvelope<HelpReply>>(),
            Self::Nothing => types.subschema_for::<ReplyEnvelope<EmptyReply>>(),
            Self::Profile => return None,
        };
        Some(schema)
    }
}

/// The schema accepts any text, because later versions may have other names.
impl<T: NamedEnum> JsonSchema for OpenEnum<T> {
    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "enum": T::NAMES }, { "type": "string" }] })
    }
}
