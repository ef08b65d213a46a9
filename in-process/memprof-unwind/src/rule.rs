//! How to get from a frame to its caller's, at one address.

/// How to find the caller of a frame. Distances are in words of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A frame whose return address lies just below its CFA, the caller's stack pointer.
    Frame {
        /// Where the CFA is.
        cfa: Cfa,
        /// Where the caller's frame pointer is.
        bp: SavedBp,
    },
    /// The kernel's frame below a signal handler: the interrupted registers lie in it.
    Signal,
    /// There is no caller.
    Outermost,
    /// Code that no loader knows, as a just-in-time compiler's: it ends a walk.
    Unknown,
    /// The same for a walk that goes on: such code keeps a frame pointer, if it lets itself be profiled at all.
    FramePointer,
    /// It takes more than these shapes tell.
    Unsupported,
}

/// The canonical frame address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cfa {
    /// So far above the stack pointer; at least 1.
    Sp(u16),
    /// So far above the frame pointer.
    Bp(u16),
    /// In memory, so far below where the frame pointer points: a function that realigns its stack.
    BelowBp(u16),
    /// An entry of a procedure linkage table, which pushes a word before the byte of that number
    /// (of 16).
    Plt(u16),
}

/// Where a frame keeps its caller's frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedBp {
    /// In its register.
    Unchanged,
    /// So far below the CFA; at least 1.
    BelowCfa(u16),
    /// Where the frame pointer points.
    AtBp,
}

/// A rule in 28 bits, never 0.
///
/// From the lowest: 3 bits of kind, 13 bits of the CFA's distance, 12 bits of the frame pointer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedRule(u32);

const KIND_BITS: u32 = 3;
const CFA_BITS: u32 = 13;
const BP_BITS: u32 = 12;

/// One more than the longest distance of a CFA.
pub(crate) const CFA_LIMIT: u16 = 1 << CFA_BITS;
/// One more than the longest distance of a saved frame pointer.
pub(crate) const BP_LIMIT: u16 = AT_BP;

/// Instead of a distance.
const AT_BP: u16 = (1 << BP_BITS) - 1;

/// The two that nearly all frames have differ in one bit.
const SP: u32 = 0b010;
const BP: u32 = 0b011;
const BELOW_BP: u32 = 0b100;
const PLT: u32 = 0b101;
const SIGNAL: u32 = 0b110;
const OUTERMOST: u32 = 0b111;
const UNSUPPORTED: u32 = 0b001;

/// Instead of a distance, why a frame is the outermost one.
const UNKNOWN: u32 = 1;
const FRAME_POINTER: u32 = 2;

/// A frame of the usual kind: its CFA is a register and a distance, and the caller's frame pointer
/// is in its register or below the CFA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommonFrame {
    pub(crate) cfa_is_above_bp: bool,
    pub(crate) cfa: usize,
    /// 0: in its register.
    pub(crate) bp_below_cfa: usize,
}

impl PackedRule {
    pub(crate) const BITS: u32 = KIND_BITS + CFA_BITS + BP_BITS;

    /// [`Rule::Outermost`], where nearly all walks end.
    pub(crate) const OUTERMOST: Self = Self(OUTERMOST);
    /// [`Rule::Unknown`] and [`Rule::FramePointer`].
    pub(crate) const UNKNOWN: Self = Self(OUTERMOST | UNKNOWN << KIND_BITS);
    pub(crate) const FRAME_POINTER: Self = Self(OUTERMOST | FRAME_POINTER << KIND_BITS);

    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(crate) fn usual(self) -> Option<CommonFrame> {
        let is_usual = self.0 & 0b110 == SP;
        let bp = self.bp_field();
        (is_usual && bp != AT_BP).then_some(CommonFrame {
            cfa_is_above_bp: self.0 & 1 != 0,
            cfa: self.cfa_field().into(),
            bp_below_cfa: bp.into(),
        })
    }

    #[inline(always)]
    fn cfa_field(self) -> u16 {
        (self.0 >> KIND_BITS) as u16 & (CFA_LIMIT - 1)
    }

    #[inline(always)]
    fn bp_field(self) -> u16 {
        (self.0 >> (KIND_BITS + CFA_BITS)) as u16 & AT_BP
    }
}

impl From<Rule> for PackedRule {
    fn from(rule: Rule) -> Self {
        let (cfa, bp) = match rule {
            Rule::Frame { cfa, bp } => (cfa, bp),
            Rule::Signal => return Self(SIGNAL),
            Rule::Outermost => return Self(OUTERMOST),
            Rule::Unknown => return Self::UNKNOWN,
            Rule::FramePointer => return Self::FRAME_POINTER,
            Rule::Unsupported => return Self(UNSUPPORTED),
        };
        let (kind, distance) = match cfa {
            Cfa::Sp(words) => (SP, words),
            Cfa::Bp(words) => (BP, words),
            Cfa::BelowBp(words) => (BELOW_BP, words),
            Cfa::Plt(byte) => (PLT, byte),
        };
        let saved = match bp {
            SavedBp::Unchanged => 0,
            SavedBp::BelowCfa(words) => words,
            SavedBp::AtBp => AT_BP,
        };
        Self(kind | u32::from(distance) << KIND_BITS | u32::from(saved) << (KIND_BITS + CFA_BITS))
    }
}

impl From<PackedRule> for Rule {
    fn from(packed: PackedRule) -> Self {
        let distance = packed.cfa_field();
        let cfa = match packed.0 & ((1 << KIND_BITS) - 1) {
            SP => Cfa::Sp(distance),
            BP => Cfa::Bp(distance),
            BELOW_BP => Cfa::BelowBp(distance),
            PLT => Cfa::Plt(distance),
            SIGNAL => return Self::Signal,
            OUTERMOST => {
                return match u32::from(distance) {
                    UNKNOWN => Self::Unknown,
                    FRAME_POINTER => Self::FramePointer,
                    _ => Self::Outermost,
                };
            }
            _ => return Self::Unsupported,
        };
        let bp = match packed.bp_field() {
            0 => SavedBp::Unchanged,
            AT_BP => SavedBp::AtBp,
            words => SavedBp::BelowCfa(words),
        };
        Self::Frame { cfa, bp }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_survives_packing() {
        let cfas = [1, CFA_LIMIT - 1].map(|words| {
            [
                Cfa::Sp(words),
                Cfa::Bp(words),
                Cfa::BelowBp(words),
                Cfa::Plt(words),
            ]
        });
        let bps = [
            SavedBp::Unchanged,
            SavedBp::BelowCfa(1),
            SavedBp::BelowCfa(BP_LIMIT - 1),
            SavedBp::AtBp,
        ];
        let frames = cfas
            .iter()
            .flatten()
            .flat_map(|&cfa| bps.iter().map(move |&bp| Rule::Frame { cfa, bp }));
        let others = [
            Rule::Signal,
            Rule::Outermost,
            Rule::Unknown,
            Rule::FramePointer,
            Rule::Unsupported,
        ];
        for rule in frames.chain(others) {
            let packed = PackedRule::from(rule);
            assert_eq!(Rule::from(packed), rule);
            assert_ne!(packed.bits(), 0, "{rule:?}");
            assert_eq!(packed.bits() >> PackedRule::BITS, 0, "{rule:?}");
        }
    }
}
