//! A thread's floating-point and vector registers (XSAVE area), in the forms in which ptrace(2) returns them and a
//! signal frame holds them (arch/x86/kernel/fpu/signal.c).

use std::arch::x86_64::__cpuid_count;
use std::io;

/// Size of the legacy area and the header, in bytes: the least size of an area.
const MIN_SIZE: usize = 576;
/// Offset of `XSTATE_BV` in the header: the components that are not in their initial state.
const PRESENT_OFFSET: usize = 512;
/// Offset of `sw_reserved` in the legacy area, where the kernel records which components exist.
const RESERVED_OFFSET: usize = 464;
/// Components that a process must request (`XFEATURE_MASK_USER_DYNAMIC`): the tiles of AMX.
const GRANTED_COMPONENTS: u64 = 1 << 18;
/// Component with PKRU, the thread's rights to memory with protection keys (pkeys(7)), and the rights of a thread that
/// has changed none (`init_pkru` of the kernel): to the memory without a key.
const KEYS_COMPONENT: u32 = 9;
const DEFAULT_KEY_RIGHTS: u32 = 0x5555_5554;
/// `FP_XSTATE_MAGIC1` and `FP_XSTATE_MAGIC2` of asm/sigcontext.h.
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// CPUID leaf that returns the sizes and offsets of the components.
const COMPONENTS_LEAF: u32 = 0xd;

/// The registers, in XSAVE's standard format.
#[derive(Clone, Debug)]
pub struct XState {
    /// The area without the zeros at its end. With AMX these are 8 KiB of each of a program's threads.
    bytes: Vec<u8>,
    /// Size of the whole area in bytes.
    length: usize,
}

impl XState {
    /// Wraps the bytes of `PTRACE_GETREGSET`, and drops the words at their end that are zero, to save memory. Fails
    /// with `Unsupported` if the bytes have no XSAVE header.
    pub(crate) fn new(mut bytes: Vec<u8>) -> io::Result<Self> {
        let length = bytes.len();
        if length < MIN_SIZE {
            let message = "this processor has no XSAVE";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let last = bytes.iter().rposition(|byte| *byte != 0);
        let used = last.map_or(0, |last| last + 1).next_multiple_of(8);
        bytes.truncate(used.clamp(MIN_SIZE, length));
        bytes.shrink_to_fit();
        Ok(Self { bytes, length })
    }

    /// Returns the area as ptrace(2) returned it, without words at its end that are zero.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether the thread has other rights to memory with protection keys (pkeys(7)) than the kernel gives to a
    /// signal handler. The thread's stack may then have a key, and be out of reach with the handler's rights.
    pub(crate) fn has_changed_key_rights(&self) -> bool {
        let has_keys = self.read_u64(RESERVED_OFFSET) >> KEYS_COMPONENT & 1 != 0;
        let offset = || __cpuid_count(COMPONENTS_LEAF, KEYS_COMPONENT).ebx as usize;
        has_keys && self.key_rights(offset()) != DEFAULT_KEY_RIGHTS
    }

    /// Reads PKRU, which lies at `offset` of the area. 0, which means all rights, if it is among the zeros that
    /// [`Self::new`] dropped.
    fn key_rights(&self, offset: usize) -> u32 {
        let bytes = self.bytes.get(offset..offset + 4);
        bytes.map_or(0, |bytes| {
            u32::from_le_bytes(bytes.try_into().expect("four bytes"))
        })
    }

    /// Builds the bytes for a signal frame, which must lie at a multiple of 64.
    ///
    /// The kernel checks an end mark at one of two offsets: at the size that the frame names, or (Linux 6.12 and
    /// others) at the size of all components that the thread may use, which only a thread with AMX granted has in full.
    /// So both offsets are marked. The kernel treats a frame without the mark as one without vector registers, and
    /// sends a SIGSEGV if the mark cannot be read.
    pub fn to_frame_bytes(&self) -> Vec<u8> {
        self.frame_bytes_with_ends(|component| {
            let leaf = __cpuid_count(COMPONENTS_LEAF, component);
            // Offset and size of the component.
            (leaf.ebx + leaf.eax) as usize
        })
    }

    /// Builds the bytes for a signal frame, as [`to_frame_bytes`](Self::to_frame_bytes) does, for a processor whose
    /// component with number N ends at the offset `end(N)`.
    fn frame_bytes_with_ends(&self, end: impl Fn(u32) -> usize) -> Vec<u8> {
        let components = self.read_u64(RESERVED_OFFSET);
        let granted = match self.read_u64(PRESENT_OFFSET) & GRANTED_COMPONENTS {
            0 => components & !GRANTED_COMPONENTS,
            _ => components,
        };
        // Components 0 and 1 lie in the legacy area.
        let ends = (2..63).filter(|bit| granted >> bit & 1 != 0).map(end);
        let size = ends.fold(MIN_SIZE, usize::max).min(self.length);
        let mut frame = self.bytes.clone();
        frame.resize(self.length, 0);
        // The area holds PKRU even if XSTATE_BV lacks its bit. Without the bit, the kernel would load PKRU's initial
        // state, all rights.
        let present = self.read_u64(PRESENT_OFFSET) | components & 1 << KEYS_COMPONENT;
        frame[PRESENT_OFFSET..PRESENT_OFFSET + 8].copy_from_slice(&present.to_le_bytes());
        // `struct _fpx_sw_bytes`: mark, size with the end mark, components to restore, size. The kernel resets
        // components without data to their initial state.
        let mut reserved = Vec::with_capacity(48);
        for field in [
            MAGIC1,
            size as u32 + 4,
            components as u32,
            (components >> 32) as u32,
            size as u32,
        ] {
            reserved.extend(field.to_le_bytes());
        }
        reserved.resize(48, 0);
        frame[RESERVED_OFFSET..RESERVED_OFFSET + 48].copy_from_slice(&reserved);
        frame.extend(MAGIC2.to_le_bytes());
        frame[size..size + 4].copy_from_slice(&MAGIC2.to_le_bytes());
        frame
    }

    /// Reads the little-endian number of 64 bits at an offset of the area. Panics if it is not within the area.
    fn read_u64(&self, offset: usize) -> u64 {
        let bytes = self.bytes[offset..offset + 8].try_into();
        u64::from_le_bytes(bytes.expect("eight bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// End offset of a component on a processor with AMX (Intel SDM, volume 1, 13.4.3).
    fn end(component: u32) -> usize {
        match component {
            2 => 832,
            17 => 2816,
            18 => 11008,
            other => panic!("component {other}"),
        }
    }

    #[test]
    fn frame_is_marked_where_each_kernel_reads() {
        let check = |length: usize, components: u64, present: u64, size: usize| {
            let mut bytes = vec![0; length];
            bytes[PRESENT_OFFSET..PRESENT_OFFSET + 8].copy_from_slice(&present.to_le_bytes());
            bytes[RESERVED_OFFSET..RESERVED_OFFSET + 8].copy_from_slice(&components.to_le_bytes());
            let frame = XState::new(bytes).unwrap().frame_bytes_with_ends(end);
            assert_eq!(frame.len(), length + 4);
            assert_eq!(
                frame[RESERVED_OFFSET..RESERVED_OFFSET + 4],
                MAGIC1.to_le_bytes()
            );
            let claimed = (size as u32).to_le_bytes();
            assert_eq!(frame[RESERVED_OFFSET + 16..RESERVED_OFFSET + 20], claimed);
            for offset in [size, length] {
                assert_eq!(frame[offset..offset + 4], MAGIC2.to_le_bytes(), "{offset}");
            }
        };
        let (avx, amx) = (0b111, 0x6_0007);
        check(576, 0b11, 0b11, 576);
        check(832, avx, 0b10, 832);
        check(832, avx, avx, 832);
        // AMX not granted, or granted and not in use; AMX in use.
        check(11008, amx, avx, 2816);
        check(11008, amx, amx, 11008);
    }

    #[test]
    fn key_rights_are_restored_even_if_zero() {
        let (offset, components) = (800, 0b10_0000_0111_u64);
        let check = |rights: u32, present: u64| {
            let mut area = vec![0; 832];
            area[PRESENT_OFFSET..PRESENT_OFFSET + 8].copy_from_slice(&present.to_le_bytes());
            area[RESERVED_OFFSET..RESERVED_OFFSET + 8].copy_from_slice(&components.to_le_bytes());
            area[offset..offset + 4].copy_from_slice(&rights.to_le_bytes());
            let state = XState::new(area).unwrap();
            assert_eq!(state.key_rights(offset), rights);
            let frame = state.frame_bytes_with_ends(|_| 832);
            let frame_present = frame[PRESENT_OFFSET..PRESENT_OFFSET + 8]
                .try_into()
                .unwrap();
            assert_eq!(u64::from_le_bytes(frame_present), present | 1 << 9);
            assert_eq!(frame[offset..offset + 4], rights.to_le_bytes());
        };
        check(DEFAULT_KEY_RIGHTS, 0b10_0000_0111);
        check(0, 0b11);
    }

    #[test]
    fn zeros_at_the_end_are_not_kept() {
        let check = |length: usize, last: usize, kept: usize| {
            let mut area = vec![0; length];
            area[last] = 1;
            let state = XState::new(area.clone()).unwrap();
            assert_eq!(state.bytes(), &area[..kept]);
            let frame = state.frame_bytes_with_ends(end);
            // Behind the end mark of an area without components.
            assert_eq!(frame[MIN_SIZE + 4..length], area[MIN_SIZE + 4..]);
        };
        check(11008, 0, MIN_SIZE);
        check(11008, 830, 832);
        check(11008, 832, 840);
        check(11008, 11007, 11008);
    }

    #[test]
    fn state_without_header_is_rejected() {
        assert!(XState::new(vec![0; 512]).is_err());
    }
}
