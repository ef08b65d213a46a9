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

/// A rule in 30 bits, never 0.
///
/// From the lowest: 3 bits of kind, 14 bits of the CFA's distance, 13 bits of the frame pointer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed(u32);

impl Packed {
    pub(crate) const BITS: u32 = KIND_BITS + CFA_BITS + BP_BITS;

    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }
}

const KIND_BITS: u32 = 3;
const CFA_BITS: u32 = 13;
const BP_BITS: u32 = 12;

/// One more than the longest distance of a CFA.
pub(crate) const CFA_LIMIT: u16 = 1 << CFA_BITS;
/// One more than the longest distance of a saved frame pointer.
pub(crate) const BP_LIMIT: u16 = AT_BP;

const AT_BP: u16 = (1 << BP_BITS) - 1;

const UNSUPPORTED: u32 = 0;
const SP: u32 = 1;
const BP: u32 = 2;
const BELOW_BP: u32 = 3;
const PLT: u32 = 4;
const SIGNAL: u32 = 5;
const OUTERMOST: u32 = 6;

/// Above all kinds, so that an unsupported frame is not 0 either.
const NOT_ZERO: u32 = 1 << KIND_BITS;

impl From<Rule> for Packed {
    fn from(rule: Rule) -> Self {
        let (cfa, bp) = match rule {
            Rule::Frame { cfa, bp } => (cfa, bp),
            Rule::Signal => return Self(SIGNAL),
            Rule::Outermost => return Self(OUTERMOST),
            Rule::Unsupported => return Self(UNSUPPORTED | NOT_ZERO),
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

impl From<Packed> for Rule {
    #[inline(always)]
    fn from(Packed(bits): Packed) -> Self {
        let distance = (bits >> KIND_BITS) as u16 & (CFA_LIMIT - 1);
        let cfa = match bits & ((1 << KIND_BITS) - 1) {
            SP => Cfa::Sp(distance),
            BP => Cfa::Bp(distance),
            BELOW_BP => Cfa::BelowBp(distance),
            PLT => Cfa::Plt(distance),
            SIGNAL => return Self::Signal,
            OUTERMOST => return Self::Outermost,
            _ => return Self::Unsupported,
        };
        let bp = match (bits >> (KIND_BITS + CFA_BITS)) as u16 & AT_BP {
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
        for rule in frames.chain([Rule::Signal, Rule::Outermost, Rule::Unsupported]) {
            let packed = Packed::from(rule);
            assert_eq!(Rule::from(packed), rule);
            assert_ne!(packed.bits(), 0, "{rule:?}");
            assert_eq!(packed.bits() >> Packed::BITS, 0, "{rule:?}");
        }
    }
}
