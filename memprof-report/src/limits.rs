//! How much of a hostile input is read before it is refused.

/// The most that is accepted. Every pass over the input is linear in these, so they bound the time too.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of text or protobuf, after decompression.
    pub bytes: u64,
    /// Decompressed bytes per compressed byte, looked at beyond [`Limits::RATIO_FLOOR`].
    pub ratio: u64,
    /// Bytes of one line.
    pub line: usize,
    /// Frames of one stack. jemalloc keeps 128 unless `prof_bt_max` says more.
    pub frames: usize,
    /// Samples of one profile.
    pub samples: usize,
    /// Mappings of one profile; Linux gives a process 65,530 unless told otherwise.
    pub mappings: usize,
}

impl Limits {
    /// Small inputs may have any ratio: they cannot hurt.
    pub const RATIO_FLOOR: u64 = 64 << 20;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 4 << 30,
            ratio: 500,
            line: 128 << 10,
            frames: 4096,
            samples: 50_000_000,
            mappings: 1 << 18,
        }
    }
}
