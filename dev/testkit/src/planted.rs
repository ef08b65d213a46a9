//! The leaks that `outside/memprof-leaks/tests/processes/planted.c` plants.

/// Usable size in bytes and number of the leaked objects with glibc 2.36.
pub const IN_GLIBC: &[(u64, u64)] = &[
    (120, 500),
    (152, 500),
    (184, 500),
    (216, 510),
    (248, 500),
    (280, 500),
    (1_052_656, 1),
];

/// Usable size in bytes and number of the leaked objects with jemalloc 5.3.
pub const IN_JEMALLOC: &[(u64, u64)] = &[
    (128, 500),
    (160, 500),
    (192, 500),
    (224, 510),
    (256, 500),
    (320, 500),
    (1 << 20, 1),
];
