//! Walks arbitrary stacks by arbitrary rules: the walk ends, and reads only the stack.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memprof_unwind::{
    Cfa, PackedRule, Registers, Rule, RuleSource, SavedBp, StackReader, WalkEnd, as_frames, walk,
};

/// Program counter, stack pointer in words, frame pointer and buffer length; the stack; the rules.
type Input = ((usize, u8, usize, u8), Vec<usize>, Vec<(u8, u16, u16)>);

/// Start address of the stack.
const BASE: usize = 0x7FFF_0000_0000;
const WORD: usize = size_of::<usize>();

struct Stack<'a>(&'a [usize]);

impl StackReader for Stack<'_> {
    fn read_word(&mut self, address: usize) -> Option<usize> {
        let offset = address.checked_sub(BASE)?;
        if offset % WORD != 0 {
            return None;
        }
        self.0.get(offset / WORD).copied()
    }
}

/// Picks the rule of an address from a list, so that addresses share rules.
struct ListedRules<'a>(&'a [(u8, u16, u16)]);

impl RuleSource for ListedRules<'_> {
    /// Decodes one of the listed triples, selected by the address: the kind, and offsets within the limits of [`Rule`].
    /// `Outermost` if there are no triples.
    fn rule_at(&mut self, address: usize, _: usize) -> PackedRule {
        let Some(&(kind, cfa, bp)) = self.0.get(address % self.0.len().max(1)) else {
            return Rule::Outermost.into();
        };
        let (cfa, below) = (cfa % 8192, bp % 4095);
        let cfa = match kind % 8 {
            0 | 1 => Cfa::Sp(cfa.max(1)),
            2 | 3 => Cfa::Bp(cfa),
            4 => Cfa::BelowBp(cfa),
            5 => Cfa::Plt(cfa % 16),
            6 => return Rule::Signal.into(),
            _ => return [Rule::Outermost, Rule::Unsupported][usize::from(kind >> 7)].into(),
        };
        let bp = match kind / 8 % 3 {
            0 => SavedBp::Unchanged,
            1 => SavedBp::BelowCfa(below.max(1)),
            _ => SavedBp::AtBp,
        };
        Rule::Frame { cfa, bp }.into()
    }
}

fuzz_target!(|input: Input| {
    let ((pc, sp, bp, buffer), stack, rules) = input;
    let start = Registers {
        pc,
        sp: BASE + usize::from(sp) * WORD,
        bp,
    };
    // The fuzzer rarely guesses an address of the stack, so even words become one.
    let stack: Vec<usize> = stack
        .iter()
        .map(|word| {
            if word % 2 == 0 {
                BASE + word % 4096 / 2 * WORD
            } else {
                *word
            }
        })
        .collect();
    let mut buffer = vec![0; buffer.into()].into_boxed_slice();
    let (frames, end) = walk(
        start,
        as_frames(&mut buffer),
        &mut ListedRules(&rules),
        &mut Stack(&stack),
    );
    assert!(frames <= buffer.len());
    assert!(end != WalkEnd::Full || frames == buffer.len());
    assert!(buffer[..frames].iter().all(|pc| *pc != 0));
});
