//! Unwind rules: how to compute the caller's registers from those of a frame at one address.

/// Unwind rule of one code address. Distances are in words of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A frame with its return address just below its CFA, which is the caller's stack pointer.
    Frame {
        /// Location of the CFA.
        cfa: Cfa,
        /// Location of the caller's frame pointer.
        bp: SavedBp,
    },
    /// The kernel's frame below a signal handler. It contains the interrupted registers.
    Signal,
    /// There is no caller.
    Outermost,
    /// Code that the loader does not know, for example from a just-in-time compiler. Ends a walk.
    Unknown,
    /// Like [`Rule::Unknown`], but the walk continues by the frame pointer, because JIT code that is meant to be
    /// profiled has one.
    FramePointer,
    /// Code of a loaded object without call frame information, such as assembly. The walk continues by the frame
    /// pointer if the return address found there follows a call.
    Undescribed,
    /// Call frame information that the other rules cannot express: frames of more than 64 KiB, or a CFA that is in
    /// another register or computed by an expression. It is read again for each frame.
    Complex,
    /// Call frame information that cannot be read.
    Unsupported,
}

/// Location of the canonical frame address (CFA): the caller's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cfa {
    /// Words above the stack pointer; at least 1.
    Sp(u16),
    /// Words above the frame pointer.
    Bp(u16),
    /// In memory, at this many words below the address in the frame pointer. Used by a function that realigns its
    /// stack.
    BelowBp(u16),
    /// For an entry of a procedure linkage table: 16 bytes of code. Code from this offset on runs after the entry has
    /// pushed a word.
    Plt(u16),
}

/// Location of the caller's frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedBp {
    /// Still in its register.
    Unchanged,
    /// Words below the CFA; at least 1.
    BelowCfa(u16),
    /// In the word at the address in the frame pointer.
    AtBp,
}

/// A rule packed into 28 bits; never 0.
///
/// From the lowest bit on: 3 bits for the kind, 13 bits for the distance of the CFA, 12 bits for that of the frame
/// pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedRule(u32);

const KIND_BITS: u32 = 3;
const CFA_BITS: u32 = 13;
const BP_BITS: u32 = 12;

/// Exclusive upper bound of the distance of a CFA.
pub(crate) const CFA_LIMIT: u16 = 1 << CFA_BITS;
/// Exclusive upper bound of the distance of a saved frame pointer.
pub(crate) const BP_LIMIT: u16 = AT_BP;

/// Value of the distance field for [`SavedBp::AtBp`].
const AT_BP: u16 = (1 << BP_BITS) - 1;

/// Kinds. `SP` and `BP`, the kinds of nearly all frames, differ only in the lowest bit.
const SP: u32 = 0b010;
const BP: u32 = 0b011;
const BELOW_BP: u32 = 0b100;
const PLT: u32 = 0b101;
const SIGNAL: u32 = 0b110;
const OUTERMOST: u32 = 0b111;
const UNSUPPORTED: u32 = 0b001;

/// Value of the CFA field for the kind `UNSUPPORTED`.
const COMPLEX: u32 = 1;

/// Values of the CFA field for the kind `OUTERMOST`.
const UNKNOWN: u32 = 1;
const FRAME_POINTER: u32 = 2;
const UNDESCRIBED: u32 = 3;

/// Decoded rule of a common frame. Its CFA is a register plus a distance, and the caller's frame pointer is in its
/// register or below the CFA. Distances are in words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommonFrame {
    pub(crate) cfa_is_above_bp: bool,
    pub(crate) cfa: usize,
    /// 0 if the frame pointer is still in its register.
    pub(crate) bp_below_cfa: usize,
}

impl PackedRule {
    pub(crate) const BITS: u32 = KIND_BITS + CFA_BITS + BP_BITS;

    /// [`Rule::Outermost`], which ends nearly all walks.
    pub(crate) const OUTERMOST: Self = Self(OUTERMOST);
    /// [`Rule::Unknown`].
    pub(crate) const UNKNOWN: Self = Self(OUTERMOST | UNKNOWN << KIND_BITS);
    /// [`Rule::FramePointer`].
    pub(crate) const FRAME_POINTER: Self = Self(OUTERMOST | FRAME_POINTER << KIND_BITS);

    /// Restores a rule from the result of [`Self::bits`], without a check.
    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns the packed rule in the lowest [`Self::BITS`] bits of a number; never 0. [`Self::from_bits`] restores it.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// Decodes the rule of a common frame: its CFA is a distance above the stack pointer or the frame pointer, and the
    /// frame pointer is unchanged or saved below the CFA. `None` for other rules.
    #[inline(always)]
    pub(crate) fn common_frame(self) -> Option<CommonFrame> {
        let is_common = self.0 & 0b110 == SP;
        let bp = self.bp_field();
        (is_common && bp != AT_BP).then_some(CommonFrame {
            cfa_is_above_bp: self.0 & 1 != 0,
            cfa: self.cfa_field().into(),
            bp_below_cfa: bp.into(),
        })
    }

    /// Returns the middle field. For a frame, it is the distance of the CFA, in words (in bytes for [`Cfa::Plt`]). For
    /// the kinds `OUTERMOST` and `UNSUPPORTED`, it distinguishes their variants.
    #[inline(always)]
    fn cfa_field(self) -> u16 {
        (self.0 >> KIND_BITS) as u16 & (CFA_LIMIT - 1)
    }

    /// Returns the distance in words of the saved frame pointer below the CFA. 0 means that it is unchanged; `AT_BP` is
    /// [`SavedBp::AtBp`].
    #[inline(always)]
    fn bp_field(self) -> u16 {
        (self.0 >> (KIND_BITS + CFA_BITS)) as u16 & AT_BP
    }
}

impl From<Rule> for PackedRule {
    /// Packs a rule: its kind, the distance of the CFA, and that of the saved frame pointer.
    fn from(rule: Rule) -> Self {
        let (cfa, bp) = match rule {
            Rule::Frame { cfa, bp } => (cfa, bp),
            Rule::Signal => return Self(SIGNAL),
            Rule::Outermost => return Self(OUTERMOST),
            Rule::Unknown => return Self::UNKNOWN,
            Rule::FramePointer => return Self::FRAME_POINTER,
            Rule::Undescribed => return Self(OUTERMOST | UNDESCRIBED << KIND_BITS),
            Rule::Complex => return Self(UNSUPPORTED | COMPLEX << KIND_BITS),
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
    /// Unpacks a rule. An unknown kind becomes `Unsupported`.
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
                    UNDESCRIBED => Self::Undescribed,
                    _ => Self::Outermost,
                };
            }
            _ if u32::from(distance) == COMPLEX => return Self::Complex,
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
            Rule::Undescribed,
            Rule::Complex,
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
