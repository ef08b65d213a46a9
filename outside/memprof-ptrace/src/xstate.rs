//! A thread's floating-point and vector registers (XSAVE area), as ptrace(2) gives them and as the
//! kernel takes them from a signal frame (arch/x86/kernel/fpu/signal.c).

use std::arch::x86_64::__cpuid_count;
use std::io;

/// The legacy area and the header.
const LEAST: usize = 576;
/// Of the components that are not in their initial state, in the header.
const PRESENT: usize = 512;
/// `sw_reserved` in the legacy area, where the kernel tells which components there are.
const RESERVED: usize = 464;
/// Components that a process must ask for (`XFEATURE_MASK_USER_DYNAMIC`): the tiles of AMX.
const GRANTED: u64 = 1 << 18;
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// CPUID leaf with the sizes and offsets of the components.
const COMPONENTS: u32 = 0xd;

/// The registers, in the standard format.
#[derive(Clone, Debug)]
pub struct XState(Vec<u8>);

impl XState {
    pub(crate) fn new(bytes: Vec<u8>) -> io::Result<Self> {
        if bytes.len() < LEAST {
            let message = "this processor has no XSAVE";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        Ok(Self(bytes))
    }

    /// All of it, as the kernel gives it.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// As it stands in a signal frame, at an address that is a multiple of 64.
    ///
    /// Where the kernel looks for its end differs: at the size that the frame gives, or (Linux 6.12 and others) at the
    /// size of all that the thread may use, which only a thread that was granted AMX has in full. So the end is
    /// marked at both places: a frame without the mark is taken for one without vectors, and where it cannot be read
    /// the thread gets a SIGSEGV.
    pub fn for_frame(&self) -> Vec<u8> {
        self.frame_bytes(|component| {
            let leaf = __cpuid_count(COMPONENTS, component);
            (leaf.ebx + leaf.eax) as usize
        })
    }

    /// The same, told where each component ends.
    fn frame_bytes(&self, end: impl Fn(u32) -> usize) -> Vec<u8> {
        let components = self.word(RESERVED);
        let granted = match self.word(PRESENT) & GRANTED {
            0 => components & !GRANTED,
            _ => components,
        };
        let ends = (2..63).filter(|bit| granted >> bit & 1 != 0).map(end);
        let size = ends.fold(LEAST, usize::max).min(self.0.len());
        let mut frame = self.0.clone();
        // The components that are to be restored: those that are not present to their initial state.
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
        frame[RESERVED..RESERVED + 48].copy_from_slice(&reserved);
        frame.extend(MAGIC2.to_le_bytes());
        frame[size..size + 4].copy_from_slice(&MAGIC2.to_le_bytes());
        frame
    }

    fn word(&self, at: usize) -> u64 {
        let bytes = self.0[at..at + 8].try_into();
        u64::from_le_bytes(bytes.expect("eight bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where components end on a processor with AMX (Intel SDM, volume 1, 13.4.3).
    fn end(component: u32) -> usize {
        match component {
            2 => 832,
            17 => 2816,
            18 => 11008,
            other => panic!("component {other}"),
        }
    }

    #[test]
    fn the_end_is_marked_where_any_kernel_looks() {
        let check = |length: usize, components: u64, present: u64, size: usize| {
            let mut bytes = vec![0; length];
            bytes[PRESENT..PRESENT + 8].copy_from_slice(&present.to_le_bytes());
            bytes[RESERVED..RESERVED + 8].copy_from_slice(&components.to_le_bytes());
            let frame = XState::new(bytes).unwrap().frame_bytes(end);
            assert_eq!(frame.len(), length + 4);
            assert_eq!(frame[RESERVED..RESERVED + 4], MAGIC1.to_le_bytes());
            let claimed = (size as u32).to_le_bytes();
            assert_eq!(frame[RESERVED + 16..RESERVED + 20], claimed);
            for place in [size, length] {
                assert_eq!(frame[place..place + 4], MAGIC2.to_le_bytes(), "{place}");
            }
        };
        let (avx, amx) = (0b111, 0x6_0007);
        check(576, 0b11, 0b11, 576);
        check(832, avx, 0b10, 832);
        check(832, avx, avx, 832);
        // Not granted, or granted and not in use; in use.
        check(11008, amx, avx, 2816);
        check(11008, amx, amx, 11008);
    }

    #[test]
    fn a_state_without_a_header_is_refused() {
        assert!(XState::new(vec![0; 512]).is_err());
    }
}
