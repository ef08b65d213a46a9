//! Objects that only a certain kind of memory, or the kernel, holds: held.c loses seven others in each mode.

use std::fs;
use std::process::Command;

use memprof_leaks::{Proof, UnsearchedRole, prove_leaks};

use crate::leaks::{JEMALLOC, LONG_PAUSE};
use crate::start;
use crate::target::{Target, built};

const LOST: u64 = 7;
const HELD: u64 = 50;

fn proof(mode: &str) -> Proof {
    let mut target = start("held", &[mode]);
    let proof = prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
    target.assert_unharmed();
    remove_message_queues(target.pid);
    remove_segments(target.pid);
    proof
}

/// Removes the System V message queues that a process leaves: a later process that has its id would be taken for their
/// sender.
fn remove_message_queues(sender: u32) {
    let queues = fs::read_to_string("/proc/sysvipc/msg").unwrap();
    for line in queues.lines() {
        let columns: Vec<_> = line.split_whitespace().collect();
        if columns[5] == sender.to_string() {
            let mut ipcrm = Command::new("ipcrm");
            let status = ipcrm.args(["--queue-id", columns[1]]).status();
            assert!(status.unwrap().success());
        }
    }
}

/// Removes the System V segments that a process leaves.
fn remove_segments(creator: u32) {
    let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    for line in segments.lines() {
        let columns: Vec<_> = line.split_whitespace().collect();
        if columns[4] == creator.to_string() {
            let mut ipcrm = Command::new("ipcrm");
            let status = ipcrm.args(["--shmem-id", columns[1]]).status();
            assert!(status.unwrap().success());
        }
    }
}

fn leaked(proof: &Proof) -> u64 {
    proof.leaked.iter().map(|group| group.objects).sum()
}

/// Checks that exactly the lost objects are leaked, without doubt.
fn check_proven(mode: &str) {
    let proof = proof(mode);
    assert_eq!(leaked(&proof), LOST, "{mode}: {proof:?}");
    assert_eq!(proof.report.unsearched, [], "{mode}");
}

/// Checks that a note names the kind that was not searched.
fn check_noted(mode: &str, expected: &str) {
    let proof = proof(mode);
    assert!(
        (LOST..=LOST + HELD).contains(&leaked(&proof)),
        "{mode}: {proof:?}"
    );
    assert!(
        proof.report.has_unsearched_part(UnsearchedRole::Pointers),
        "{mode}"
    );
    let notes: Vec<_> = proof
        .report
        .unsearched
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(
        notes.iter().any(|note| note.starts_with(expected)),
        "{mode}: {notes:?}"
    );
}

#[test]
fn objects_held_by_shared_memory_are_not_leaked() {
    for mode in [
        "in_shared",
        "in_shared_read_only",
        "in_shared_without_access",
        "in_file",
        "in_second_view",
        "in_untouched",
        "in_unmapped_file",
        "in_private_view",
        "in_system_v_memory",
        "in_dropped_page_tables",
    ] {
        check_proven(mode);
    }
}

#[test]
fn objects_held_by_generated_code_are_not_leaked() {
    for mode in [
        "in_code",
        "in_code_read_only",
        "in_code_at_a_block_end",
        "in_shared_code",
    ] {
        check_proven(mode);
    }
}

#[test]
fn objects_held_by_packed_or_end_pointers_are_not_leaked() {
    for mode in [
        "in_packed_events",
        "in_packed_events_on_heap",
        "by_end",
        "by_low_bits",
    ] {
        check_proven(mode);
    }
}

#[test]
fn objects_held_by_disguised_pointers_are_not_leaked() {
    for mode in [
        "by_high_bits",
        "by_nan_box",
        "by_shift",
        "by_swapped_bytes",
        "by_mangled",
        "by_tagged_list",
        "by_integer_of_ruby",
        "by_integer_of_guile",
        "by_integer_of_python",
        "by_double",
    ] {
        let proof = proof(mode);
        assert_eq!(leaked(&proof), LOST, "{mode}: {proof:?}");
        let warnings = &proof.report.warnings;
        let expected = format!("{HELD} objects, 48.83KiB, are not reported: only disguised");
        assert!(
            warnings
                .iter()
                .any(|warning| warning.starts_with(&expected)),
            "{mode}: {warnings:?}"
        );
    }
}

#[test]
fn objects_held_by_suspended_frames_are_not_leaked() {
    for mode in ["in_jumped_frames", "in_swapped_frames"] {
        let proof = proof(mode);
        // A register that swapcontext(3) has saved may hold a lost one.
        let expected = LOST - 1..=LOST;
        assert!(expected.contains(&leaked(&proof)), "{mode}: {proof:?}");
    }
}

/// Objects of both copies are found, and lost ones of both reported.
#[test]
fn objects_of_second_c_library_are_found() {
    for (mode, expected) in [
        ("of_second_library", LOST),
        ("lost_of_second_library", LOST + 1),
    ] {
        let proof = proof(mode);
        assert_eq!(leaked(&proof), expected, "{mode}: {proof:?}");
        assert!(proof.report.objects >= LOST + HELD, "{mode}: {proof:?}");
        assert_eq!(proof.report.unsearched, [], "{mode}");
    }
}

#[test]
fn objects_held_by_packed_structs_are_not_leaked() {
    for mode in ["by_packed_structs", "across_blocks"] {
        let proof = proof(mode);
        assert_eq!(leaked(&proof), LOST, "{mode}: {proof:?}");
    }
}

/// The first node has the second one's plain address.
#[test]
fn objects_held_by_xored_addresses_are_not_leaked() {
    let proof = proof("by_xor_list");
    assert_eq!(leaked(&proof), LOST, "{proof:?}");
    let warnings = &proof.report.warnings;
    assert!(
        warnings
            .iter()
            .any(|warning| warning.starts_with("48 objects")),
        "{warnings:?}"
    );
}

/// Arrays without elements of a type with a destructor: each pointer is to the end of an object of jemalloc's.
#[test]
fn empty_arrays_in_jemalloc_are_not_leaked() {
    let program = built("empty_arrays", |path| {
        let mut command = Command::new("g++");
        command.args([
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "empty_arrays.cc",
            "-o",
        ]);
        command.arg(path);
        command
    });
    let mut command = Command::new(program);
    let mut target = Target::from_command(command.env("LD_PRELOAD", JEMALLOC));
    let proof = prove_leaks(target.pid, LONG_PAUSE, &|_| {}).unwrap();
    target.assert_unharmed();
    assert_eq!(proof.leaked, []);
    assert!(proof.report.objects >= 1600, "{proof:?}");
}

#[test]
fn objects_held_by_kernel_are_not_leaked() {
    for mode in [
        "in_pipe",
        "in_stream",
        "in_eventfd",
        "in_signals",
        "in_signals_of_thread",
        "in_signal_stack",
        "in_signal_stacks_of_threads",
        "in_rseq_area",
        "in_own_descriptors",
    ] {
        check_proven(mode);
    }
}

#[test]
fn unreadable_kernel_objects_are_noted() {
    check_noted(
        "in_datagrams",
        "1 sockets with data behind the first datagram",
    );
    check_noted("in_message_queue", "400B of messages in System V queues");
    check_noted("in_posix_queue", "400B of messages in POSIX queues");
    check_noted("in_secret_memory", "4.00KiB of shared memory");
    check_noted("in_leased_file", "4.00KiB of files in memory");
    check_noted("in_flight", "1 descriptors that are being passed");
    check_noted(
        "in_socket_of_child",
        "1 Unix sockets with data that another process has not read yet",
    );
    check_noted(
        "in_socket_of_client",
        "1 Unix sockets with data that another process has not read yet",
    );
    check_noted(
        "in_detached_segment",
        "4.00KiB of System V memory that is not attached",
    );
    check_noted("in_sharing_process", "1 processes that share its memory");
}

#[test]
fn objects_held_beside_stacks_are_not_leaked() {
    for mode in [
        "below_stack",
        "between_stacks",
        "below_unguarded_stack",
        "below_signal_stack",
        "in_variables_below_stack",
    ] {
        let proof = proof(mode);
        assert_eq!(leaked(&proof), LOST, "{mode}: {proof:?}");
        // Where a thread has AMX registers, its signal frames (11 KiB) fit into no page behind variables: a thread on
        // a stack of the program's own makes no call then.
        let notes = proof.report.unsearched.iter().map(ToString::to_string);
        let mut others = notes.filter(|note| !note.contains("alternate signal stack"));
        assert_eq!(others.next(), None, "{mode}");
    }
}
