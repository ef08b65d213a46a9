//! The calls that a stopped thread is in, walked from outside: by the call frame information and the stack in its
//! memory, with the walk that the plugin has inside (memprof-unwind).

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use memprof_unwind::cfi::{Section, rule_at};
use memprof_unwind::{PackedRule, Registers, Rule, RuleSource, WalkEnd, as_frames, walk};

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const READABLE: u32 = 4;
const PAGE: u64 = 4096;
/// Of the program headers: linkers make a dozen.
const SEGMENT_LIMIT: u64 = 128;
/// Of what unwinding needs: that of a browser's engine has some 30 MiB.
const INFORMATION_LIMIT: u64 = 64 << 20;
/// Deeper stacks are left alone: each frame takes a microsecond of a thread that stands still.
const DEEPEST: usize = 1024;
/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`, as all linkers write it.
const RELATIVE: u8 = 0x1b;

/// A file in memory, as far as /proc/PID/maps tells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MappedObject {
    /// Where its first byte lies.
    base: u64,
    device: Vec<u8>,
    inode: u64,
    path: Vec<u8>,
}

/// What leads from each frame to its caller.
#[derive(Debug, Default)]
pub(crate) struct CallStacks {
    code: Vec<(Range<u64>, MappedObject)>,
    /// `None` where there is none to be had.
    information: HashMap<MappedObject, Option<UnwindInfo>>,
    /// What was missing in a walk: it is read while no thread stands still.
    missing: Vec<MappedObject>,
}

/// `.eh_frame_hdr` and `.eh_frame`, and what surrounds them.
#[derive(Debug)]
struct UnwindInfo {
    address: u64,
    bytes: Vec<u8>,
    hdr: u64,
}

impl CallStacks {
    /// Reads what the last walks missed, and which code there is now.
    pub(crate) fn refresh(&mut self, memory: &Memory, maps: &[u8]) {
        let mut object: Option<MappedObject> = None;
        self.code.clear();
        for mapping in mappings(maps).filter(|mapping| mapping.inode != 0) {
            let found = MappedObject::of(&mapping);
            object = match object {
                _ if mapping.offset == 0 => Some(found),
                Some(object) if object.is_same_file(&found) => Some(object),
                _ => None,
            };
            if let Some(object) = object.clone().filter(|_| mapping.is_executable()) {
                self.code.push((mapping.range, object));
            }
        }
        for object in std::mem::take(&mut self.missing) {
            let information = UnwindInfo::read(memory, object.base).ok();
            self.information.insert(object, information);
        }
    }

    /// The program counters of a thread, the innermost one first: all of them, up to the outermost.
    pub(crate) fn unwind(&mut self, memory: &Memory, start: Registers) -> Option<Vec<u64>> {
        let mut room = vec![0; DEEPEST];
        let mut stack = StackWords(memory);
        let (count, end) = walk(start, as_frames(&mut room), self, &mut stack);
        room.truncate(count);
        (end == WalkEnd::Outermost).then(|| room.into_iter().map(|pc| pc as u64).collect())
    }
}

impl MappedObject {
    fn of(mapping: &Mapping<'_>) -> Self {
        Self {
            base: mapping.range.start,
            device: mapping.device.to_vec(),
            inode: mapping.inode,
            path: mapping.path.to_vec(),
        }
    }

    fn is_same_file(&self, other: &Self) -> bool {
        (self.inode, &self.device) == (other.inode, &other.device)
    }
}

impl RuleSource for CallStacks {
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
            // What a handler has interrupted is not told by the frames.
            Rule::Signal => Rule::Outermost.into(),
            rule => rule.into(),
        }
    }
}

impl UnwindInfo {
    fn read(memory: &Memory, base: u64) -> io::Result<Self> {
        let header: [u8; 64] = memory.bytes(base)?;
        if header[..5] != *b"\x7fELF\x02" {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let headers = base.wrapping_add(word(&header, 32));
        let count = u64::from(read_u16(&header, 56)).min(SEGMENT_LIMIT);
        let mut segments = Vec::new();
        for at in 0..count {
            let segment: [u8; 56] = memory.bytes(headers.wrapping_add(at * 56))?;
            segments.push(segment);
        }
        let of_kind = |kind: u32| {
            segments
                .iter()
                .filter(move |segment| read_u32(*segment, 0) == kind)
        };
        // What a program that is not position independent says of addresses is true as it stands.
        let first = of_kind(PT_LOAD).next().ok_or(io::ErrorKind::NotFound)?;
        let bias = base.wrapping_sub(word(first, 16) & !(PAGE - 1));
        let addresses = |segment: &[u8; 56]| {
            let start = bias.wrapping_add(word(segment, 16));
            start..start.saturating_add(word(segment, 40))
        };
        let hdr = of_kind(PT_GNU_EH_FRAME).next().map(addresses);
        let hdr = hdr.ok_or(io::ErrorKind::NotFound)?.start;
        let mut readable = of_kind(PT_LOAD).filter(|segment| read_u32(*segment, 4) & READABLE != 0);
        let segment = readable.find(|segment| addresses(segment).contains(&hdr));
        let segment = addresses(segment.ok_or(io::ErrorKind::NotFound)?);
        // Linkers put `.eh_frame` behind its header, or right before it.
        let start: [u8; 8] = memory.bytes(hdr)?;
        let eh_frame = match start[1] {
            RELATIVE => (hdr + 4).wrapping_add_signed(i64::from(read_u32(&start, 4).cast_signed())),
            _ => hdr,
        };
        let address = match segment.contains(&eh_frame) {
            true => hdr.min(eh_frame),
            false => hdr,
        };
        let length = (segment.end - address).min(INFORMATION_LIMIT);
        let mut bytes = vec![0; length as usize];
        memory.read(address, &mut bytes)?;
        Ok(Self {
            address,
            bytes,
            hdr,
        })
    }

    fn rule_at(&self, address: u64) -> Rule {
        let from = |address: u64| {
            let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
            let bytes = self.bytes.get(offset..)?;
            Some(Section { address, bytes })
        };
        match from(self.hdr) {
            Some(hdr) => rule_at(hdr, from, address),
            None => Rule::Unsupported,
        }
    }
}

/// The words of a stack.
struct StackWords<'a>(&'a Memory);

impl memprof_unwind::StackReader for StackWords<'_> {
    fn word(&mut self, address: usize) -> Option<usize> {
        let is_aligned = address.is_multiple_of(size_of::<usize>());
        let word = is_aligned.then(|| self.0.word(address as u64))?;
        word.ok().map(|word| word as usize)
    }
}

fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Child, Command};

    use memprof_ptrace::stop::StoppedThread;

    use super::*;

    /// Ends when dropped: it never does by itself.
    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn the_calls_of_a_thread_that_runs_are_followed_to_its_start() {
        let perl = Command::new("perl").args(["-e", "1 while 1"]).spawn();
        let perl = Running(perl.unwrap());
        let pid = perl.0.id();
        let exe = fs::canonicalize("/usr/bin/perl").unwrap();
        while fs::read_link(format!("/proc/{pid}/exe")).unwrap() != exe {
            std::thread::yield_now();
        }
        let memory = Memory::open(pid).unwrap();
        let mut stacks = CallStacks::default();
        // What is missing is read between the looks; and it may still begin.
        let names = loop {
            let maps = fs::read(format!("/proc/{pid}/maps")).unwrap();
            stacks.refresh(&memory, &maps);
            let stopped = StoppedThread::interrupt(pid).unwrap();
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
            // Not `_start` yet.
            if names.len() > 1 && names[0].contains("perl") {
                break names;
            }
        };
        // `__libc_start_main` and what it calls, then `_start`.
        let [.., main, called, begun, start] = &names[..] else {
            panic!("{names:?}");
        };
        assert_eq!([called.as_str(), begun], ["libc.so.6"; 2], "{names:?}");
        assert!(main.contains("perl") && start.contains("perl"), "{names:?}");
    }
}
