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
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// CPUID leaf with the sizes and offsets of the components.
const COMPONENTS: u32 = 0xd;

/// The registers, in the standard format.
#[derive(Clone, Debug)]
pub struct State(Vec<u8>);

impl State {
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

    /// As it stands in a signal frame, at an address that is a multiple of 64. Only as long as what is
    /// in use: a frame that is longer than what the thread may use is read as if it had no vectors.
    pub fn for_frame(&self) -> Vec<u8> {
        let present = self.word(PRESENT);
        let mut length = LEAST;
        for component in (2..63).filter(|bit| present >> bit & 1 != 0) {
            let leaf = __cpuid_count(COMPONENTS, component);
            length = length.max((leaf.ebx + leaf.eax) as usize);
        }
        let length = length.min(self.0.len());
        let mut frame = self.0[..length].to_vec();
        // The components that are to be restored: those that are not present to their initial state.
        let components = self.word(RESERVED);
        let size = length as u32;
        let mut reserved = Vec::with_capacity(48);
        for field in [
            MAGIC1,
            size + 4,
            components as u32,
            (components >> 32) as u32,
            size,
        ] {
            reserved.extend(field.to_le_bytes());
        }
        reserved.resize(48, 0);
        frame[RESERVED..RESERVED + 48].copy_from_slice(&reserved);
        frame.extend(MAGIC2.to_le_bytes());
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

    #[test]
    fn a_frame_is_as_long_as_what_is_in_use() {
        let check = |present: u64, expected: usize| {
            let mut bytes = vec![0; 16 << 10];
            bytes[PRESENT..PRESENT + 8].copy_from_slice(&present.to_le_bytes());
            bytes[RESERVED..RESERVED + 8].copy_from_slice(&7_u64.to_le_bytes());
            let frame = State::new(bytes).unwrap().for_frame();
            assert_eq!(frame.len(), expected + 4);
            assert_eq!(frame[expected..], MAGIC2.to_le_bytes());
            assert_eq!(frame[RESERVED..RESERVED + 4], MAGIC1.to_le_bytes());
            let size = (expected as u32).to_le_bytes();
            assert_eq!(frame[RESERVED + 16..RESERVED + 20], size);
        };
        check(0, 576);
        check(0b11, 576);
        // AVX: 256 bytes behind the header (Intel SDM, volume 1, 13.4.3).
        check(0b111, 832);
    }

    #[test]
    fn a_state_without_a_header_is_refused() {
        assert!(State::new(vec![0; 512]).is_err());
    }
}
