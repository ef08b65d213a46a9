//! Calls of an allocator that is linked into the program: no slot leads to it, so its functions get a jump in the place
//! of their first instructions, while all threads stand still.
//!
//! A jump leads to a stub, and that to the function's own first instructions at another place, unless the plugin has set
//! its hook between the two. The table of stubs is made before the first jump is written, and stays for the life of the
//! process: a thread may have been interrupted in it. So the process needs nobody when this program is killed between two
//! jumps; the next attachment writes those that are missing, or a detachment takes those away that are there.

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

use crate::error::Error;
use crate::run_calls::{map, run_calls, wait_until_mapped, write_error};
use crate::target::{Target, read_maps};
use plan::PatchPlan;
use program::ProgramCode;
use table::{InstalledEntry, TableImage};
use write_patches::{CodePatch, RelocatedRange, write};

/// Functions of the program that lead to memprof's sampler where it has hooks for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchReport {
    /// The number of functions.
    pub functions: usize,
    /// Functions that only allocate and do not lead there: sentences that name each with the reason.
    pub left_out: Vec<String>,
    /// How long all threads stood still.
    pub stop: Duration,
}

/// Makes the program's own `malloc` and its kin lead to memprof's sampler, which does nothing until it is activated. None
/// where the program has no `malloc` of its own that serves its libraries too.
///
/// # Errors
/// `LongPause`: its threads would stand still for longer than `most`. `NotLed`: which function cannot be changed, and why.
/// The process goes on as before.
pub fn patch_entry_points(pid: u32, most: Duration) -> Result<Option<PatchReport>, Error> {
    let Some(code) = ProgramCode::read(pid)? else {
        return Ok(None);
    };
    let plan = PatchPlan::of(&code)?;
    let mut target = Target::inspect(pid)?;
    require_unchanged_code(&target, &plan)?;
    if table::find(&target.memory, &target.maps).is_none() {
        pause::require_short(&target, most)?;
    }
    let (base, made) = make_table(&mut target, &plan)?;
    let gone = |cause| write_error(&target, cause);
    let standing = table::read(&target.memory, base).map_err(gone)?;
    let mut changes = Vec::new();
    let mut away = Vec::new();
    for (index, each) in standing.iter().enumerate() {
        if is_patched(&target.memory, each).map_err(gone)? {
            continue;
        }
        // Where its stub led when its jump was taken away.
        let past = target.memory.write(each.target, &each.moved.to_le_bytes());
        past.map_err(gone)?;
        changes.push(CodePatch {
            at: each.function,
            was: each.was,
            becomes: each.jump,
        });
        away.push(RelocatedRange {
            range: plan.functions[index].moved.range.clone(),
            places: made.places[index].clone(),
        });
    }
    let stop = match changes.is_empty() {
        true => Duration::ZERO,
        false => {
            pause::require_short(&target, most)?;
            write(&mut target, &changes, &away)?
        }
    };
    Ok(Some(PatchReport {
        functions: standing.len(),
        left_out: plan.left_out,
        stop,
    }))
}

/// Whether the program's symbols tell where its functions lie, if one of them is a `malloc` that serves its libraries too.
///
/// # Errors
/// `NotLed`: they do not.
pub fn require_symbols(pid: u32) -> Result<(), Error> {
    ProgramCode::read(pid).map(drop)
}

/// Gives a program its first instructions back, byte for byte. None where it has them.
///
/// # Errors
/// The threads cannot be stopped; the process goes on as before.
pub fn restore_entry_points(pid: u32) -> Result<Option<PatchReport>, Error> {
    // Without the right to trace it, nobody has led it anywhere, as far as this user is concerned.
    let (Ok(memory), Ok(maps)) = (Memory::open(pid), read_maps(pid)) else {
        return Ok(None);
    };
    let Some(base) = table::find(&memory, &maps) else {
        return Ok(None);
    };
    drop(memory);
    let mut target = Target::inspect(pid)?;
    let gone = |cause| write_error(&target, cause);
    let mut changes = Vec::new();
    for each in table::read(&target.memory, base).map_err(gone)? {
        if is_patched(&target.memory, &each).map_err(gone)? {
            changes.push(CodePatch {
                at: each.function,
                was: each.jump,
                becomes: each.was,
            });
        }
    }
    if changes.is_empty() {
        return Ok(None);
    }
    Ok(Some(PatchReport {
        functions: changes.len(),
        left_out: Vec::new(),
        stop: write(&mut target, &changes, &[])?,
    }))
}

fn is_patched(memory: &Memory, standing: &InstalledEntry) -> std::io::Result<bool> {
    let found: [u8; EntryRow::JUMP_SIZE] = memory.bytes(standing.function)?;
    Ok(found == standing.jump)
}

/// Fails where a function is not what the program's file says, but for a jump at its start, which is looked at later.
fn require_unchanged_code(target: &Target, plan: &PatchPlan) -> Result<(), Error> {
    for function in &plan.functions {
        let mut found = vec![0; function.code.len()];
        let start = function.moved.range.start;
        let read = target.memory.read(start, &mut found);
        read.map_err(|cause| write_error(target, cause))?;
        if found[EntryRow::JUMP_SIZE..] != function.code[EntryRow::JUMP_SIZE..] {
            let why = format!(
                "{} is not what the program's file says: something has changed it",
                function.name
            );
            return Err(Error::NotPatched(why));
        }
    }
    Ok(())
}

/// The table of this plan in the process: that of an attachment before, or a new one.
fn make_table(target: &mut Target, plan: &PatchPlan) -> Result<(u64, TableImage), Error> {
    let far = |(name, why)| Error::NotPatched(format!("{name} {why}"));
    if let Some(base) = table::find(&target.memory, &target.maps) {
        let made = TableImage::at(plan, base).map_err(far)?;
        let is_same = made.matches(&target.memory, base);
        if is_same.map_err(|cause| write_error(target, cause))? {
            return Ok((base, made));
        }
        let message = "another version of memprof has changed its functions; detach with that one";
        return Err(Error::NotPatched(message.to_owned()));
    }
    for function in &plan.functions {
        let found: [u8; EntryRow::JUMP_SIZE] = target
            .memory
            .bytes(function.moved.range.start)
            .map_err(|cause| write_error(target, cause))?;
        if found != function.code[..EntryRow::JUMP_SIZE] {
            let why = format!(
                "{} is not what the program's file says: something has changed it",
                function.name
            );
            return Err(Error::NotPatched(why));
        }
    }
    let first = plan
        .functions
        .first()
        .map_or(0, |first| first.moved.range.start);
    let base = table::find_space(&target.maps, first);
    let base = base.ok_or_else(|| {
        let message = "there is no room below the program for memprof's copies of its instructions";
        Error::NotPatched(message.to_owned())
    })?;
    let made = TableImage::at(plan, base).map_err(far)?;
    let code = base + TABLE_SIZE as u64;
    let maps = [
        map(base, TABLE_SIZE as u64, PROT_READ | PROT_WRITE),
        map(
            code,
            table::LENGTH - TABLE_SIZE as u64,
            PROT_READ | PROT_EXEC,
        ),
    ];
    let sent = run_calls(target, &maps, None, u64::MAX)?;
    wait_until_mapped(target, &[base..code, code..base + table::LENGTH], &sent)?;
    let written = made.write(&target.memory, base);
    written.map_err(|cause| write_error(target, cause))?;
    target.refresh()?;
    debug_assert!(mappings(&target.maps).any(|mapping| mapping.range.start == base));
    Ok((base, made))
}
