//! Code origins of the functions of interpreted programs, by the paths of their files.

use super::CodeOrigin;

/// Paths of files; the first pattern that matches counts. Other files are the program's own.
pub(in crate::code_origin) const SCRIPTS: &[(CodeOrigin, &str)] = &[
    // Python: packages, then its standard library, also as zip files and in frozen form.
    (CodeOrigin::Library, "*/site-packages/*"),
    (CodeOrigin::Library, "*/dist-packages/*"),
    (CodeOrigin::Plumbing, "<frozen *"),
    // The type of an object, in place of a function.
    (CodeOrigin::Plumbing, "<object>"),
    (CodeOrigin::Plumbing, "*/lib/python3.*"),
    (CodeOrigin::Plumbing, "*/lib64/python3.*"),
    (CodeOrigin::Plumbing, "*/lib/python3/*"),
    (CodeOrigin::Plumbing, "*/lib/python3*.zip/*"),
];
