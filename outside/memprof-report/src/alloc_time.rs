//! The frame of a stack that is no code: when its samples were allocated (see `ages`).

/// The upper 24 bits of such a frame: no address that a processor accepts, and the kind that births have.
const BIRTH: u64 = 0x4d_5002;

/// When a block was allocated: the start of its bucket, in seconds since 1970 (UTC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AllocTime(pub(crate) u32);

impl AllocTime {
    /// What a frame tells, if it tells of a birth. Tools show a caller as the byte before the return address: the
    /// lowest bit, which is always set, says nothing.
    pub(crate) fn of(frame: u64) -> Option<Self> {
        (frame >> 40 == BIRTH).then_some(Self((frame >> 1) as u32))
    }
}

/// How the births of a profile are to be read: what its line `# ages: WIDTH TAKEN` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AgeBuckets {
    /// The length of a bucket, in seconds.
    pub(crate) width: u32,
    /// When the profile was taken, by the clock of the births: in seconds since 1970 (UTC).
    pub(crate) taken: u32,
}

impl AgeBuckets {
    /// `WIDTH TAKEN`
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (width, taken) = text.split_once(' ')?;
        let (width, taken) = (width.parse().ok()?, taken.parse().ok()?);
        (width > 0).then_some(Self { width, taken })
    }

    /// The least age, in seconds, that all samples of a bucket have.
    pub(crate) fn least(self, birth: AllocTime) -> u32 {
        self.taken
            .saturating_sub(birth.0.saturating_add(self.width))
    }
}
