//! The functions of interpreted programs in the stacks of a profile: named, and in place of the interpreter's.

use crate::address::Address;
use crate::allocator_frames::allocator_depths;
use crate::code_origin::{CodeOrigin, CodeOrigins, OriginRules, is_script_library};
use crate::managed::{MANAGED, OTHER, StackFrames, is_managed_word};
use crate::names::{Frame, Names};
use crate::profile::Profile;
use crate::stacks::AddressId;
use crate::symbolized_profile::SymbolizedProfile;

/// Restores managed words, which stand for functions of an interpreted program, in stacks from which an export removed
/// them. `comment` is `PLACE:ID,… of STACK…`: PLACE is the number of addresses before the word, ID is in the word, and
/// STACK is the number of a stack, from 1. Ignores malformed parts. Returns the number of frames in all new stacks, to
/// count their memory.
pub(crate) fn restore_managed_words(comment: &str, profile: &mut Profile) -> usize {
    let Some((managed, stacks)) = comment.split_once(" of ") else {
        return 0;
    };
    let words = managed.split(',').filter_map(|word| {
        let (place, id) = word.split_once(':')?;
        let id: u32 = id.parse().ok()?;
        // A managed word has its kind in bits 40 to 63, its id in bits 1 to 32, and bit 0 set.
        Some((place.parse().ok()?, MANAGED << 40 | u64::from(id) << 1 | 1))
    });
    let words: Vec<(usize, u64)> = words.collect();
    let mut frames = 0;
    for number in stacks.split(' ').filter_map(|number| number.parse().ok()) {
        let index: usize = number;
        let sample = index.checked_sub(1);
        let Some(sample) = sample.and_then(|index| profile.samples.get_mut(index)) else {
            continue;
        };
        let native = profile.stacks.frames(sample.stack).to_vec();
        let mut pending = words.iter().peekable();
        for place in 0..=native.len() {
            while let Some((_, word)) = pending.next_if(|(after, _)| *after <= place) {
                let id = profile.stacks.intern_address(Address(*word));
                profile.stacks.push_frame(id);
            }
            if let Some(id) = native.get(place) {
                profile.stacks.push_frame(*id);
            }
        }
        frames += profile.stacks.pending_depth();
        sample.stack = profile.stacks.finish_stack();
    }
    frames
}

/// Names the managed words of a profile, which stand for functions of an interpreted program, by the dump's comments. A
/// word without a comment gets a name that says so. Adds notes on the interpreters to the profile's warnings. If only
/// native code is `shown`, removes the managed words from the stacks.
pub(crate) fn name_managed_frames(profile: &mut Profile, names: &mut Names, shown: StackFrames) {
    let managed = std::mem::take(&mut profile.stacks.managed);
    let addresses = profile.stacks.addresses().iter().enumerate();
    let words = addresses
        .map(|(index, address)| (AddressId(index as u32), address.0))
        .filter(|(_, word)| is_managed_word(*word));
    for (id, word) in words.collect::<Vec<_>>() {
        let name = managed.names.get(&word);
        // The id is in bits 1 to 32 of a managed word.
        let function = match (word >> 1 & 0xffff_ffff, name) {
            (_, Some(name)) => name.function.as_str(),
            (OTHER, None) => "(more Python functions)",
            (_, None) => "(a Python function without a name)",
        };
        let file = name.map_or("", |name| name.file.as_str());
        let frame = Frame {
            function: names.strings.intern(function),
            linkage: None,
            file: (!file.is_empty()).then(|| names.strings.intern(file)),
            line: name.map_or(0, |name| name.line),
            named: true,
        };
        let language = name.map_or("python", |name| name.language.as_str());
        let language = names.strings.intern(language);
        names.set_managed_word(id, frame, language);
    }
    let notes: Vec<String> = managed.interpreter_notes().collect();
    profile.warnings.extend(notes);
    profile.warnings.extend(managed.objects_note());
    names.has_objects_line = managed.has_objects_line;
    if names.has_managed_words() && shown == StackFrames::Native {
        profile
            .stacks
            .select_frames(|frames| frames.retain(|id| !names.is_managed_word(*id)));
    }
}

/// Removes the native frames from stacks in which an interpreted program runs. Keeps native functions of the program's
/// own libraries: those with a symbol, outside of the directories of the language. Then counts the allocator's frames
/// at the leaf of each stack anew.
pub(crate) fn select_program_frames(named: &mut SymbolizedProfile, origin_rules: &OriginRules) {
    let origins = CodeOrigins::new(named, origin_rules);
    let SymbolizedProfile {
        profile,
        names,
        depths,
    } = named;
    let is_own = |id: AddressId| {
        let is_program = origins
            .origins(id)
            .any(|origin| origin == CodeOrigin::Program);
        let mapping = profile.mapping_of_frame(id);
        let path = mapping.map_or("", |mapping| profile.mappings[mapping].path.as_str());
        is_program && names.frames(id).iter().all(|frame| frame.named) && !is_script_library(path)
    };
    let addresses = (0..profile.stacks.addresses().len() as u32).map(AddressId);
    let is_kept: Vec<bool> = addresses
        .map(|id| names.is_managed_word(id) || is_own(id))
        .collect();
    profile.stacks.select_frames(|frames| {
        if frames.iter().any(|id| names.is_managed_word(*id)) {
            frames.retain(|id| is_kept[id.0 as usize]);
        }
    });
    *depths = allocator_depths(profile, names);
}
