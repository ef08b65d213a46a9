//! A row of the leaked objects.

use memprof_report::NamedStack;

/// Leaked objects of one class and size that one stack allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakGroup {
    /// Class in C++ or type in Python. `None` if their first words identify none.
    pub class: Option<String>,
    /// Usable bytes of each object.
    pub size: u64,
    /// Functions that allocated them, leaf first, if a profiler in the process has samples of them. `None` if
    /// it has none: such objects may have the stack of another group.
    pub stack: Option<NamedStack>,
    /// Functions that allocated sampled objects of the same class and size. `None` if the group has a stack, or there
    /// are no such objects.
    pub origin: Option<SampledOrigin>,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of all objects.
    pub bytes: u64,
    /// Address of one of the objects.
    pub example: u64,
}

/// Functions that allocated the sampled objects of a class and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledOrigin {
    /// Functions with most samples first, at most three.
    pub functions: Vec<OriginShare>,
    /// Sampled objects of that class and size which are leaked.
    pub sampled: u64,
    /// Whether the first function allocated more than half of the objects without a sample too, with 95 % confidence.
    /// Otherwise they may be older than the samples, or the samples are too few.
    pub is_probable: bool,
}

/// A function's share of the samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginShare {
    /// Function to which a report attributes its samples.
    pub function: String,
    /// Number of samples.
    pub sampled: u64,
}
