//! Walks the stack of a stopped thread from outside: reads the call frame information and the stack from the
//! target's memory, and uses the walker of memprof-unwind, as the plugin does inside.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use memprof_unwind::cfi::{Section, rule_at};
use memprof_unwind::{PackedRule, Registers, Rule, RuleSource, WalkEnd, as_frames, walk};

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_R: u32 = 4;
const PAGE_SIZE: u64 = 4096;
/// Largest number of program headers that are read: linkers write a dozen.
const MAX_SEGMENTS: u64 = 128;
/// Most bytes that are read of the unwind information of all objects of a process: a browser engine's takes some
/// 30 MiB.
const MAX_UNWIND_INFO_SIZE: u64 = 96 << 20;
/// Largest depth of a stack that is walked: each frame takes a microsecond during which the thread is stopped.
const MAX_FRAMES: usize = 1024;
/// Pointer encoding `DW_EH_PE_pcrel | DW_EH_PE_sdata4`, which all linkers use.
const PCREL_SDATA4: u8 = 0x1b;

/// A loaded file, identified as in /proc/PID/maps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MappedObject {
    /// Load address.
    base: u64,
    device: Vec<u8>,
    inode: u64,
    path: Vec<u8>,
}

/// Unwind information of a process's objects.
#[derive(Debug, Default)]
pub(crate) struct CallStacks {
    code: Vec<(Range<u64>, MappedObject)>,
    /// `None` for an object without usable information.
    information: HashMap<MappedObject, Option<UnwindInfo>>,
    /// Objects whose information a walk lacked. It is read while no thread is stopped.
    missing: Vec<MappedObject>,
}

/// `.eh_frame_hdr` and `.eh_frame` of an object, with the bytes around them.
#[derive(Debug)]
struct UnwindInfo {
    address: u64,
    bytes: Vec<u8>,
    hdr: u64,
}

impl CallStacks {
    /// Reads the unwind information that the last walks lacked, and the current mappings of code. Call it before
    /// each round of [`unwind`](Self::unwind).
    pub(crate) fn refresh(&mut self, memory: &Memory, maps: &[u8]) {
        let mut object: Option<MappedObject> = None;
        self.code.clear();
        for mapping in mappings(maps).filter(|mapping| mapping.inode != 0) {
            let mapped = MappedObject::from_mapping(&mapping);
            // The mapping of a file's start has offset 0; further ones of that file follow it.
            object = match object {
                _ if mapping.offset == 0 => Some(mapped),
                Some(object) if object.is_same_file(&mapped) => Some(object),
                _ => None,
            };
            if let Some(object) = object.clone().filter(|_| mapping.is_executable()) {
                self.code.push((mapping.range, object));
            }
        }
        for object in std::mem::take(&mut self.missing) {
            // Several threads may have lacked the same object.
            if self.information.contains_key(&object) {
                continue;
            }
            let known = self.information.values().flatten();
            let size: usize = known.map(|information| information.bytes.len()).sum();
            let limit = MAX_UNWIND_INFO_SIZE.saturating_sub(size as u64);
            let information = UnwindInfo::read(memory, object.base, limit).ok();
            self.information.insert(object, information);
        }
    }

    /// Returns the program counters of a thread's stack, the innermost first. `None` if the walk ends early, also if
    /// the unwind information of an object was not read yet: [`refresh`](Self::refresh) then reads it for the next
    /// round. Code without call frame information counts as the outermost frame.
    pub(crate) fn unwind(&mut self, memory: &Memory, start: Registers) -> Option<Vec<u64>> {
        let mut frames = vec![0; MAX_FRAMES];
        let mut stack = StackWords(memory);
        let (count, end) = walk(start, as_frames(&mut frames), self, &mut stack);
        frames.truncate(count);
        matches!(end, WalkEnd::Outermost | WalkEnd::Undescribed)
            .then(|| frames.into_iter().map(|pc| pc as u64).collect())
    }
}

impl MappedObject {
    /// Identifies an object by its load address and its file. The load address is right only if `mapping` maps the
    /// start of the file.
    fn from_mapping(mapping: &Mapping<'_>) -> Self {
        Self {
            base: mapping.range.start,
            device: mapping.device.to_vec(),
            inode: mapping.inode,
            path: mapping.path.to_vec(),
        }
    }

    /// Returns whether both are mappings of the same file, by device and inode.
    fn is_same_file(&self, other: &Self) -> bool {
        (self.inode, &self.device) == (other.inode, &other.device)
    }
}

impl RuleSource for CallStacks {
    /// Returns the unwind rule at an address; `Unsupported` if it is unknown. A signal's frame counts as the outermost
    /// one. Records an object whose information was not read yet, for the next [`refresh`](Self::refresh).
    fn rule_at(&mut self, address: usize, _: usize) -> PackedRule {
        let address = address as u64;
        let mut code = self.code.iter();
        let Some((_, object)) = code.find(|(range, _)| range.contains(&address)) else {
            return Rule::Unsupported.into();
        };
        let rule = match self.information.get(object) {
            Some(Some(information)) => information.rule_at(address),
            Some(None) => Rule::Unsupported,
            None => {
                self.missing.push(object.clone());
                Rule::Unsupported
            }
        };
        match rule {
            // The frames do not say which code a handler interrupted, so the walk ends there.
            Rule::Signal => Rule::Outermost.into(),
            rule => rule.into(),
        }
    }
}

impl UnwindInfo {
    /// Reads up to `limit` bytes of the unwind information (`.eh_frame_hdr` and `.eh_frame`) of the object that is
    /// loaded at `base`. Code whose information is beyond them has an unsupported rule. Fails if the object has no
    /// information, is no 64-bit ELF file, or cannot be read.
    fn read(memory: &Memory, base: u64, limit: u64) -> io::Result<Self> {
        let header: [u8; 64] = memory.read_array(base)?;
        if header[..5] != *b"\x7fELF\x02" {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // `e_phoff`, and below `e_phnum`, of the ELF header. A program header (`Elf64_Phdr`) has 56 bytes: `p_type` is
        // at 0, `p_flags` at 4.
        let headers = base.wrapping_add(read_u64(&header, 32));
        let count = u64::from(read_u16(&header, 56)).min(MAX_SEGMENTS);
        let mut segments = Vec::new();
        for index in 0..count {
            let segment: [u8; 56] = memory.read_array(headers.wrapping_add(index * 56))?;
            segments.push(segment);
        }
        let of_type = |kind: u32| {
            segments
                .iter()
                .filter(move |segment| read_u32(*segment, 0) == kind)
        };
        // The bias is 0 for a program that is not position independent.
        let first = of_type(PT_LOAD).next().ok_or(io::ErrorKind::NotFound)?;
        let bias = base.wrapping_sub(read_u64(first, 16) & !(PAGE_SIZE - 1));
        // `p_vaddr` and `p_memsz`.
        let addresses = |segment: &[u8; 56]| {
            let start = bias.wrapping_add(read_u64(segment, 16));
            start..start.saturating_add(read_u64(segment, 40))
        };
        let hdr = of_type(PT_GNU_EH_FRAME).next().map(addresses);
        let hdr = hdr.ok_or(io::ErrorKind::NotFound)?.start;
        let mut readable = of_type(PT_LOAD).filter(|segment| read_u32(*segment, 4) & PF_R != 0);
        let segment = readable.find(|segment| addresses(segment).contains(&hdr));
        let segment = addresses(segment.ok_or(io::ErrorKind::NotFound)?);
        // Linkers place `.eh_frame` after its header, or right before it. The second byte is the encoding of its
        // address, which is at 4.
        let start: [u8; 8] = memory.read_array(hdr)?;
        let eh_frame = match start[1] {
            PCREL_SDATA4 => {
                (hdr + 4).wrapping_add_signed(i64::from(read_u32(&start, 4).cast_signed()))
            }
            _ => hdr,
        };
        let address = match segment.contains(&eh_frame) {
            true => hdr.min(eh_frame),
            false => hdr,
        };
        let length = (segment.end - address).min(limit);
        let mut bytes = vec![0; length as usize];
        memory.read(address, &mut bytes)?;
        Ok(Self {
            address,
            bytes,
            hdr,
        })
    }

    /// Returns the unwind rule at an address; `Undescribed` if the information has none, `Unsupported` if the
    /// information is malformed.
    fn rule_at(&self, address: u64) -> Rule {
        let section_at = |address: u64| {
            let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
            let bytes = self.bytes.get(offset..)?;
            Some(Section { address, bytes })
        };
        match section_at(self.hdr) {
            Some(hdr) => rule_at(hdr, section_at, address),
            None => Rule::Unsupported,
        }
    }
}

/// Reads words of the target's stack.
struct StackWords<'a>(&'a Memory);

impl memprof_unwind::StackReader for StackWords<'_> {
    /// Reads a word of the target's stack. `None` if the address is unaligned or unreadable.
    fn read_word(&mut self, address: usize) -> Option<usize> {
        let is_aligned = address.is_multiple_of(size_of::<usize>());
        let word = is_aligned.then(|| self.0.read_u64(address as u64))?;
        word.ok().map(|word| word as usize)
    }
}

/// Reads the little-endian number of 16 bits at an offset. Panics if it is not within the bytes.
fn read_u16(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

/// Reads the little-endian number of 32 bits at an offset. Panics if it is not within the bytes.
fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

/// Reads the little-endian number of 64 bits at an offset. Panics if it is not within the bytes.
fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Child, Command};

    use memprof_ptrace::stop::StoppedThread;

    use super::*;

    /// A process that runs until it is dropped.
    struct RunningProcess(Child);

    impl Drop for RunningProcess {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn unwind_information_is_read_up_to_a_limit() {
        let memory = Memory::open(std::process::id()).unwrap();
        let maps = fs::read("/proc/self/maps").unwrap();
        let libc = mappings(&maps).find(|mapping| mapping.file_name() == b"libc.so.6");
        let libc = libc.unwrap().range.start;
        let here = libc::malloc as *const () as u64;
        let check = |limit: u64, is_known: bool| {
            let information = UnwindInfo::read(&memory, libc, limit).unwrap();
            assert!(information.bytes.len() as u64 <= limit);
            let is_found = information.rule_at(here) != Rule::Unsupported;
            assert_eq!(is_found, is_known, "{limit}");
        };
        check(MAX_UNWIND_INFO_SIZE, true);
        check(1000, false);
        check(0, false);
    }

    #[test]
    fn stack_of_a_running_thread_is_walked_to_its_start() {
        let perl = Command::new("perl").args(["-e", "1 while 1"]).spawn();
        let perl = RunningProcess(perl.unwrap());
        let pid = perl.0.id();
        let exe = fs::canonicalize("/usr/bin/perl").unwrap();
        while fs::read_link(format!("/proc/{pid}/exe")).unwrap() != exe {
            std::thread::yield_now();
        }
        let memory = Memory::open(pid).unwrap();
        let mut stacks = CallStacks::default();
        // Missing information is read between the walks; the process may also be starting.
        let names = loop {
            let maps = fs::read(format!("/proc/{pid}/maps")).unwrap();
            stacks.refresh(&memory, &maps);
            let stopped = StoppedThread::stop(pid).unwrap();
            let registers = stopped.registers().unwrap();
            let start = Registers {
                pc: registers.rip as usize,
                sp: registers.rsp as usize,
                bp: registers.rbp as usize,
            };
            let frames = stacks.unwind(&memory, start).unwrap_or_default();
            drop(stopped);
            let name = |pc: &u64| {
                let mapping = mappings(&maps).find(|mapping| mapping.range.contains(pc));
                String::from_utf8_lossy(mapping.unwrap().file_name()).into_owned()
            };
            let names: Vec<String> = frames.iter().map(name).collect();
            // The program has not reached `_start` yet.
            if names.len() > 1 && names[0].contains("perl") {
                break names;
            }
        };
        // `__libc_start_main` and its callee, then `_start`.
        let [.., main, called, main_caller, start] = &names[..] else {
            panic!("{names:?}");
        };
        assert_eq!(
            [called.as_str(), main_caller],
            ["libc.so.6"; 2],
            "{names:?}"
        );
        assert!(main.contains("perl") && start.contains("perl"), "{names:?}");
    }
}
