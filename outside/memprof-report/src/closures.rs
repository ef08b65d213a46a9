//! Names of Rust's closures and async blocks. With line tables alone, debug information calls an inlined closure only
//! `{closure#0}`, and many functions have a closure of that name.

/// Frame in a stack, for the name of a closure that it contains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OuterFrame<'n> {
    pub(crate) name: &'n str,
    /// Whether its source file is that of the closure.
    pub(crate) is_same_file: bool,
    /// Whether [`mentions_closure`] holds for its name.
    pub(crate) mentions_closure: bool,
}

/// Returns whether a function's name ends with a closure or async block, such as `shop::{closure#0}`. An
/// implementation, `{impl#2}`, is none, and neither is the type of a closure, `{closure_env#0}`.
pub(crate) fn is_closure(name: &str) -> bool {
    let last = last_component(name);
    let is_numbered = last.starts_with('{') && last.ends_with('}') && last.contains('#');
    is_numbered && !last.starts_with("{impl") && !last.contains("_env#")
}

/// Returns whether a function's name may contain the type of a closure, as in `map<shop::load::{closure_env#0}>`.
pub(crate) fn mentions_closure(name: &str) -> bool {
    name.contains("_env#")
}

/// Returns a closure's name with the path of the function that defines it: `shop::load::{closure#0}`. `outer` yields
/// the frames that called the closure, towards the root. The path is found in the first of these whose generic
/// arguments have the closure's type, as in `map<shop::load::{closure_env#0}>`. If no frame has it, the path is the
/// name of the nearest function in the closure's source file. `None` if there is no such function either. A path counts
/// only if it contains the path in `name` and continues it, so that a whole name stays as it is.
///
/// If the path only has a number for an implementation, as in `{impl#2}`, the name of the nearest function is
/// preferred, provided that both end in the same component.
pub(crate) fn qualified_closure_name<'n>(
    name: &str,
    outer: impl Iterator<Item = OuterFrame<'n>>,
) -> Option<String> {
    let closure = last_component(name);
    let own_path = name.strip_suffix(closure).unwrap_or_default();
    let own_path = own_path.strip_suffix("::").unwrap_or_default();
    let environment = format!("::{}", closure.replacen('#', "_env#", 1));
    let mut path = None;
    let mut nearest = None;
    for frame in outer {
        let base = frame.name.split('<').next().unwrap_or_default();
        let is_function = !base.is_empty() || frame.name.starts_with('<');
        let is_candidate = frame.is_same_file && is_function && !is_closure(frame.name);
        if nearest.is_none() && is_candidate && extends_path(frame.name, own_path) {
            nearest = Some(frame.name);
        }
        if path.is_none() && frame.mentions_closure {
            path =
                path_before(frame.name, &environment).filter(|path| extends_path(path, own_path));
        }
        if path.is_some() && nearest.is_some() {
            break;
        }
    }
    let function = match (path, nearest) {
        // The number of an implementation says less than its type and trait.
        (Some(path), Some(nearest))
            if path.contains("{impl#") && last_component(path) == last_component(nearest) =>
        {
            nearest
        }
        (Some(path), _) => path,
        (None, nearest) => nearest?,
    };
    Some(format!("{function}::{closure}"))
}

/// Returns whether a function's name contains `path` and continues it: `shop::load` and `<shop::Sq as
/// shop::Shape>::build` do for `shop`, but `shop` and `workshop::load` do not. True for an empty path.
fn extends_path(function: &str, path: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':');
    path.is_empty()
        || function.match_indices(path).any(|(at, _)| {
            !function[..at].ends_with(is_part) && function[at + path.len()..].starts_with("::")
        })
}

/// Returns the path that ends where `end` starts in a name. `None` if the name lacks `end`, or has no path before it.
fn path_before<'n>(name: &'n str, end: &str) -> Option<&'n str> {
    let before = &name[..name.find(end)?];
    let is_path = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '{' | '}' | '#');
    let start = before.rfind(|c| !is_path(c)).map_or(0, |index| index + 1);
    before.get(start..).filter(|path| !path.is_empty())
}

/// Last component of a path: `build` of `<shop::Sq as shop::Shape>::build`.
fn last_component(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::{OuterFrame, is_closure, mentions_closure, qualified_closure_name};

    #[test]
    fn closure_has_the_path_of_its_function() {
        let check = |name, outer: &[(&str, bool)], expected: Option<&str>| {
            let outer = outer.iter().map(|(name, is_same_file)| OuterFrame {
                name,
                is_same_file: *is_same_file,
                mentions_closure: mentions_closure(name),
            });
            assert_eq!(qualified_closure_name(name, outer).as_deref(), expected);
        };
        check(
            "shop::{closure#0}",
            &[
                (
                    "core::iter::map_fold<u32, shop::load::{closure_env#0}>",
                    false,
                ),
                ("shop::run", true),
            ],
            Some("shop::load::{closure#0}"),
        );
        check(
            "shop::{closure#1}",
            &[
                ("core::iter::map<shop::load::{closure_env#0}>", false),
                ("shop::run", true),
            ],
            Some("shop::run::{closure#1}"),
        );
        check(
            "shop::{async_fn#0}",
            &[("shop::block<shop::fetch::{async_fn_env#0}>", true)],
            Some("shop::fetch::{async_fn#0}"),
        );
        check(
            "shop::{closure#0}",
            &[
                ("map<shop::{impl#3}::build::{closure_env#0}>", false),
                ("<shop::Sq as shop::Shape>::build", true),
            ],
            Some("<shop::Sq as shop::Shape>::build::{closure#0}"),
        );
        check("shop::{closure#0}", &[("std::thread::spawn", false)], None);
        check(
            "{closure#0}",
            &[("shop::run", true)],
            Some("shop::run::{closure#0}"),
        );
        // Whole names, as in the files of other tools, which may lack source files.
        check(
            "shop::store::load::{closure#0}",
            &[
                ("shop::run_job", true),
                ("map<shop::store::save::{closure_env#0}>", true),
                ("shop::store::load", true),
            ],
            None,
        );
        check(
            "load::{closure#0}",
            &[("run_job", true), ("main", true)],
            None,
        );
    }

    #[test]
    fn closures_are_known_by_their_last_component() {
        for name in ["{closure#0}", "shop::{closure#12}", "shop::{async_block#0}"] {
            assert!(is_closure(name), "{name}");
        }
        for name in [
            "shop::load",
            "shop::load::{{closure}}",
            "{impl#0}",
            "run<shop::fetch::{async_fn_env#0}>",
            "{lambda(int)#1}::operator()",
        ] {
            assert!(!is_closure(name), "{name}");
        }
    }
}
