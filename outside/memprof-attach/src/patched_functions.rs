//! Patches the entry points of allocators: replaces the first instructions of each function by a jump while all threads
//! are stopped. Patching GOT slots would miss an allocator that is linked statically into the program or a library, and
//! calls by a function pointer that the program keeps.
//!
//! The jump leads to a trampoline, which continues in the function's relocated prologue unless the plugin has set a
//! hook. The table of trampolines is written before the first jump, and stays for the life of the process, because a
//! thread may have been interrupted in it. So the process keeps working if this program is killed between two jumps;
//! the next attachment writes the missing jumps, or a detachment restores the written ones.

mod allocator_code;
mod allocator_file;
mod call_graph;
pub(crate) mod file_budget;
mod function_names;
mod pause;
mod plan;
mod plugin_tables;
mod prologue;
mod table;
mod write_patches;

use std::time::Duration;

use libc::{PROT_EXEC, PROT_READ, PROT_WRITE};
use memprof_ptrace::memory::Memory;
use memprof_sampler::{EntryRow, Role, TABLE_SIZE};

use crate::error::{AttachError, explain_exit_or_exec};
use crate::run_calls::{build_map_call, run_calls, unmap_ranges, wait_until_mapped, write_error};
use crate::target::{Target, read_maps};
use allocator_code::AllocatorCode;
use plan::{PatchPlan, PlannedPatch};
use table::{InstalledEntry, TableImage};
use write_patches::{CodePatch, RelocatedRange, write_patches};

/// File whose `malloc` is patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MallocOwner {
    /// The program, if it exports a `malloc` of its own to its libraries.
    Program,
    /// The program, or the first loaded library that defines `malloc`.
    First,
}

/// Result of patching the entry points of an allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchReport {
    /// Name of the library that contains the functions; `None` for the program.
    pub library: Option<String>,
    /// Name of a patched function that allocates, such as `malloc` or `_rjem_malloc`; empty for restored functions.
    pub function: String,
    /// Number of patched functions.
    pub functions: usize,
    /// Functions that only allocate and were not patched: sentences with each name and reason.
    pub skipped: Vec<String>,
    /// Time for which all threads were stopped.
    pub stop: Duration,
}

/// Patches `malloc` and related functions, in the file that `owner` selects, to call memprof's sampler, which does
/// nothing until it is activated. `None` if no such file defines `malloc`.
///
/// # Errors
/// `LongPause`: the threads would be stopped for longer than `max_pause`. `NotPatched`: a function that cannot be
/// patched, with the reason. The process continues as before.
pub fn patch_entry_points(
    pid: u32,
    owner: MallocOwner,
    max_pause: Duration,
) -> Result<Option<PatchReport>, AttachError> {
    explain_exit_or_exec(pid, || {
        let code = AllocatorCode::read(pid, owner)?;
        code.map(|code| patch_functions_of_file(pid, code, max_pause))
            .transpose()
    })
}

/// Patches the allocators that do not serve `malloc`, but are called by other names, such as `_rjem_malloc` or
/// `mi_malloc`, in the program and in each library. Returns a result for each file with such an allocator.
///
/// # Errors
/// The program cannot be read. The result of each file is an error for the reasons given at [`patch_entry_points`].
pub fn patch_other_allocators(
    pid: u32,
    max_pause: Duration,
) -> Result<Vec<Result<PatchReport, AttachError>>, AttachError> {
    explain_exit_or_exec(pid, || {
        let files = AllocatorCode::read_other_allocators(pid)?;
        let patched = files
            .into_iter()
            .map(|code| patch_functions_of_file(pid, code, max_pause));
        Ok(patched.collect())
    })
}

/// Patches the functions of one file, except those that are patched already. Plans the patches, maps and writes the
/// table of trampolines, then writes the jumps while all threads are stopped. Fails as [`patch_entry_points`] does.
fn patch_functions_of_file(
    pid: u32,
    code: AllocatorCode,
    max_pause: Duration,
) -> Result<PatchReport, AttachError> {
    let plan = PatchPlan::new(&code)?;
    let mut target = Target::inspect(pid)?;
    require_unchanged_code(&target, &plan)?;
    // Checked before a table is written, because it would stay in the process.
    if find_table_for(&target, &plan).is_none() {
        pause::require_short_pause(&target, max_pause)?;
    }
    let (base, image) = find_or_write_table(&mut target, &plan)?;
    if !code.serves_malloc {
        plugin_tables::register_table(&target, base)?;
    }
    let failed = |cause| write_error(&target, cause);
    let entries = table::read_entries(&target.memory, base).map_err(failed)?;
    let mut patches = Vec::new();
    let mut relocated = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if is_patched(&target.memory, entry).map_err(failed)? {
            continue;
        }
        // The hook may still be set from before its jump was restored.
        let disabled = target.memory.write(entry.hook, &0_u64.to_le_bytes());
        disabled.map_err(failed)?;
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
    let allocating = plan.functions.iter();
    let allocating = allocating.filter(|each| each.shape.role() == Role::Allocates);
    let best_known =
        // `false` is the least: the shortest name that ends with `malloc`, if there is one.
        allocating.min_by_key(|each| (!each.name.ends_with("malloc"), each.name.len()));
    Ok(PatchReport {
        library: code.library,
        function: best_known.map_or_else(String::new, |each| each.name.clone()),
        functions: entries.len(),
        skipped: plan.skipped,
        stop,
    })
}

/// Finds the table of trampolines that an earlier attachment has written for the plan's file, and returns its address
/// in the process. `None` if there is no such table, or the plan has no functions.
fn find_table_for(target: &Target, plan: &PatchPlan) -> Option<u64> {
    let starts = plan.functions.iter().map(|each| each.prologue.range.start);
    let range = starts.clone().min()?..=starts.max()?;
    table::find_tables(&target.memory, &target.maps).find(|base| {
        let entries = table::read_entries(&target.memory, *base).unwrap_or_default();
        entries.iter().any(|entry| range.contains(&entry.function))
    })
}

/// Fails if the program exports a `malloc` of its own to its libraries, but has no symbols with the addresses of its
/// allocator's functions.
///
/// # Errors
/// `NotPatched`: the program was stripped, or is too large.
pub fn require_allocator_symbols(pid: u32) -> Result<(), AttachError> {
    explain_exit_or_exec(pid, || {
        AllocatorCode::read(pid, MallocOwner::Program).map(drop)
    })
}

/// Restores the first instructions of the patched functions. `None` if none is patched.
///
/// # Errors
/// `Refused`, `Io`: the process cannot be traced; `NotPatched`: its threads cannot be stopped in time, or its code
/// has changed. The process continues as before.
pub fn restore_entry_points(pid: u32) -> Result<Option<PatchReport>, AttachError> {
    explain_exit_or_exec(pid, || restore_patched_functions(pid))
}

/// Restores the first instructions of the patched functions. If the process ends meanwhile, the error is that of the
/// failed access: the caller explains it. `None` if no function is patched, or if this user may not read the process's
/// memory. Fails as [`restore_entry_points`] does.
fn restore_patched_functions(pid: u32) -> Result<Option<PatchReport>, AttachError> {
    // If this user may not trace the process, it has not patched it either.
    let (Ok(memory), Ok(maps)) = (Memory::open(pid), read_maps(pid)) else {
        return Ok(None);
    };
    let tables: Vec<_> = table::find_tables(&memory, &maps).collect();
    if tables.is_empty() {
        return Ok(None);
    }
    drop(memory);
    let mut target = Target::inspect(pid)?;
    let failed = |cause| write_error(&target, cause);
    let mut patches = Vec::new();
    for base in tables {
        for entry in table::read_entries(&target.memory, base).map_err(failed)? {
            if is_patched(&target.memory, &entry).map_err(failed)? {
                // The jump is replaced by the function's own bytes.
                patches.push(CodePatch {
                    address: entry.function,
                    original: entry.jump,
                    patched: entry.original,
                });
            }
        }
    }
    if patches.is_empty() {
        return Ok(None);
    }
    Ok(Some(PatchReport {
        library: None,
        function: String::new(),
        functions: patches.len(),
        skipped: Vec::new(),
        stop: write_patches(&mut target, &patches, &[])?,
    }))
}

/// Returns whether memprof's jump is at the start of the function now. Fails if the code cannot be read.
fn is_patched(memory: &Memory, entry: &InstalledEntry) -> std::io::Result<bool> {
    let found: [u8; EntryRow::JUMP_SIZE] = memory.read_array(entry.function)?;
    Ok(found == entry.jump)
}

/// Fails if a function in the process differs from its file, outside of the bytes that a jump replaces. These bytes may
/// hold a jump of memprof already, and are checked before a jump is written.
fn require_unchanged_code(target: &Target, plan: &PatchPlan) -> Result<(), AttachError> {
    for function in &plan.functions {
        let mut found = vec![0; function.code.len()];
        let read = target.memory.read(function.address, &mut found);
        read.map_err(|cause| write_error(target, cause))?;
        let jump = function.jump_offset();
        let end = jump + EntryRow::JUMP_SIZE;
        if found[..jump] != function.code[..jump] || found[end..] != function.code[end..] {
            return Err(changed_function_error(function));
        }
    }
    Ok(())
}

/// Returns the error for a function that another tool, such as a debugger, has changed.
fn changed_function_error(function: &PlannedPatch) -> AttachError {
    AttachError::NotPatched(format!(
        "{} is not what its file says: something has changed it",
        function.name
    ))
}

/// Finds the table of trampolines for this plan in the process, or maps and writes it. Returns its address and content.
/// Fails if the existing table is of another version, a function was changed, no free addresses are near, or the table
/// cannot be mapped or written.
fn find_or_write_table(
    target: &mut Target,
    plan: &PatchPlan,
) -> Result<(u64, TableImage), AttachError> {
    let not_relocatable = |(name, reason)| AttachError::NotPatched(format!("{name} {reason}"));
    if let Some(base) = find_table_for(target, plan) {
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
        if found != function.original_bytes() {
            return Err(changed_function_error(function));
        }
    }
    let first = plan
        .functions
        .first()
        .map_or(0, |first| first.prologue.range.start);
    let base = table::find_table_space(&target.maps, first);
    let base = base.ok_or_else(|| {
        let message = "there is no room near it for memprof's copies of its instructions";
        AttachError::NotPatched(message.to_owned())
    })?;
    let image = TableImage::new(plan, base).map_err(not_relocatable)?;
    let code = base + TABLE_SIZE as u64;
    let maps = [
        build_map_call(base, TABLE_SIZE as u64, PROT_READ | PROT_WRITE),
        build_map_call(
            code,
            table::TABLE_AND_CODE_SIZE - TABLE_SIZE as u64,
            PROT_READ | PROT_EXEC,
        ),
    ];
    let call = run_calls(target, &maps, None, u64::MAX)?;
    let ranges = [base..code, code..base + table::TABLE_AND_CODE_SIZE];
    wait_until_mapped(target, &ranges, &call)?;
    if let Err(cause) = image.write(&target.memory, base) {
        let error = write_error(target, cause);
        return Err(error.with_pages_left(unmap_ranges(target, &ranges)));
    }
    target.refresh()?;
    Ok((base, image))
}
