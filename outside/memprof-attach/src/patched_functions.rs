//! Patches the entry points of an allocator that is linked statically into the program: no GOT slot holds its
//! functions, so the first instructions of each are replaced by a jump while all threads are stopped.
//!
//! The jump leads to a trampoline, which continues at the function's relocated prologue unless the plugin has set a
//! hook. The table of trampolines is written before the first jump, and stays for the life of the process, because a
//! thread may have been interrupted in it. So the process keeps working if this program is killed between two jumps;
//! the next attachment writes the missing jumps, or a detachment restores the written ones.

mod call_graph;
mod pause;
mod plan;
mod program;
mod prologue;
mod table;
mod write_patches;

use std::time::Duration;

use libc::{PROT_EXEC, PROT_READ, PROT_WRITE};
use memprof_ptrace::maps::mappings;
use memprof_ptrace::memory::Memory;
use memprof_sampler::{EntryRow, TABLE_SIZE};

use crate::error::{AttachError, watch_program};
use crate::run_calls::{map_call, run_calls, wait_until_mapped, write_error};
use crate::target::{Target, read_maps};
use plan::PatchPlan;
use program::ProgramCode;
use table::{InstalledEntry, TableImage};
use write_patches::{CodePatch, RelocatedRange, write_patches};

/// Result of patching the entry points of a statically linked allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchReport {
    /// Number of patched functions.
    pub functions: usize,
    /// Functions that only allocate and were not patched: sentences with each name and reason.
    pub skipped: Vec<String>,
    /// Time for which all threads were stopped.
    pub stop: Duration,
}

/// Patches the program's own `malloc` and related functions to call memprof's sampler, which does nothing until it
/// is activated. `None` if the program does not export its own `malloc` to its libraries.
///
/// # Errors
/// `LongPause`: the threads would be stopped for longer than `max_pause`. `NotPatched`: a function that cannot be
/// patched, with the reason. The process continues as before.
pub fn patch_entry_points(
    pid: u32,
    max_pause: Duration,
) -> Result<Option<PatchReport>, AttachError> {
    watch_program(pid, || patch(pid, max_pause))
}

/// Like [`patch_entry_points`], without watching for the end of the process. `None` if the program exports no
/// `malloc` of its own.
fn patch(pid: u32, max_pause: Duration) -> Result<Option<PatchReport>, AttachError> {
    let Some(code) = ProgramCode::read(pid)? else {
        return Ok(None);
    };
    let plan = PatchPlan::new(&code)?;
    let mut target = Target::inspect(pid)?;
    require_unchanged_code(&target, &plan)?;
    if table::find_table(&target.memory, &target.maps).is_none() {
        pause::require_short_pause(&target, max_pause)?;
    }
    let (base, image) = require_table(&mut target, &plan)?;
    let failed = |cause| write_error(&target, cause);
    let entries = table::read_entries(&target.memory, base).map_err(failed)?;
    let mut patches = Vec::new();
    let mut relocated = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if is_patched(&target.memory, entry).map_err(failed)? {
            continue;
        }
        // The trampoline's target when its jump was restored may be a hook; reset it to the relocated prologue.
        let reset = target
            .memory
            .write(entry.target, &entry.relocated.to_le_bytes());
        reset.map_err(failed)?;
        patches.push(CodePatch {
            address: entry.function,
            original: entry.original,
            patched: entry.jump,
        });
        relocated.push(RelocatedRange {
            range: plan.functions[index].prologue.range.clone(),
            addresses: image.addresses[index].clone(),
        });
    }
    let stop = match patches.is_empty() {
        true => Duration::ZERO,
        false => {
            pause::require_short_pause(&target, max_pause)?;
            write_patches(&mut target, &patches, &relocated)?
        }
    };
    Ok(Some(PatchReport {
        functions: entries.len(),
        skipped: plan.skipped,
        stop,
    }))
}

/// Fails unless the program's symbols give the addresses of its functions. Succeeds for a program that does not
/// export its own `malloc` to its libraries.
///
/// # Errors
/// `NotPatched`: the program was stripped, or is too large.
pub fn require_symbols(pid: u32) -> Result<(), AttachError> {
    watch_program(pid, || ProgramCode::read(pid).map(drop))
}

/// Restores the first instructions of the patched functions. `None` if none is patched.
///
/// # Errors
/// `Refused`, `Io`: the process cannot be traced; `NotPatched`: its threads cannot be stopped in time, or its code
/// has changed. The process continues as before.
pub fn restore_entry_points(pid: u32) -> Result<Option<PatchReport>, AttachError> {
    watch_program(pid, || restore(pid))
}

/// Like [`restore_entry_points`], without watching for the end of the process. `None` if no function is patched.
fn restore(pid: u32) -> Result<Option<PatchReport>, AttachError> {
    // If this user may not trace the process, it has not patched it either.
    let (Ok(memory), Ok(maps)) = (Memory::open(pid), read_maps(pid)) else {
        return Ok(None);
    };
    let Some(base) = table::find_table(&memory, &maps) else {
        return Ok(None);
    };
    drop(memory);
    let mut target = Target::inspect(pid)?;
    let failed = |cause| write_error(&target, cause);
    let mut patches = Vec::new();
    for entry in table::read_entries(&target.memory, base).map_err(failed)? {
        if is_patched(&target.memory, &entry).map_err(failed)? {
            patches.push(CodePatch {
                address: entry.function,
                original: entry.jump,
                patched: entry.original,
            });
        }
    }
    if patches.is_empty() {
        return Ok(None);
    }
    Ok(Some(PatchReport {
        functions: patches.len(),
        skipped: Vec::new(),
        stop: write_patches(&mut target, &patches, &[])?,
    }))
}

/// Whether memprof's jump is at the start of the function now.
fn is_patched(memory: &Memory, entry: &InstalledEntry) -> std::io::Result<bool> {
    let found: [u8; EntryRow::JUMP_SIZE] = memory.read_array(entry.function)?;
    Ok(found == entry.jump)
}

/// Fails if a function differs from the program's file after the bytes of a jump, which are checked later.
fn require_unchanged_code(target: &Target, plan: &PatchPlan) -> Result<(), AttachError> {
    for function in &plan.functions {
        let mut found = vec![0; function.code.len()];
        let start = function.prologue.range.start;
        let read = target.memory.read(start, &mut found);
        read.map_err(|cause| write_error(target, cause))?;
        if found[EntryRow::JUMP_SIZE..] != function.code[EntryRow::JUMP_SIZE..] {
            let message = format!(
                "{} is not what the program's file says: something has changed it",
                function.name
            );
            return Err(AttachError::NotPatched(message));
        }
    }
    Ok(())
}

/// Returns the address and content of the table of this plan in the process, written by an earlier attachment or
/// now. Fails if the existing table is of another version, or a function was changed.
fn require_table(target: &mut Target, plan: &PatchPlan) -> Result<(u64, TableImage), AttachError> {
    let not_relocatable = |(name, reason)| AttachError::NotPatched(format!("{name} {reason}"));
    if let Some(base) = table::find_table(&target.memory, &target.maps) {
        let image = TableImage::new(plan, base).map_err(not_relocatable)?;
        let is_same = image.matches(&target.memory, base);
        if is_same.map_err(|cause| write_error(target, cause))? {
            return Ok((base, image));
        }
        let message = "another version of memprof has changed its functions; detach with that one";
        return Err(AttachError::NotPatched(message.to_owned()));
    }
    for function in &plan.functions {
        let found: [u8; EntryRow::JUMP_SIZE] = target
            .memory
            .read_array(function.prologue.range.start)
            .map_err(|cause| write_error(target, cause))?;
        if found != function.code[..EntryRow::JUMP_SIZE] {
            let message = format!(
                "{} is not what the program's file says: something has changed it",
                function.name
            );
            return Err(AttachError::NotPatched(message));
        }
    }
    let first = plan
        .functions
        .first()
        .map_or(0, |first| first.prologue.range.start);
    let base = table::find_space(&target.maps, first);
    let base = base.ok_or_else(|| {
        let message = "there is no room below the program for memprof's copies of its instructions";
        AttachError::NotPatched(message.to_owned())
    })?;
    let image = TableImage::new(plan, base).map_err(not_relocatable)?;
    let code = base + TABLE_SIZE as u64;
    let maps = [
        map_call(base, TABLE_SIZE as u64, PROT_READ | PROT_WRITE),
        map_call(
            code,
            table::TABLE_AND_CODE_SIZE - TABLE_SIZE as u64,
            PROT_READ | PROT_EXEC,
        ),
    ];
    let call = run_calls(target, &maps, None, u64::MAX)?;
    wait_until_mapped(
        target,
        &[base..code, code..base + table::TABLE_AND_CODE_SIZE],
        &call,
    )?;
    let written = image.write(&target.memory, base);
    written.map_err(|cause| write_error(target, cause))?;
    target.refresh()?;
    debug_assert!(mappings(&target.maps).any(|mapping| mapping.range.start == base));
    Ok((base, image))
}
