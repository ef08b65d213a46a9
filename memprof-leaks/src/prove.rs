//! What is leaked, with proof: nothing pointed to it at two moments, a second apart.

use std::thread;
use std::time::{Duration, Instant};

use memprof_ptrace::ending::Ending;
use memprof_ptrace::process::Status;

use crate::error::Error;
use crate::garbage::spare;
use crate::groups::{Group, Groups};
use crate::look::{Looks, Options, Progress, Seen, Step};
use crate::objects::{Object, Objects};
use crate::reach::reach;
use crate::snapshot::{Snapshot, Subject};
use crate::view::Window;

/// Between two snapshots: what is on its way from one place to another has arrived then.
const APART: Duration = Duration::from_secs(1);

/// Words of an object that are compared.
const SUMMED: usize = 512;
/// Odd, and without a pattern: the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// How it was found.
    pub looks: Looks,
    /// What is leaked, by stack, class and size, the most bytes first.
    pub leaked: Vec<Group>,
}

/// Looks at a process twice. `progress` is told what is being done.
///
/// # Errors
/// Why not; the process goes on as before.
pub fn prove(pid: u32, options: Options, progress: Progress<'_>) -> Result<Proof, Error> {
    let subject = Subject::look_up(pid)?;
    let mut looks = Looks::of(&subject.status, options);
    let first = looks.look(&subject, options, progress, |looks, seen| {
        search(&seen, looks, progress)?;
        let first = Unreached::of(seen)?;
        looks.budget.take(first.memory())?;
        Ok(first)
    })?;
    let begun = Instant::now();
    progress(Step::Wait);
    thread::sleep(APART.saturating_sub(begun.elapsed()));
    let leaked = looks.look(&subject, options, progress, |looks, seen| {
        search(&seen, looks, progress)?;
        Ok(Groups::of(&seen, first.again(&seen)))
    })?;
    // By then the copy is gone, of which every page counts that the process writes to.
    progress(Step::Name);
    let leaked = leaked.named(pid, &mut looks);
    Ok(Proof { looks, leaked })
}

/// Looks once at a program that is about to end: nothing moves any more.
///
/// # Errors
/// Why not; it can still end.
pub fn prove_ending(
    ending: &Ending,
    options: Options,
    progress: Progress<'_>,
) -> Result<Proof, Error> {
    let status = Status::read_thread(ending.pid())?;
    let mut looks = Looks::of(&status, options);
    let snapshot = Snapshot::of_ending(ending)?;
    progress(Step::Walk);
    let seen = looks.see(&snapshot)?;
    looks.warn_of(&seen);
    search(&seen, &mut looks, progress)?;
    let leaked = Groups::of(&seen, seen.objects.leaked());
    progress(Step::Name);
    let leaked = leaked.named(ending.pid(), &mut looks);
    Ok(Proof { looks, leaked })
}

/// What was not reached in a first snapshot, with a sum of what lay in each object: what nothing points to is written
/// to by nobody. Where something else lies there later, it was freed meanwhile and the place given out again, or
/// somebody has a pointer where nobody looks.
struct Unreached {
    objects: Objects,
    /// In the order of the addresses.
    sums: Vec<u32>,
}

impl Unreached {
    fn of(seen: Seen<'_>) -> Result<Self, Error> {
        let count = seen.objects.leaked().count();
        seen.budget.require((count * size_of::<u32>()) as u64)?;
        let mut sums = Vec::with_capacity(count);
        let mut memory = Window::new(&seen.view);
        let leaked = seen.objects.leaked();
        sums.extend(leaked.map(|object| sum(&mut memory, &object)));
        Ok(Self {
            objects: seen.objects.into_leaked(),
            sums,
        })
    }

    /// In bytes.
    fn memory(&self) -> u64 {
        self.objects.memory_of(2) + (self.sums.capacity() * size_of::<u32>()) as u64
    }

    /// Those that are there again in a later snapshot, and were not reached in that either.
    fn again(&self, seen: &Seen<'_>) -> impl Iterator<Item = Object> {
        let mut memory = Window::new(&seen.view);
        let mut before = self.objects.leaked().zip(&self.sums).peekable();
        let leaked = seen.objects.leaked();
        leaked.filter(move |object| {
            while before
                .next_if(|(first, _)| first.range.start < object.range.start)
                .is_some()
            {}
            let first = before.peek();
            first.is_some_and(|(first, sum)| {
                first == object && **sum == self::sum(&mut memory, object)
            })
        })
    }
}

/// A sum of an object's first bytes.
fn sum(memory: &mut Window<'_>, object: &Object) -> u32 {
    let places = object.range.clone().step_by(8).take(SUMMED);
    let words = places.map(|place| memory.word(place).unwrap_or_default());
    let sum = words.fold(0_u64, |sum, word| {
        (sum.rotate_left(5) ^ word).wrapping_mul(FACTOR)
    });
    (sum >> 32) as u32
}

/// Marks what is reached, and what Python's collector will free.
fn search(seen: &Seen<'_>, looks: &mut Looks, progress: Progress<'_>) -> Result<(), Error> {
    progress(Step::Search(looks.objects));
    let searched = reach(seen.snapshot, &seen.view, &seen.objects, &seen.roots)?;
    looks.searched = searched.bytes as u64;
    spare(seen)
}
