//! Check whether a thread's children are of other namespaces than it is, after unshare(2) or setns(2). In another pid
//! namespace (`pid_namespaces(7)`), the kernel makes no threads, and a first child would be its init: at its end the
//! kernel kills all processes there, and every later fork(2) of the program fails. A first child in another time
//! namespace (`time_namespaces(7)`) ends the time in which the program may set its clocks.

use std::fs;
use std::path::Path;

use crate::refusal::Refusal;

/// Fails if a thread's children are of another namespace than the thread, for one of the `kinds` ("pid", "time").
/// Before Linux 4.12, which does not show the namespace of children, their namespace counts as the thread's.
///
/// # Errors
/// `ChildNamespace`: the children are of another namespace.
pub(super) fn require_same_namespaces(thread: u32, kinds: &[&'static str]) -> Result<(), Refusal> {
    let links = format!("/proc/{thread}/ns");
    let mut kinds = kinds.iter();
    match kinds.find(|kind| has_other_child_namespace(Path::new(&links), kind)) {
        Some(kind) => Err(Refusal::ChildNamespace { kind }),
        None => Ok(()),
    }
}

/// Returns whether a thread's children are of another namespace of this `kind` than the thread. `links` is the thread's
/// directory /proc/TID/ns. A link to the namespace of children that cannot be read counts as another namespace: a
/// namespace without a process has such a link. False if the kernel does not show both namespaces.
fn has_other_child_namespace(links: &Path, kind: &str) -> bool {
    let Ok(own) = fs::read_link(links.join(kind)) else {
        return false;
    };
    let of_children = links.join(format!("{kind}_for_children"));
    of_children.is_symlink() && fs::read_link(of_children).ok() != Some(own)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_of_both_namespaces_are_compared() {
        let check = |of_children: Option<&str>, expected: bool| {
            let links = tempfile::tempdir().expect("a directory");
            symlink("pid:[4026531836]", links.path().join("pid")).expect("a link");
            if let Some(target) = of_children {
                symlink(target, links.path().join("pid_for_children")).expect("a link");
            }
            assert_eq!(
                has_other_child_namespace(links.path(), "pid"),
                expected,
                "{of_children:?}"
            );
        };
        check(Some("pid:[4026531836]"), false);
        check(Some("pid:[4026532281]"), true);
        check(None, false);
        for kind in ["pid", "time", "none"] {
            assert!(!has_other_child_namespace(Path::new("/proc/self/ns"), kind));
        }
    }
}
